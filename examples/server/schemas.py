"""What goes over the wire, as JSON Schema: the one source of `/openapi.json` and `/docs`.

Two rules have no words there and stand in descriptions: no value of a choice stands twice (that
whole items are unique is less), and an output follows the call that it answers.
"""

from collections.abc import Mapping

import attrs

from kvlanes.engine.decisions import Json

Schema = dict[str, Json]

_TEXT: Schema = {"type": "string"}
_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_NULL: Schema = {"type": "null"}


@attrs.frozen
class Bounds:
    """What one server accepts: its models and the limits it was started with."""

    models: tuple[str, ...]
    questions: int
    candidates: int


def record(required: Mapping[str, Json], optional: Mapping[str, Json] | None = None) -> Schema:
    """An object with exactly these fields."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def array(items: Json, low: int = 1, high: int | None = None) -> Schema:
    bounds: Schema = {"minItems": low} if high is None else {"minItems": low, "maxItems": high}
    return {"type": "array", "items": items, **bounds}


def mapping(values: Json, low: int = 0, high: int | None = None) -> Schema:
    bounds: Schema = {"minProperties": low}
    return {
        "type": "object",
        "additionalProperties": values,
        **(bounds if high is None else bounds | {"maxProperties": high}),
    }


def one_of(*schemas: Json) -> Schema:
    return {"anyOf": list(schemas)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def kind(name: str) -> Schema:
    return {"type": "string", "const": name}


def described(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text}


def schemas(bounds: Bounds) -> dict[str, Schema]:
    """Every named schema, for one server."""
    return {
        **_parts(),
        **_items(),
        **_decisions(bounds),
        **_systemone(bounds),
        **_answers(),
        **_results(),
        **_others(bounds),
    }


def _parts() -> dict[str, Schema]:
    mark = record({"mode": kind("explicit")})
    data = one_of(mapping({}), array({"type": "object"}, 0))
    return {
        "InputText": record(
            {"type": kind("input_text"), "text": _TEXT},
            {"prompt_cache_breakpoint": one_of(mark, _NULL)},
        ),
        "InputJson": record({"type": kind("input_json"), "data": data}),
        "OutputText": record({"type": kind("output_text"), "text": _TEXT}),
        "RefusalText": record({"type": kind("refusal"), "refusal": _TEXT}),
    }


def _items() -> dict[str, Schema]:
    user = one_of(_TEXT, array(one_of(ref("InputText"), ref("InputJson"))))
    plain = one_of(_TEXT, array(ref("InputText")))
    said = one_of(_TEXT, array(one_of(ref("OutputText"), ref("RefusalText"))))
    phase: Schema = {"enum": ["commentary", "final_answer", None]}
    status: Schema = {"enum": ["in_progress", "completed", "incomplete", None]}
    maybe = one_of(_TEXT, _NULL)
    message: Schema = {"type": kind("message")}
    instructing: Schema = {"type": "string", "enum": ["system", "developer"]}
    call: Schema = {"call_id": _TEXT, "name": _TEXT}
    extra: Schema = {"id": maybe, "namespace": maybe, "status": status}
    output: Schema = {"call_id": _TEXT, "output": plain}
    after = "After a call of the same `call_id`."
    return {
        "UserMessage": record({"role": kind("user"), "content": user}, message),
        "SystemMessage": record({"role": instructing, "content": plain}, message),
        "AssistantMessage": record(
            {"role": kind("assistant"), "content": said}, message | {"phase": phase}
        ),
        "FunctionCall": record({"type": kind("function_call"), **call, "arguments": _TEXT}, extra),
        "CustomToolCall": record({"type": kind("custom_tool_call"), **call, "input": _TEXT}, extra),
        "FunctionCallOutput": described(
            record(
                {"type": kind("function_call_output"), **output}, {"id": maybe, "status": status}
            ),
            after,
        ),
        "CustomToolCallOutput": described(
            record(
                {"type": kind("custom_tool_call_output"), **output},
                {"id": maybe, "status": status},
            ),
            after,
        ),
    }


def _decisions(bounds: Bounds) -> dict[str, Schema]:
    asked: Schema = {
        "instructions": one_of(_TEXT, array(one_of(ref("InputText"), ref("InputJson"))))
    }
    name: Schema = {"name": _TEXT}
    value: Schema = {"type": ["string", "boolean"]}
    option = record({"value": value}, {"description": _TEXT})
    options = described(array(option, 2, bounds.candidates), "No value stands twice.")
    options["uniqueItems"] = True
    levels = array(record({"label": _TEXT}, {"description": _TEXT}), 2, min(10, bounds.candidates))
    caching = record({}, {"mode": {"enum": ["implicit", "explicit", None]}, "ttl": kind("30m")})
    identifier: Schema = {"type": ["string", "null"], "maxLength": 128}
    return {
        "Predicate": record({"type": kind("predicate"), **asked}, name),
        "Choice": record({"type": kind("choice"), **asked, "choices": options}, name),
        "Score": record({"type": kind("score"), **asked, "levels": levels}, name),
        "DecisionsRequest": record(
            {
                "model": _model(bounds),
                "input": one_of(_TEXT, array(one_of(*map(ref, _items())))),
                "questions": array(
                    one_of(ref("Predicate"), ref("Choice"), ref("Score")), 1, bounds.questions
                ),
            },
            {
                "prompt_cache_key": one_of(_TEXT, _NULL),
                "prompt_cache_options": one_of(caching, _NULL),
                "safety_identifier": identifier,
            },
        ),
    }


def _model(bounds: Bounds) -> Schema:
    return {"type": "string", "enum": list(bounds.models)}


def _systemone(bounds: Bounds) -> dict[str, Schema]:
    content: Schema = {"type": ["string", "object", "array"]}
    maybe: Schema = {"type": ["string", "object", "array", "null"]}
    asked: Schema = {"instructions": maybe}
    outcomes = record({}, {"true": maybe, "false": maybe})
    noul = record({"type": kind("noul")}, asked | {"criteria": one_of(outcomes, _NULL)})
    off: Schema = {"type": "boolean", "const": False}
    question = one_of(ref("NoulQuestion"), ref("ChoiceQuestion"), ref("ScoreQuestion"))
    most = bounds.candidates
    return {
        "NoulQuestion": noul | {"anyOf": _described_somewhere()},
        "ChoiceQuestion": record(
            {"type": kind("choice"), "criteria": mapping(maybe, 1, most)}, asked
        ),
        "ScoreQuestion": record(
            {"type": kind("score"), "criteria": array(content, 1, min(10, most))}, asked
        ),
        "SystemOneRequest": record(
            {
                "model": _model(bounds),
                "state": content,
                "questions": mapping(question, 1, bounds.questions),
            },
            {"chat_template_kwargs": record({}, {"thinking": off, "enable_thinking": off})},
        ),
    }


def _described_somewhere() -> list[Json]:
    """A noul has instructions or a described outcome; blank text and empty values say nothing."""
    said = one_of(
        {"type": "string", "pattern": r"\S"},
        {"type": "object", "minProperties": 1},
        {"type": "array", "minItems": 1},
    )
    places: list[Json] = [{"properties": {"instructions": said}, "required": ["instructions"]}]
    for outcome in ("true", "false"):
        within: Schema = {"type": "object", "properties": {outcome: said}, "required": [outcome]}
        places.append({"properties": {"criteria": within}, "required": ["criteria"]})
    return places


_SCORE: Schema = {"type": "number", "minimum": 0, "maximum": 9}


def _answers() -> dict[str, Schema]:
    """Of `/v1/decisions`."""
    name: Schema = {"name": one_of(_TEXT, _NULL)}
    value: Schema = {"type": ["string", "boolean"]}
    option = record({"value": value, "probability": _SHARE})
    level = record({"value": _COUNT, "label": _TEXT, "probability": _SHARE})
    choice: Schema = {"choice": value, "confidence": _SHARE, "probabilities": array(option)}
    score: Schema = {"score": _SCORE, "confidence": _SHARE, "probabilities": array(level)}
    return {
        "PredicateAnswer": record({"type": kind("predicate"), **name, "probability": _SHARE}),
        "ChoiceAnswer": record({"type": kind("choice"), **name, **choice}),
        "ScoreAnswer": record({"type": kind("score"), **name, **score}),
        "RefusalAnswer": record({"type": kind("refusal"), **name}),
    }


def _results() -> dict[str, Schema]:
    """Of `/v1/systemone`."""
    mass: Schema = {"x_label_mass": _SHARE}
    shares: Schema = {"probabilities": mapping(_SHARE, 1), "confidence": _SHARE}
    score: Schema = {"score": _SCORE, "legend": mapping({}, 1), **shares}
    return {
        "NoulResult": record({"type": kind("noul"), "noul": _SHARE}, mass),
        "ChoiceResult": record({"type": kind("choice"), "choice": _TEXT, **shares}, mass),
        "ScoreResult": record({"type": kind("score"), **score}, mass),
    }


def _others(bounds: Bounds) -> dict[str, Schema]:
    cached = record({"cached_tokens": _COUNT, "cache_write_tokens": _COUNT})
    usage: Schema = {"input_tokens": _COUNT, "output_tokens": _COUNT}
    whole = record(
        {
            **usage,
            "total_tokens": _COUNT,
            "input_tokens_details": cached,
            "output_tokens_details": record({"reasoning_tokens": _COUNT}),
        }
    )
    answer = one_of(*map(ref, ("PredicateAnswer", "ChoiceAnswer", "ScoreAnswer", "RefusalAnswer")))
    result = one_of(*map(ref, ("NoulResult", "ChoiceResult", "ScoreResult")))
    entry = record({"id": _TEXT, "object": kind("model"), "created": _COUNT, "owned_by": _TEXT})
    named = record({"name": _TEXT, "description": _TEXT, "release_date": _TEXT})
    detail = record({"loc": array(_TEXT), "msg": _TEXT, "type": _TEXT})
    fault: Schema = {"message": _TEXT, "type": _TEXT, "param": _NULL, "code": _TEXT}
    return {
        "DecisionsResponse": record({"model": _TEXT, "answers": array(answer), "usage": whole}),
        "SystemOneResponse": record(
            {"model": _TEXT, "answers": mapping(result, 1), "usage": record(usage)}
        ),
        "ModelList": record(
            {"object": kind("list"), "data": array(entry, 0), "models": array(named, 0)}
        ),
        "DecisionsError": record({"error": record(fault)}),
        "SystemOneError": one_of(
            record({"detail": array(detail)}), record({"detail": _TEXT, "code": _TEXT})
        ),
        "Health": record({"status": kind("ok"), "workers": mapping(_COUNT)}),
        "Readiness": record({"ready": {"type": "boolean"}, "models": mapping(ref("ModelState"))}),
        "ModelState": record({"ready": {"type": "boolean"}, "problems": array(_TEXT, 0)}),
    }
