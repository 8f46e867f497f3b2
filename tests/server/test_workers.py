"""Simulated workers really cache, really evict, and answer the same every time."""

import math
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.server.behaviour import Behaviour, parse_mock
from examples.server.tokens import tokenize
from examples.server.workers import PrefixCache, Scored, SimulatedWorker
from tests.support.profiles import budget

PROMPTS = st.lists(st.integers(0, 2), min_size=0, max_size=12)


@given(st.lists(PROMPTS, max_size=20), st.integers(1, 6))
@settings(max_examples=budget(ci=100, deep=5000))
def test_the_cache_is_a_bounded_lru_of_whole_prefixes(
    prompts: list[list[int]], capacity_blocks: int
) -> None:
    """Against a model that names a block by the tokens up to its end."""
    cache = PrefixCache(capacity_blocks, block_size=2)
    model: OrderedDict[tuple[int, ...], None] = OrderedDict()
    for tokens in prompts:
        prefixes = [tuple(tokens[:end]) for end in range(2, len(tokens) + 1, 2)]
        chain = cache.chain(tokens, "s")
        assert len(chain) == len(prefixes)
        held = [prefix in model for prefix in prefixes]
        assert held == sorted(held, reverse=True), "what is cached is a prefix"
        assert cache.cached_tokens(chain) == 2 * sum(held)
        cache.keep(chain)
        for prefix in reversed(prefixes):
            model[prefix] = None
            model.move_to_end(prefix)
        while len(model) > capacity_blocks:
            model.popitem(last=False)
        assert len(cache) == len(model) <= capacity_blocks


def test_another_salt_is_another_prefix() -> None:
    cache = PrefixCache(10, 2)
    cache.keep(cache.chain([1, 2, 3, 4], "a"))
    assert cache.cached_tokens(cache.chain([1, 2, 3, 4], "a")) == 4
    assert cache.cached_tokens(cache.chain([1, 2, 3, 4], "b")) == 0


async def scored(model: str, tokens: list[int], labels: list[int], **how: bool) -> Scored:
    worker = SimulatedWorker(model, Behaviour(**how), PrefixCache(100, 2))
    found = await worker.score(0, tokens, labels, "s")
    assert isinstance(found, Scored)
    return found


async def test_scores_are_a_distribution_over_a_bigger_vocabulary() -> None:
    found = await scored("m", [1, 2, 3], list(range(1, 256)))
    mass = math.fsum(math.exp(value) for value in found.logprobs)
    assert 0.95 < mass < 1.0
    assert len(set(found.logprobs)) == 255


async def test_scores_depend_on_model_prompt_and_label_only() -> None:
    found = await scored("m", [1, 2, 3], [7, 8])
    assert found == await scored("m", [1, 2, 3], [7, 8])
    others = [
        await scored("n", [1, 2, 3], [7, 8]),
        await scored("m", [1, 2, 4], [7, 8]),
        await scored("m", [1, 2, 3], [8, 7]),
    ]
    assert all(other.logprobs != found.logprobs for other in others)
    assert others[2].logprobs == found.logprobs[::-1]


def test_tokens_are_the_same_everywhere_and_short() -> None:
    assert tokenize("yes") == [1978086825]
    assert len(tokenize("A customer was charged twice.")) == 6
    assert tokenize("ab cd")[0] == tokenize("ab")[0]


@pytest.mark.parametrize(
    ("text", "name", "behaviour"),
    [
        ("m", "m", Behaviour()),
        ("m:", "m", Behaviour()),
        ("m:latency=0.5,stubborn=2,busy", "m", Behaviour(latency=0.5, stubborn=2, busy=True)),
        ("m:down,bad,refuse,tie", "m", Behaviour(down=True, bad=True, refuse=True, tie=True)),
        ("m:impossible,crash,mute", "m", Behaviour(impossible=True, crash=True, mute=True)),
    ],
)
def test_a_mock_is_read(text: str, name: str, behaviour: Behaviour) -> None:
    assert parse_mock(text) == (name, behaviour)


@pytest.mark.parametrize(
    "text",
    ["", ":busy", "m:slow", "m:latency", "m:latency=x", "m:latency=-1", "m:latency=inf",
     "m:latency=nan", "m:busy=1", "m:busy,busy"],
)  # fmt: skip
def test_another_mock_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_mock(text)
