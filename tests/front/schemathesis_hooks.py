"""The two rules of `/v1/decisions` that JSON Schema has no words for; see `schemas.py`.

Loaded by `schemathesis.sh`, whose environment has the library.
"""

from typing import Any

import schemathesis  # type: ignore[import-not-found]


def filter_case(context: Any, case: Any) -> bool:
    """Whether a generated body keeps both rules, or is broken in another way anyway."""
    body = case.body
    if not isinstance(body, dict):
        return True
    return all(map(_unique, _list(body.get("questions")))) and _answered(_list(body.get("input")))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _unique(question: Any) -> bool:
    """The values of a choice are unique, by type and value."""
    if not isinstance(question, dict):
        return True
    options = [o for o in _list(question.get("choices")) if isinstance(o, dict)]
    values = [(type(o.get("value")).__name__, str(o.get("value"))) for o in options]
    return len(set(values)) == len(values)


def _answered(items: list[Any]) -> bool:
    """An output follows the call that it answers."""
    known = set()
    for item in items:
        if not isinstance(item, dict):
            continue
        kind, call = str(item.get("type")), str(item.get("call_id"))
        if kind.endswith("_output") and (kind.removesuffix("_output"), call) not in known:
            return False
        known.add((kind, call))
    return True


schemathesis.hook(filter_case)
