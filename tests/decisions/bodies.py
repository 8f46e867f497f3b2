"""Bodies of both contracts that the tests bend out of shape."""

from typing import Any

Body = dict[str, Any]

TEXT = "A customer was charged twice and requests a refund today."


def decisions() -> Body:
    return {
        "model": "mock-fast",
        "input": TEXT,
        "questions": [
            {
                "type": "choice",
                "name": "route",
                "instructions": "Choose the responsible team.",
                "choices": [
                    {"value": "billing", "description": "Payments"},
                    {"value": "technical", "description": "Software"},
                ],
            },
            {"type": "predicate", "instructions": "Action is needed today."},
            {
                "type": "score",
                "name": "severity",
                "instructions": "Rate the impact.",
                "levels": [{"label": "Low"}, {"label": "Moderate"}, {"label": "High"}],
            },
        ],
    }


def systemone() -> Body:
    return {
        "model": "jev-latest",
        "state": TEXT,
        "questions": {
            "route": {
                "type": "choice",
                "instructions": "Choose the responsible team.",
                "criteria": {"billing": "Payments", "technical": "Software"},
            },
            "urgent": {"type": "noul", "instructions": "Action is needed today."},
            "severity": {
                "type": "score",
                "instructions": "Rate the impact.",
                "criteria": ["Low", "Moderate", "High"],
            },
        },
    }


def changed(body: Body, path: str, value: object) -> Body:
    """`body` with the value at a dotted path set; `DELETE` removes it."""
    *parents, last = path.split(".")
    place: Any = body
    for step in parents:
        place = place[int(step) if isinstance(place, list) else step]
    key = int(last) if isinstance(place, list) else last
    if value is DELETE:
        del place[key]
    else:
        place[key] = value
    return body


DELETE = object()
