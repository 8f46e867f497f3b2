"""The wire form of `POST /v1/decisions`, read into the neutral form."""

from kvlanes.engine.decisions._errors import Contract, DecisionError, invalid_request, unsupported
from kvlanes.engine.decisions._input import InputReader, parts_text
from kvlanes.engine.decisions._json import Json
from kvlanes.engine.decisions._model import (
    Choice,
    Decision,
    DecisionLimits,
    Level,
    Option,
    Predicate,
    Question,
    Score,
)
from kvlanes.engine.decisions._schema import array, mapping, nonblank, one_of, record, text

_OPTIONAL = ("prompt_cache_key", "prompt_cache_options", "safety_identifier")
_QUESTION_PARTS = ("input_text", "input_json", "input_image")


def parse_decisions(body: Json, limits: DecisionLimits) -> Decision:
    """The decision that an OpenAI body asks for.

    Cost: O(body). Never a checkpoint.

    Raises:
        DecisionError: The body breaks the schema or a limit (400 `invalid_request_error`), or it
            is sound and asks for images (400 `unsupported_capability`).
    """
    missing: list[DecisionError] = []
    fields = record(body, "body", ("model", "input", "questions"), _OPTIONAL)
    model = nonblank(fields["model"], "model")
    reader = InputReader()
    context = reader.context(fields["input"])
    entries = array(fields["questions"], "questions", 1, limits.questions)
    questions = tuple(
        _question(entry, f"questions[{i}]", missing) for i, entry in enumerate(entries)
    )
    _identifier(fields.get("safety_identifier"))
    explicit = _explicit_caching(fields.get("prompt_cache_options"))
    cache_key = fields.get("prompt_cache_key")
    decision = Decision(
        contract=Contract.DECISIONS,
        model=model,
        context=context,
        questions=questions,
        cache_key=None if cache_key is None else text(cache_key, "prompt_cache_key"),
        reuse=not explicit or reader.breakpoints > 0,
    )
    if reader.images or missing:
        raise unsupported("images are not supported")
    return decision


def _identifier(value: Json) -> None:
    """Opaque to us: neither an identity nor part of a cache key."""
    if value is not None and len(text(value, "safety_identifier")) > 128:
        raise invalid_request("safety_identifier must not exceed 128 characters")


def _explicit_caching(value: Json) -> bool:
    """Whether only marked prefixes may be reused: without a mark, nothing is."""
    if value is None:
        return False
    options = record(value, "prompt_cache_options", (), ("mode", "ttl"))
    one_of(options.get("mode"), "prompt_cache_options.mode", ("implicit", "explicit", None))
    one_of(options.get("ttl", "30m"), "prompt_cache_options.ttl", ("30m",))
    return options.get("mode") == "explicit"


def _question(value: Json, where: str, missing: list[DecisionError]) -> Question:
    match text(mapping(value, where).get("type"), f"{where}.type"):
        case "predicate":
            fields = record(value, where, ("type", "instructions"), ("name",))
            return Predicate(_name(fields, where), _instructions(fields, where, missing))
        case "choice":
            fields = record(value, where, ("type", "instructions", "choices"), ("name",))
            options = _options(fields["choices"], f"{where}.choices")
            return Choice(_name(fields, where), _instructions(fields, where, missing), options)
        case "score":
            fields = record(value, where, ("type", "instructions", "levels"), ("name",))
            levels = _levels(fields["levels"], f"{where}.levels")
            return Score(_name(fields, where), _instructions(fields, where, missing), levels)
        case _:
            raise invalid_request(f"{where}.type must be predicate, choice or score")


def _name(fields: dict[str, Json], where: str) -> str | None:
    """May be left out, empty or used twice; an explicit null is an error."""
    return text(fields["name"], f"{where}.name") if "name" in fields else None


def _instructions(fields: dict[str, Json], where: str, missing: list[DecisionError]) -> str:
    value = fields["instructions"]
    if isinstance(value, str):
        return value
    found = parts_text(value, f"{where}.instructions", _QUESTION_PARTS)
    if found.images:
        missing.append(unsupported("images are not supported"))
    return found.text


def _options(value: Json, where: str) -> tuple[Option, ...]:
    found = tuple(
        _option(entry, f"{where}[{i}]") for i, entry in enumerate(array(value, where, 2, 255))
    )
    # By type and value: in Python True == 1, and on the wire true is not "true".
    if len({(type(option.value), option.value) for option in found}) != len(found):
        raise invalid_request(f"{where} must have unique values")
    return found


def _option(entry: Json, where: str) -> Option:
    fields = record(entry, where, ("value",), ("description",))
    value = fields["value"]
    if not isinstance(value, str | bool):
        raise invalid_request(f"{where}.value must be a string or a boolean")
    return Option(value, text(fields.get("description", ""), f"{where}.description"))


def _levels(value: Json, where: str) -> tuple[Level, ...]:
    entries = array(value, where, 2, 10)
    return tuple(_level(entry, f"{where}[{i}]") for i, entry in enumerate(entries))


def _level(entry: Json, where: str) -> Level:
    fields = record(entry, where, ("label",), ("description",))
    label = text(fields["label"], f"{where}.label")
    described = text(fields.get("description", ""), f"{where}.description")
    return Level(f"{label}: {described}" if described else label, label)
