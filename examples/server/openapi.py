"""The OpenAPI 3.1 document of one server."""

from collections.abc import Iterable

import kvlanes.engine.decisions as table
from examples.server.schemas import Bounds, Schema, ref, schemas
from kvlanes.engine.decisions import Contract, Fault, Json

# 499 is seen by nobody, and the paths of this document exist.
_UNSEEN = (table.CANCELLED, table.NOT_FOUND, table.METHOD)
_SUMMARIES = {
    Contract.DECISIONS: "Answer questions about one input",
    Contract.SYSTEMONE: "Answer named questions about one state",
}
_HEADERS: dict[str, Json] = {
    "x-request-id": {
        "description": "The request's id, as sent or made here.",
        "schema": {"type": "string"},
    }
}
_RETRY: dict[str, Json] = {
    "retry-after": {"description": "Seconds.", "schema": {"type": "integer"}}
}


def document(bounds: Bounds, *, keys: bool) -> Schema:
    """What this server serves, in full.

    Args:
        bounds: Its models and limits.
        keys: Whether requests need an API key.
    """
    paths: Schema = {contract.value: {"post": _decide(contract)} for contract in Contract}
    paths["/v1/models"] = {"get": _read("List the models", ref("ModelList"))}
    paths["/healthz"] = {
        "get": _read("Whether the process answers", ref("Health"), open_to_all=True)
    }
    paths["/readyz"] = {"get": _ready()}
    components: Schema = {"schemas": dict(schemas(bounds))}
    if keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    whole: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "kvlanes decision server",
            "version": "1",
            "description": "Decisions by label log probabilities, routed by cached prefixes.",
        },
        "paths": paths,
        "components": components,
    }
    return whole | ({"security": [{"key": []}]} if keys else {})


def _decide(contract: Contract) -> Schema:
    name = "Decisions" if contract is Contract.DECISIONS else "SystemOne"
    responses: Schema = {"200": _response("All answers.", ref(f"{name}Response"))}
    for status, faults in _by_status(contract).items():
        said = "; ".join(sorted({f"`{fault.code}`: {fault.message}" for fault in faults}))
        headers = _RETRY if any(fault.retry_after_seconds for fault in faults) else {}
        responses[str(status)] = _response(f"{said}.", ref(f"{name}Error"), headers)
    body: Schema = {
        "required": True,
        "content": {"application/json": {"schema": ref(f"{name}Request")}},
    }
    return {
        "operationId": contract.name.lower(),
        "summary": _SUMMARIES[contract],
        "requestBody": body,
        "responses": responses,
    }


def _by_status(contract: Contract) -> dict[int, list[Fault]]:
    """Every row of the error table that this contract can answer."""
    found: dict[int, list[Fault]] = {}
    for fault in _faults():
        openai = contract is Contract.DECISIONS
        if openai and fault == table.REFUSED:
            continue  # a refusal is one of its answers
        status = fault.status if openai else fault.systemone_status
        found.setdefault(status, []).append(fault)
    return dict(sorted(found.items()))


def _faults() -> Iterable[Fault]:
    rows = [value for value in vars(table).values() if isinstance(value, Fault)]
    rows.append(table.invalid_request("the body breaks the schema or a limit").fault)
    rows.append(table.unsupported("the model or this server cannot do it").fault)
    return [row for row in rows if row not in _UNSEEN]


def _read(summary: str, schema: Schema, *, open_to_all: bool = False) -> Schema:
    operation: Schema = {
        "summary": summary,
        "responses": {"200": _response("As it is now.", schema)},
    }
    if open_to_all:
        return operation | {"security": []}
    unauthorized = _response(table.UNAUTHORIZED.message, ref("DecisionsError"))
    return operation | {
        "responses": {"200": _response("As it is now.", schema), "401": unauthorized}
    }


def _ready() -> Schema:
    return {
        "summary": "Whether every model has a worker that may serve",
        "security": [],
        "responses": {
            "200": _response("All of them.", ref("Readiness")),
            "503": _response("Not all of them.", ref("Readiness")),
        },
    }


def _response(text: str, schema: Schema, headers: dict[str, Json] | None = None) -> Schema:
    return {
        "description": text,
        "headers": {**_HEADERS, **(headers or {})},
        "content": {"application/json": {"schema": schema}},
    }
