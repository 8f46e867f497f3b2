"""How a batch gets into its lane."""
# flake8: noqa: ASYNC910 - an idle lane applies in the caller

from collections.abc import Callable

from kvlanes.engine.feeds._sink import apply_batch
from kvlanes.indexer import Applied, Clear, Mutation, Prompt, RadixIndex, Rank, Remove, Store
from kvlanes.nursery import open_lanes


class CallsBack(RadixIndex):
    """An index that does something else, once, in the middle of a write."""

    def __init__(self) -> None:
        super().__init__(16)
        self.seen: list[str] = []
        self.then: Callable[[], object] | None = None

    def apply(self, mutation: Mutation, now: float) -> Applied:
        self.seen.append(type(mutation).__name__)
        then, self.then = self.then, None
        if then is not None:
            then()
        return super().apply(mutation, now)


async def test_a_batch_goes_on_behind_what_the_index_has_queued_meanwhile() -> None:
    index, rank, prompt = CallsBack(), Rank("a"), Prompt(range(32), 16)
    names = prompt.sequence_hashes
    async with open_lanes(lambda: index, lanes=1) as lanes:
        index.then = lambda: lanes.post(Clear(Rank("b")))
        batch: list[Mutation] = [Store(rank, None, prompt.blocks, names), Remove(rank, names[1:])]
        done = await apply_batch(lanes, lanes.attach(rank), batch)
        assert done == [Applied(applied=2), Applied(applied=1)]
        assert index.seen == ["Store", "Clear", "Remove"]  # and none of them twice
