"""What numbers a caller may give."""


def at_least(least: int, name: str, value: int) -> None:
    """Refuse a count that is no integer, or too small.

    Raises:
        TypeError: No integer.
        ValueError: Below `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")


def require_deadline(deadline: float) -> None:
    """Refuse a deadline that nothing can be compared with.

    Raises:
        ValueError: NaN.
    """
    if deadline != deadline:
        raise ValueError(f"a deadline must be a number, got {deadline}")
