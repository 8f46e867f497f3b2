"""Counts that callers give."""


def require_count(name: str, value: int, least: int = 0) -> None:
    """Refuse what is no integer, or too small; NaN would otherwise pass every comparison.

    Raises:
        TypeError: No integer.
        ValueError: Below `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
