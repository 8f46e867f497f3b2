"""Field by field checks that both contracts share; messages name the place, never the content."""

from collections.abc import Collection

from kvlanes.engine.decisions._errors import invalid_request
from kvlanes.engine.decisions._json import Json


def record(
    value: Json, where: str, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, Json]:
    """`value` as an object that has every required field and no unknown one."""
    found = mapping(value, where)
    for field in required:
        if field not in found:
            raise invalid_request(f"{where}.{field} is required")
    if not found.keys() <= {*required, *optional}:
        raise invalid_request(f"{where} has an unknown field")
    return found


def mapping(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise invalid_request(f"{where} must be an object")
    return value


def text(value: Json, where: str) -> str:
    if not isinstance(value, str):
        raise invalid_request(f"{where} must be a string")
    return value


def nonblank(value: Json, where: str) -> str:
    if not text(value, where).strip():
        raise invalid_request(f"{where} must not be blank")
    return text(value, where)


def array(value: Json, where: str, low: int = 1, high: int | None = None) -> list[Json]:
    """`value` as an array of `low` to `high` items."""
    if not isinstance(value, list):
        raise invalid_request(f"{where} must be an array")
    counted(len(value), where, low, high)
    return value


def counted(count: int, where: str, low: int, high: int | None) -> None:
    if count < low:
        raise invalid_request(f"{where} has {count} entries, needs at least {low}")
    if high is not None and count > high:
        raise invalid_request(f"{where} has {count} entries, at most {high} are allowed")


def one_of(value: Json, where: str, allowed: Collection[str | None]) -> None:
    if not (value is None or isinstance(value, str)) or value not in allowed:
        names = ", ".join(sorted("null" if name is None else name for name in allowed))
        raise invalid_request(f"{where} must be one of: {names}")
