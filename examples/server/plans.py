"""What preflight makes of a request, for simulated and for real workers alike."""

from collections.abc import Mapping

import attrs

from kvlanes.engine import Prompt
from kvlanes.engine.decisions import Branch, Json


@attrs.frozen
class Prepared:
    """One branch, ready to be routed and sent."""

    branch: Branch
    prompt: Prompt


@attrs.frozen
class Plan:
    """All branches of a request.

    Attributes:
        branches: In the order of the questions. Where nobody tokenises there is one, with a
            prompt to route by and nothing to score.
        tokenized: Whether the branches can be scored.
        fields: The body, for an engine that answers the whole request itself.
    """

    branches: tuple[Prepared, ...]
    tokenized: bool = True
    fields: Mapping[str, Json] = attrs.field(factory=dict, repr=False)
