"""What the rows of the contracts have in common: envelopes, headers, and bodies of both routes."""
# flake8: noqa: ASYNC910 - every request is one

import json
import re
from typing import Any

from tests.decisions.bodies import decisions, systemone
from tests.http.raw import Client, Response
from tests.server.running import nouls, predicates

ROUTES = {"/v1/decisions": decisions, "/v1/systemone": systemone}
PATHS = tuple(ROUTES)
SCHEMA = {"/v1/decisions": 400, "/v1/systemone": 422}  # the status of a broken body
INVALID, UNSUPPORTED = "invalid_request_error", "unsupported_capability"
JSON = "content-type: application/json\r\n"


def questions(path: str, model: str, count: int) -> dict[str, Any]:
    return (predicates if path == "/v1/decisions" else nouls)(model, count)


def check(response: Response, path: str, status: int, code: str) -> str:
    """The envelope, the headers; returns the message."""
    assert response.status == status, response
    assert response.headers["content-type"] == "application/json"
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", response.headers["x-request-id"])
    assert response.headers["x-typesafe-request-id"] == response.headers["x-request-id"]
    assert response.headers.get("retry-after") == ("1" if status == 429 else None)
    assert (response.headers.get("x-should-retry") == "false") == (status in (500, 504))
    said = json.loads(response.body)
    if path == "/v1/decisions":
        message = said["error"].pop("message")
        assert said == {"error": {"type": code, "param": None, "code": code}}
    elif code in (INVALID, UNSUPPORTED):
        (detail,) = said["detail"]
        message = detail.pop("msg")
        assert said.keys() == {"detail"}
        assert detail == {"loc": ["body"], "type": code}
    else:
        message = said.pop("detail")
        assert said == {"code": code}
    assert isinstance(message, str)
    return message


async def refused(
    client: Client, path: str, data: bytes, status: int, code: str, headers: str = JSON
) -> str:
    return check(await client.request(data, path=path, headers=headers), path, status, code)
