"""The error table of both contracts: each condition once, and how each contract words it."""

import enum

import attrs


class Contract(enum.Enum):
    """Which public contract a request speaks; it decides statuses and the shape of errors."""

    DECISIONS = "/v1/decisions"
    SYSTEMONE = "/v1/systemone"


@attrs.frozen
class Fault:
    """One row of the table. The message is a fixed sentence and never quotes the request.

    Attributes:
        code: The machine-readable name.
        message: For people.
        status: On `/v1/decisions`.
        systemone_status: On `/v1/systemone`.
        retry_after_seconds: When asking again makes sense; `None` when it does not.
    """

    code: str
    message: str
    status: int
    systemone_status: int
    retry_after_seconds: int | None = None


class DecisionError(ValueError):
    """A request that gets no answers; `fault` says which row of the table it met."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


_REQUEST = "invalid_request_error"
_SERVER = "server_error"
_LIMIT = "rate_limit_exceeded"

BODY_LATE = Fault(_REQUEST, "request body was not received in time", 408, 408)
BODY_TOO_LARGE = Fault(_REQUEST, "request body exceeds the size limit", 413, 413)
BODY_BROKEN = Fault(_REQUEST, "request body cannot be decoded", 400, 422)
MEDIA_TYPE = Fault(_REQUEST, "content-type must be application/json", 415, 415)
ENCODING = Fault(_REQUEST, "content-encoding must be gzip, deflate, zstd or identity", 415, 415)
INVALID_JSON = Fault("invalid_json", "request body is not valid JSON", 400, 400)
NOT_READY = Fault(_SERVER, "no worker can serve this model now", 503, 503)
STOPPING = Fault(_SERVER, "server is shutting down", 503, 503)
MODEL_UNKNOWN = Fault("model_not_found", "model is not known", 404, 404)
NO_SCORING = Fault(_REQUEST, "model cannot score decisions", 400, 400)
CAPACITY = Fault(_LIMIT, "decision request capacity is exhausted", 429, 429, 1)
PREFLIGHT_BUSY = Fault(_LIMIT, "decision preparation capacity is exhausted", 429, 429, 1)
WORKER_BUSY = Fault(_LIMIT, "worker capacity is exhausted", 429, 429, 1)
BODIES_BUSY = Fault(_LIMIT, "capacity for request bodies is exhausted", 429, 429, 1)
MALFORMED_RESULT = Fault(_SERVER, "worker result is malformed", 500, 500)
IMPOSSIBLE_RESULT = Fault("invalid_executor_result", "worker result is impossible", 502, 502)
REFUSED = Fault("decision_refused", "model refused a decision", 422, 422)
DEADLINE = Fault(_SERVER, "decision request deadline exceeded", 504, 504)
CANCELLED = Fault("request_cancelled", "request was cancelled", 499, 499)
CRASH = Fault(_SERVER, "internal server error", 500, 500)
UNAUTHORIZED = Fault("invalid_api_key", "a valid API key is required", 401, 401)
NOT_FOUND = Fault("not_found", "path is not known", 404, 404)
METHOD = Fault("method_not_allowed", "method is not allowed on this path", 405, 405)


def invalid_request(message: str) -> DecisionError:
    """The request breaks the schema or a limit that no retry lifts (400, or 422 on System One)."""
    return DecisionError(Fault(_REQUEST, message, 400, 422))


def unsupported(message: str) -> DecisionError:
    """The request is well formed but asks for what this server or model cannot do (400 or 422)."""
    return DecisionError(Fault("unsupported_capability", message, 400, 422))


def too_many_branches(asked: int, limit: int) -> DecisionError:
    """More questions than there are permits at all: no retry can succeed."""
    return invalid_request(f"request needs {asked} branches; the branch limit is {limit}")
