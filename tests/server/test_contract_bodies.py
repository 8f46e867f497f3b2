"""What the contracts say of bodies and answers, asked of the process over TCP, on both routes."""
# flake8: noqa: ASYNC910, ASYNC912 - every request is one

import gzip
import json
import math
from typing import Any

import pytest
import zstandard

from tests.decisions import test_decisions_schema, test_systemone_schema
from tests.decisions.bodies import changed, decisions, systemone
from tests.server.process import Outside
from tests.server.rows import INVALID, JSON, PATHS, ROUTES, SCHEMA, refused
from tests.server.running import predicates

CASES = {"/v1/decisions": test_decisions_schema, "/v1/systemone": test_systemone_schema}
OF_OTHER_LIMITS = ("one question too many",)  # those tests allow fewer questions


def cases(name: str) -> list[Any]:
    return [
        pytest.param(path, *case, id=f"{path[4:]} {label}")
        for path, module in CASES.items()
        for label, case in getattr(module, name).items()
        if label not in OF_OTHER_LIMITS
    ]


@pytest.mark.parametrize(("path", "field", "value"), cases("ACCEPTED"))
async def test_what_the_contract_allows_is_answered(
    process: Outside, path: str, field: str, value: object
) -> None:
    response = await process.server.post(path, changed(ROUTES[path](), field, value))
    assert (response.status, len(json.loads(response.body)["answers"])) == (200, 3)


@pytest.mark.parametrize(("path", "field", "value"), cases("REFUSED"))
async def test_what_the_contract_forbids_is_refused(
    process: Outside, path: str, field: str, value: object
) -> None:
    body = json.dumps(changed(ROUTES[path](), field, value)).encode()
    async with process.server.client() as client:
        await refused(client, path, body, SCHEMA[path], INVALID)


def shape(value: object) -> object:
    """Keys and their order, and the kinds of values."""
    if isinstance(value, dict):
        return {"keys": [(key, shape(inner)) for key, inner in value.items()]}
    return [shape(inner) for inner in value] if isinstance(value, list) else type(value)


async def test_decisions_are_answered_as_documented(process: Outside) -> None:
    response = await process.server.post("/v1/decisions", decisions())
    said = json.loads(response.body)
    choice, predicate, score = said["answers"]
    assert shape(said) == shape(
        {
            "model": "mock-fast",
            "answers": [
                {
                    "type": "choice",
                    "name": "route",
                    "choice": "technical",
                    "confidence": 0.0516,
                    "probabilities": [
                        {"value": "billing", "probability": 0.4742},
                        {"value": "technical", "probability": 0.5258},
                    ],
                },
                {"type": "predicate", "name": None, "probability": 0.1873},
                {
                    "type": "score",
                    "name": "severity",
                    "score": 0.9261,
                    "confidence": 0.5,
                    "probabilities": [
                        {"value": i, "label": label, "probability": 0.3788}
                        for i, label in enumerate(("Low", "Moderate", "High"))
                    ],
                },
            ],
            "usage": {
                "input_tokens": 51,
                "output_tokens": 0,
                "total_tokens": 51,
                "input_tokens_details": {"cached_tokens": 15, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }
    )
    assert (choice["name"], predicate["name"], score["name"]) == ("route", None, "severity")
    assert [each["value"] for each in choice["probabilities"]] == ["billing", "technical"]
    assert [each["label"] for each in score["probabilities"]] == ["Low", "Moderate", "High"]
    assert said["usage"]["total_tokens"] == said["usage"]["input_tokens"] > 0


async def test_systemone_is_answered_as_documented(process: Outside) -> None:
    response = await process.server.post("/v1/systemone", systemone())
    said = json.loads(response.body)
    score = {"0": 0.3788, "1": 0.3163, "2": 0.3049}
    assert shape(said) == shape(
        {
            "model": "mock-fast",
            "answers": {
                "route": {
                    "type": "choice",
                    "choice": "technical",
                    "probabilities": {"billing": 0.4742, "technical": 0.5258},
                    "confidence": 0.0516,
                    "x_label_mass": 0.97,
                },
                "urgent": {"type": "noul", "noul": 0.1873, "x_label_mass": 0.97},
                "severity": {
                    "type": "score",
                    "score": 0.9261,
                    "probabilities": score,
                    "legend": {"0": "Low", "1": "Moderate", "2": "High"},
                    "confidence": 0.5,
                    "x_label_mass": 0.97,
                },
            },
            "usage": {"input_tokens": 51, "output_tokens": 0},
        }
    )
    assert said["model"] == "mock-fast"  # asked for by its alias
    assert said["answers"]["severity"]["legend"] == {"0": "Low", "1": "Moderate", "2": "High"}


async def test_cached_tokens_are_measured(process: Outside) -> None:
    body = predicates("mock-fast", 1, "Something that nobody has asked about before. " * 20)
    seen = []
    for _ in range(2):
        said = json.loads((await process.server.post("/v1/decisions", body)).body)["usage"]
        seen.append((said["input_tokens"], said["input_tokens_details"]["cached_tokens"]))
    tokens = seen[0][0]
    assert seen == [(tokens, 0), (tokens, tokens // 16 * 16)]


async def test_answers_follow_from_their_probabilities_and_both_routes_agree(
    process: Outside,
) -> None:
    theirs = json.loads((await process.server.post("/v1/decisions", decisions())).body)["answers"]
    ours = json.loads((await process.server.post("/v1/systemone", systemone())).body)["answers"]
    chances = [each["probability"] for each in theirs[0]["probabilities"]]
    best = max(chances)
    assert theirs[0]["choice"] == ("billing", "technical")[chances.index(best)]
    assert theirs[0]["confidence"] == pytest.approx(2 * best - 1)
    levels = [each["probability"] for each in theirs[2]["probabilities"]]
    spread = sum(p * abs(i - levels.index(max(levels))) for i, p in enumerate(levels))
    assert theirs[2]["score"] == pytest.approx(levels[1] + 2 * levels[2])
    assert theirs[2]["confidence"] == pytest.approx(max(0.0, 1 - spread / (2 / 3)))
    for values in (chances, levels):
        assert math.fsum(values) == pytest.approx(1, abs=1e-9)
    assert list(ours["route"]["probabilities"].values()) == chances
    assert list(ours["severity"]["probabilities"].values()) == levels
    assert ours["urgent"]["noul"] == theirs[1]["probability"]
    assert all(0.0 < answer["x_label_mass"] < 1.0 for answer in ours.values())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        "content-type: application/json; charset=utf-8\r\n",
        "Content-Type: Application/JSON\r\n",
        f"{JSON}content-encoding: identity\r\n",
    ],
)
async def test_a_type_may_have_parameters_and_any_case(
    process: Outside, path: str, headers: str
) -> None:
    async with process.server.client() as client:
        body = json.dumps(ROUTES[path]()).encode()
        assert (await client.request(body, path=path, headers=headers)).status == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("encoding", "encode"),
    [("gzip", gzip.compress), ("zstd", zstandard.compress)],
)
async def test_encoded_bodies_are_answered(
    process: Outside, path: str, encoding: str, encode: Any
) -> None:
    async with process.server.client() as client:
        body = encode(json.dumps(ROUTES[path]()).encode())
        headers = f"{JSON}content-encoding: {encoding}\r\n"
        assert (await client.request(body, path=path, headers=headers)).status == 200
