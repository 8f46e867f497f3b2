"""The `input` of `/v1/decisions`: a string, or messages, tool calls and their outputs."""

from collections.abc import Collection

import attrs

from kvlanes.engine.decisions._errors import invalid_request
from kvlanes.engine.decisions._json import Json, compact
from kvlanes.engine.decisions._schema import array, mapping, one_of, record, text

_STATUS = ("in_progress", "completed", "incomplete", None)
_PARTS = {
    "user": ("input_text", "input_json", "input_image"),
    "system": ("input_text",),
    "developer": ("input_text",),
    "assistant": ("output_text", "refusal"),
}
# Type of a call -> the field that holds what the tool was given.
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}


@attrs.frozen
class Parts:
    """What a list of content parts amounts to."""

    text: str
    images: int = 0
    breakpoints: int = 0


class InputReader:
    """Reads one `input`; counts images and cache breakpoints on the way."""

    def __init__(self) -> None:
        self.images = 0
        self.breakpoints = 0
        self._calls: dict[tuple[str, str], str] = {}  # (type of call, call id) -> tool name

    def context(self, value: Json) -> str:
        """The text that begins every branch; one user message reads as its bare text.

        Call ids stay out of it: they are random, and would end every prefix they stand in.
        """
        if isinstance(value, str):
            return value
        found = [self._item(entry, f"input[{i}]") for i, entry in enumerate(array(value, "input"))]
        if len(found) == 1 and found[0][0] == "user":
            return found[0][1]
        return "\n\n".join(f"{speaker}: {said}" for speaker, said in found)

    def _item(self, value: Json, where: str) -> tuple[str, str]:
        kind = text(mapping(value, where).get("type", "message"), f"{where}.type")
        if kind == "message":
            return self._message(value, where)
        if kind in _CALLS:
            return self._call(kind, value, where)
        if kind in _OUTPUTS:
            return self._output(kind, value, where)
        raise invalid_request(f"{where}.type is not supported")

    def _message(self, value: Json, where: str) -> tuple[str, str]:
        role = text(mapping(value, where).get("role"), f"{where}.role")
        one_of(role, f"{where}.role", tuple(_PARTS))
        phased = ("phase",) if role == "assistant" else ()
        fields = record(value, where, ("role", "content"), ("type", *phased))
        one_of(fields.get("phase"), f"{where}.phase", ("commentary", "final_answer", None))
        return role, self._content(fields["content"], f"{where}.content", _PARTS[role])

    def _call(self, kind: str, value: Json, where: str) -> tuple[str, str]:
        given = _CALLS[kind]
        fields = record(
            value, where, ("type", "call_id", "name", given), ("id", "namespace", "status")
        )
        self._optional(fields, where)
        name = text(fields["name"], f"{where}.name")
        self._calls[kind, text(fields["call_id"], f"{where}.call_id")] = name
        return f"call {name}", text(fields[given], f"{where}.{given}")

    def _output(self, kind: str, value: Json, where: str) -> tuple[str, str]:
        fields = record(value, where, ("type", "call_id", "output"), ("id", "status"))
        self._optional(fields, where)
        call = _OUTPUTS[kind], text(fields["call_id"], f"{where}.call_id")
        if call not in self._calls:
            raise invalid_request(f"{where}.call_id names no call before it")
        said = self._content(fields["output"], f"{where}.output", ("input_text", "input_image"))
        return f"result {self._calls[call]}", said

    def _optional(self, fields: dict[str, Json], where: str) -> None:
        for name in ("id", "namespace"):
            if fields.get(name) is not None:
                text(fields[name], f"{where}.{name}")
        one_of(fields.get("status"), f"{where}.status", _STATUS)

    def _content(self, value: Json, where: str, allowed: Collection[str]) -> str:
        if isinstance(value, str):
            return value
        found = parts_text(value, where, allowed)
        self.images += found.images
        self.breakpoints += found.breakpoints
        return found.text


def parts_text(value: Json, where: str, allowed: Collection[str]) -> Parts:
    """A nonempty list of content parts as text, one line each."""
    found = [_part(part, f"{where}[{i}]", allowed) for i, part in enumerate(array(value, where))]
    return Parts(
        "\n".join(part.text for part in found if not part.images),
        sum(part.images for part in found),
        sum(part.breakpoints for part in found),
    )


def _part(value: Json, where: str, allowed: Collection[str]) -> Parts:
    kind = text(mapping(value, where).get("type"), f"{where}.type")
    one_of(kind, f"{where}.type", allowed)
    match kind:
        case "input_json":
            return Parts(_data(record(value, where, ("type", "data"))["data"], f"{where}.data"))
        case "input_image":
            optional = ("detail", "prompt_cache_breakpoint")
            text(record(value, where, ("type", "image_url"), optional)["image_url"], where)
            return Parts("", images=1)
        case "refusal":
            said = record(value, where, ("type", "refusal"))["refusal"]
            return Parts(text(said, f"{where}.refusal"))
        case "output_text":
            return Parts(text(record(value, where, ("type", "text"))["text"], f"{where}.text"))
        case _:
            fields = record(value, where, ("type", "text"), ("prompt_cache_breakpoint",))
            mark = _mark(fields.get("prompt_cache_breakpoint"), f"{where}.prompt_cache_breakpoint")
            return Parts(text(fields["text"], f"{where}.text"), breakpoints=mark)


def _mark(value: Json, where: str) -> int:
    if value is None:
        return 0
    one_of(record(value, where, ("mode",))["mode"], f"{where}.mode", ("explicit",))
    return 1


def _data(value: Json, where: str) -> str:
    if isinstance(value, list):
        for i, entry in enumerate(value):
            mapping(entry, f"{where}[{i}]")
    elif not isinstance(value, dict):
        raise invalid_request(f"{where} must be an object or an array of objects")
    return compact(value)
