"""What the document promises is what the server answers, errors included."""
# flake8: noqa: ASYNC910 - every wait is in what is called

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from examples.server.docs_page import docs
from examples.server.openapi import document
from examples.server.schemas import Bounds
from kvlanes.engine.decisions import Contract, DecisionError, DecisionLimits, parse_decision
from tests.http.raw import Response
from tests.server.running import FLAGS, Running, nouls, post, predicates, running

BOUNDS = Bounds(("m",), 16, 255)
DOCUMENT: Any = document(BOUNDS, keys=True)


def validate(value: Any, schema: Any, whole: Any) -> None:
    """Against a schema whose references stand in the document."""
    given = {"components": whole["components"], **schema}
    jsonschema.Draft202012Validator(given).validate(value)


def valid(name: str, value: Any) -> bool:
    try:
        validate(value, {"$ref": f"#/components/schemas/{name}"}, DOCUMENT)
    except jsonschema.ValidationError:
        return False
    return True


async def described(server: Running) -> Any:
    async with server.client() as client:
        response = await client.request(method="GET", path="/openapi.json")
        return json.loads(response.body)


def judge(response: Response, whole: Any, path: str, method: str = "post") -> None:
    """The status stands in the document, and the body is of its schema."""
    promised = whole["paths"][path][method]["responses"]
    assert str(response.status) in promised, response
    schema = promised[str(response.status)]["content"]["application/json"]["schema"]
    validate(json.loads(response.body), schema, whole)
    for name in promised[str(response.status)]["headers"]:
        assert name in response.headers


def test_the_document_is_openapi_and_its_references_lead_somewhere() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    text = json.dumps(DOCUMENT)
    for part in text.split('"$ref": "#/components/schemas/')[1:]:
        assert part.partition('"')[0] in DOCUMENT["components"]["schemas"]
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert DOCUMENT["security"] == [{"key": []}]
    assert "security" not in document(BOUNDS, keys=False)


CASES: list[tuple[str, Any, str]] = [
    ("mock-fast", {}, ""),
    ("mock-stuck", {}, ""),
    ("mock-bad", {}, ""),
    ("mock-busy", {}, ""),
    ("mock-down", {}, ""),
    ("mock-refuse", {}, ""),
    ("nobody", {}, ""),
    ("mock-fast", {"unknown": 1}, ""),
    ("mock-fast", {"questions": []}, ""),
    ("mock-fast", {}, "content-encoding: br\r\n"),
]


@pytest.mark.parametrize(("model", "change", "headers"), CASES)
async def test_every_answer_is_of_its_schema(model: str, change: Any, headers: str) -> None:
    async with running(*FLAGS) as server:
        whole = await described(server)
        for path, body in (
            ("/v1/decisions", predicates(model, 2)),
            ("/v1/systemone", nouls(model, 2)),
        ):
            async with server.client() as client:
                judge(await post(client, path, body | change, headers), whole, path)


async def test_refusals_of_the_wire_and_of_the_gate_are_of_their_schemas() -> None:
    async with running(*FLAGS, "--api-key=k") as server:
        async with server.client() as client:
            key = "authorization: Bearer k\r\n"
            response = await client.request(method="GET", path="/openapi.json", headers=key)
            whole = json.loads(response.body)
        for path, body in (
            ("/v1/decisions", predicates("mock-fast", 1)),
            ("/v1/systemone", nouls("mock-fast", 1)),
        ):
            judge(await server.post(path, body), whole, path)  # no key
            too_many = predicates("mock-fast", 9) if "dec" in path else nouls("mock-fast", 9)
            for sent in (too_many, {**body, "input": "x" * 70_000}):
                judge(await server.post(path, sent, key), whole, path)
            async with server.client() as client:
                text = f"content-type: text/plain\r\n{key}"
                judge(await client.request(b"{}", path=path, headers=text), whole, path)
            async with server.client() as client:
                broken = f"content-type: application/json\r\n{key}"
                judge(await client.request(b"{", path=path, headers=broken), whole, path)
            async with server.client() as client:
                await server.occupy(client, path, _many(path, 8))
                judge(await server.post(path, body, key), whole, path)


def _many(path: str, count: int) -> Any:
    make = predicates if "dec" in path else nouls
    return make("mock-stuck", count)


async def test_what_is_read_is_of_its_schema() -> None:
    async with running(*FLAGS) as server, server.client() as client:
        whole = await described(server)
        for path in ("/v1/models", "/healthz", "/readyz"):
            judge(await client.request(method="GET", path=path), whole, path, "get")


def sound(contract: Contract, body: Any) -> bool:
    try:
        parse_decision(contract, json.dumps(body).encode(), DecisionLimits(questions=16))
    except DecisionError:
        return False
    return True


TEXT = {"type": "input_text", "text": "x"}
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
INPUTS: list[Any] = [
    "",
    [],
    None,
    [{"role": "user", "content": "x"}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": [TEXT, {"type": "input_json", "data": {"a": 1}}]}],
    [{"role": "user", "content": [{"type": "input_json", "data": 1}]}],
    [{"role": "user", "content": [{"type": "input_json", "data": []}]}],
    [{"role": "user", "content": [{"type": "input_json", "data": [1]}]}],
    [{"role": "user", "content": [TEXT | {"prompt_cache_breakpoint": {"mode": "explicit"}}]}],
    [{"role": "user", "content": [TEXT | {"prompt_cache_breakpoint": {"mode": "other"}}]}],
    [{"role": "user", "content": [TEXT | {"prompt_cache_breakpoint": None}]}],
    [{"role": "developer", "content": [TEXT]}],
    [{"role": "system", "content": [{"type": "input_json", "data": {}}]}],
    [{"role": "assistant", "content": [{"type": "output_text", "text": "x"}], "phase": None}],
    [{"role": "assistant", "content": "x", "phase": "no"}],
    [{"role": "user", "content": "x", "phase": None}],
    [{"role": "other", "content": "x"}],
    [{"role": "user", "content": "x", "type": "message"}],
    [{"role": "user", "content": "x", "type": "other"}],
    [CALL, {"type": "function_call_output", "call_id": "1", "output": "x"}],
    [CALL | {"status": "completed", "id": None}],
    [CALL | {"status": "other"}],
    [{"type": "custom_tool_call", "call_id": "1", "name": "f", "input": ""}],
]
OTHERS: list[Any] = [
    {"prompt_cache_key": None},
    {"prompt_cache_key": 1},
    {"prompt_cache_options": {"mode": None, "ttl": "30m"}},
    {"prompt_cache_options": {"ttl": None}},
    {"prompt_cache_options": {"mode": "always"}},
    {"safety_identifier": "x" * 128},
    {"safety_identifier": "x" * 129},
    {"questions": [{"type": "predicate", "instructions": "?", "name": None}]},
    {"questions": [{"type": "predicate", "instructions": [TEXT], "name": ""}]},
    {"questions": [{"type": "predicate"}]},
    {"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": True}] * 1}]},
    {
        "questions": [
            {"type": "choice", "instructions": "?", "choices": [{"value": True}, {"value": "a"}]}
        ]
    },
    {"questions": [{"type": "choice", "instructions": "?", "choices": [{"value": 1}, {}]}]},
    {"questions": [{"type": "score", "instructions": "?", "levels": [{"label": "a"}] * 2}]},
    {"questions": [{"type": "score", "instructions": "?", "levels": [{"label": "a"}] * 11}]},
    {"questions": [{"type": "predicate", "instructions": "?"}] * 17},
    {"temperature": 0},
]


@pytest.mark.parametrize("change", [*({"input": given} for given in INPUTS), *OTHERS])
def test_the_schema_and_the_parser_agree_on_decisions(change: Any) -> None:
    body = predicates("m", 1) | change
    assert valid("DecisionsRequest", body) == sound(Contract.DECISIONS, body)


NOUL = {"type": "noul"}
QUESTIONS: list[Any] = [
    NOUL,
    NOUL | {"instructions": "?"},
    NOUL | {"instructions": " "},
    NOUL | {"instructions": {}},
    NOUL | {"instructions": [1]},
    NOUL | {"instructions": None, "criteria": {"true": "yes"}},
    NOUL | {"instructions": None, "criteria": {"true": None, "false": ""}},
    NOUL | {"criteria": {"maybe": "x"}},
    NOUL | {"instructions": "?", "criteria": None},
    NOUL | {"instructions": 1},
    {"type": "choice", "criteria": {}},
    {"type": "choice", "criteria": {"": None}},
    {"type": "choice", "criteria": {"a": 1}},
    {"type": "score", "criteria": []},
    {"type": "score", "criteria": [None]},
    {"type": "score", "criteria": ["", {}, []]},
    {"type": "score", "criteria": ["a"] * 11},
    {"type": "other"},
]
STATES: list[Any] = [
    {"state": ""},
    {"state": None},
    {"state": []},
    {"state": 1},
    {"chat_template_kwargs": {"thinking": False}},
    {"chat_template_kwargs": {"thinking": 0}},
    {"chat_template_kwargs": {"other": False}},
    {"questions": {}},
    {"stream": False},
]


@pytest.mark.parametrize("change", [*({"questions": {"q": given}} for given in QUESTIONS), *STATES])
def test_the_schema_and_the_parser_agree_on_system_one(change: Any) -> None:
    body = nouls("m", 1) | change
    assert valid("SystemOneRequest", body) == sound(Contract.SYSTEMONE, body)


def test_the_readable_page_links_every_type_that_it_names() -> None:
    page = docs(DOCUMENT).body.decode()
    for part in page.split('href="#')[1:]:
        assert f'id="{part.partition(chr(34))[0]}"' in page
    for path in DOCUMENT["paths"]:
        assert path in page
    assert "<script" not in page
    assert "style=" not in page
