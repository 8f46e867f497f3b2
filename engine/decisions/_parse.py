"""From the bytes of a body to the neutral form."""

from kvlanes.engine.decisions._decisions import parse_decisions
from kvlanes.engine.decisions._errors import Contract, invalid_request
from kvlanes.engine.decisions._json import parse_json
from kvlanes.engine.decisions._model import Decision, DecisionLimits
from kvlanes.engine.decisions._schema import mapping
from kvlanes.engine.decisions._systemone import parse_systemone

_PARSERS = {Contract.DECISIONS: parse_decisions, Contract.SYSTEMONE: parse_systemone}


def parse_decision(contract: Contract, data: bytes, limits: DecisionLimits) -> Decision:
    """Read and check a whole request body.

    Cost: O(bytes), on the calling thread. Never a checkpoint.

    Args:
        contract: Which of the two wire forms the body must have.
        data: The decoded body.
        limits: What the request may ask for; only `questions` is judged here.

    Raises:
        DecisionError: The body is no strict JSON, breaks the schema or asks for what decisions
            cannot do; checked in this order.
    """
    body = parse_json(data)
    if "nvext" in mapping(body, "body"):
        raise invalid_request("nvext is not supported by decision APIs")
    return _PARSERS[contract](body, limits)
