"""The OpenAPI document as a page to read, without a script."""

import re
from collections.abc import Callable, Iterable
from html import escape
from typing import cast

from examples.server.pages import page
from examples.server.schemas import Schema
from kvlanes.engine.decisions import Json
from kvlanes.engine.http import HttpResponse


def docs(document: Schema) -> HttpResponse:
    """The page. O(document)."""
    info, paths = cast(Schema, document["info"]), cast(Schema, document["paths"])
    components = cast(Schema, cast(Schema, document["components"])["schemas"])
    body = [
        f"<h1>{escape(str(info['title']))}</h1>",
        f"<p>{escape(str(info['description']))} The same for programs: "
        '<a href="/openapi.json">/openapi.json</a>. <a href="/">Status</a></p>',
        *(_path(path, cast(Schema, operations)) for path, operations in paths.items()),
        "<h2>Types</h2>",
        *(_component(name, cast(Schema, schema)) for name, schema in components.items()),
    ]
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>kvlanes API</title>'
        '<link rel="icon" href="/page/icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="/page/page.css">'
    )
    return page((head + '<main class="doc">' + "".join(body) + "</main></html>").encode())


def _path(path: str, operations: Schema) -> str:
    return "".join(
        f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>"
        + _operation(cast(Schema, operation))
        + "</section>"
        for method, operation in operations.items()
    )


def _operation(operation: Schema) -> str:
    asked = cast(Schema, operation.get("requestBody", {}))
    responses = cast(Schema, operation["responses"])
    rows = (
        (escape(status), _prose(str(cast(Schema, said)["description"])), _body_type(said))
        for status, said in responses.items()
    )
    takes = f"<p>Takes {_body_type(asked)}.</p>" if asked else ""
    summary = f"<p>{escape(str(operation['summary']))}.</p>"
    return summary + takes + table(("status", "when", "body"), rows)


def _body_type(carrier: Json) -> str:
    content = cast(Schema, cast(Schema, carrier).get("content", {}))
    return ", ".join(words(cast(Schema, media)["schema"]) for media in content.values())


def _component(name: str, schema: Schema) -> str:
    title = f'<section id="{escape(name)}"><h2>{escape(name)}</h2>'
    text = f"<p>{_prose(str(schema['description']))}</p>" if "description" in schema else ""
    if "properties" not in schema:
        return f"{title}{text}<p>{words(schema)}</p></section>"
    required = cast(list[Json], schema.get("required", []))
    rows = (
        (f"<code>{escape(field)}</code>", "required" if field in required else "", words(kind))
        for field, kind in cast(Schema, schema["properties"]).items()
    )
    return title + text + table(("field", "", "type"), rows) + "</section>"


def _prose(text: str) -> str:
    """Text with its names in backticks as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    titles = "".join(f'<th scope="col">{title}</th>' for title in head)
    lines = ("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table><thead><tr>'
        f"{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def words(schema: Json) -> str:
    """A schema in a few words of HTML."""
    fields = cast(Schema, schema)
    if "$ref" in fields:
        name = str(fields["$ref"]).rpartition("/")[2]
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    for key, say in _WORDS.items():
        if key in fields:
            return say(fields)
    return "any JSON"


def _typed(schema: Schema) -> str:
    kinds = schema["type"]
    names = [str(kind) for kind in kinds] if isinstance(kinds, list) else [str(kinds)]
    bounds = [
        f"{label} {schema[key]}"
        for key, label in (
            ("minItems", "at least"),
            ("minProperties", "at least"),
            ("maxItems", "at most"),
            ("maxProperties", "at most"),
            ("maxLength", "at most"),
            ("minimum", "from"),
            ("maximum", "to"),
        )
        if schema.get(key)
    ]
    inner = schema.get("items") or schema.get("additionalProperties")
    of = f" of {words(inner)}" if isinstance(inner, dict) and inner else ""
    limits = f" ({', '.join(bounds)})" if bounds else ""
    if "properties" in schema:
        of = f" of {_listed(cast(Schema, schema['properties']))}"
    return escape(" or ".join(names)) + of + limits


def _listed(values: Iterable[Json]) -> str:
    return ", ".join(f"<code>{escape(str(value))}</code>" for value in values)


_WORDS: dict[str, Callable[[Schema], str]] = {
    "const": lambda schema: _listed([schema["const"]]),
    "enum": lambda schema: _listed(cast(list[Json], schema["enum"])),
    "anyOf": lambda schema: " or ".join(map(words, cast(list[Json], schema["anyOf"]))),
    "type": _typed,
}
