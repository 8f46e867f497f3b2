"""The wire form of `POST /v1/systemone`, read into the neutral form."""

from kvlanes.engine.decisions._errors import Contract, DecisionError, invalid_request, unsupported
from kvlanes.engine.decisions._json import Json, compact
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
from kvlanes.engine.decisions._schema import array, counted, mapping, nonblank, record, text

_MEDIA = ("assets", "images")
_THINKING = ("thinking", "enable_thinking")


def parse_systemone(body: Json, limits: DecisionLimits) -> Decision:
    """The decision that a System One body asks for.

    Cost: O(body). Never a checkpoint.

    Raises:
        DecisionError: The body breaks the schema or a limit (422 `invalid_request_error`), or it
            is sound and asks for images, boxes or thinking (422 `unsupported_capability`).
    """
    fields = record(
        body, "body", ("model", "state", "questions"), (*_MEDIA, "chat_template_kwargs")
    )
    reader = _Reader()
    decision = Decision(
        contract=Contract.SYSTEMONE,
        model=nonblank(fields["model"], "model"),
        context=_content(fields["state"], "state"),
        questions=reader.questions(fields["questions"], limits),
    )
    if "chat_template_kwargs" in fields:
        reader.template(fields["chat_template_kwargs"])
    if any(name in fields for name in _MEDIA):
        reader.unsupported.append(unsupported("images are not supported"))
    reader.finish()
    return decision


def _content(value: Json, where: str) -> str:
    """Text as it is, objects and arrays as compact JSON in the order they came."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return compact(value)
    raise invalid_request(f"{where} must be a string, an object or an array")


def _optional(value: Json, where: str) -> str:
    return "" if value is None else _content(value, where)


def _blank(value: Json) -> bool:
    return not (value.strip() if isinstance(value, str) else value)


class _Reader:
    """Schema faults are raised at once; missing capabilities wait until the schema is known good.

    So which of two faults is reported follows the table's order, not the order of fields.
    """

    def __init__(self) -> None:
        self.unsupported: list[DecisionError] = []

    def finish(self) -> None:
        if self.unsupported:
            raise self.unsupported[0]

    def template(self, value: Json) -> None:
        for name, on in record(value, "chat_template_kwargs", (), _THINKING).items():
            if not isinstance(on, bool):
                raise invalid_request(f"chat_template_kwargs.{name} must be a boolean")
            if on:
                self.unsupported.append(unsupported("thinking is not supported"))

    def questions(self, value: Json, limits: DecisionLimits) -> tuple[Question, ...]:
        named = mapping(value, "questions")
        counted(len(named), "questions", 1, limits.questions)
        # By ordinal: a question's name is the caller's text and has no place in a message.
        return tuple(
            self._question(name, question, f"questions[{i}]")
            for i, (name, question) in enumerate(named.items())
        )

    def _question(self, name: str, value: Json, where: str) -> Question:
        match text(mapping(value, where).get("type"), f"{where}.type"):
            case "noul":
                return self._noul(name, value, where)
            case "choice":
                return self._choice(name, value, where)
            case "score":
                return self._score(name, value, where)
            case "box":
                record(value, where, ("type",), ("instructions",))
                self.unsupported.append(unsupported("box questions are not supported"))
                return Predicate(name, "")
            case _:
                raise invalid_request(f"{where}.type must be noul, choice or score")

    def _noul(self, name: str, value: Json, where: str) -> Predicate:
        fields = record(value, where, ("type",), ("instructions", "criteria"))
        criteria: dict[str, Json] = {}
        if fields.get("criteria") is not None:
            criteria = record(fields["criteria"], f"{where}.criteria", (), ("true", "false"))
        if all(_blank(said) for said in (fields.get("instructions"), *criteria.values())):
            raise invalid_request(f"{where} needs instructions or a described outcome")
        return Predicate(
            name,
            _optional(fields.get("instructions"), f"{where}.instructions"),
            yes=_optional(criteria.get("true"), f"{where}.criteria.true"),
            no=_optional(criteria.get("false"), f"{where}.criteria.false"),
        )

    def _choice(self, name: str, value: Json, where: str) -> Choice:
        fields = record(value, where, ("type", "criteria"), ("instructions",))
        criteria = mapping(fields["criteria"], f"{where}.criteria")
        counted(len(criteria), f"{where}.criteria", 1, 255)
        options = (
            Option(option, _optional(described, f"{where}.criteria[{i}]"))
            for i, (option, described) in enumerate(criteria.items())
        )
        instructions = _optional(fields.get("instructions"), f"{where}.instructions")
        return Choice(name, instructions, tuple(options))

    def _score(self, name: str, value: Json, where: str) -> Score:
        fields = record(value, where, ("type", "criteria"), ("instructions",))
        levels = (
            Level(_content(level, f"{where}.criteria[{i}]"), level)
            for i, level in enumerate(array(fields["criteria"], f"{where}.criteria", 1, 10))
        )
        instructions = _optional(fields.get("instructions"), f"{where}.instructions")
        return Score(name, instructions, tuple(levels))
