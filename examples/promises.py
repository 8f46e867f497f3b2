"""What kvlanes promises, each beside the obvious code that breaks it.

Run `python -m examples.promises`. Both sides of a promise see the same thing happen.
"""

from collections import deque

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from examples import _promises_admission
from kvlanes.engine import Lease, Prompt, RadixIndex, Rank, Store, open_lanes

GPU = Rank("gpu-0")
PROMPT = Prompt(list(range(64)), 16)
TTL_SECONDS = 10.0
CLOCK = MockClock()  # virtual time: a jump is a wait


# Promise: an expiry that waits in a queue never removes what was refreshed meanwhile.


async def obvious_expiry() -> None:
    """A timer puts a removal in the worker's queue; by the time it is read it is out of date."""
    held, queue = set[Rank](), deque[tuple[str, Rank]]()

    async def expire() -> None:
        await trio.sleep(TTL_SECONDS)
        queue.append(("remove", GPU))

    async with trio.open_nursery() as nursery:
        queue.append(("store", GPU))
        nursery.start_soon(expire)
        await wait_all_tasks_blocked()
        CLOCK.jump(TTL_SECONDS)
        queue.append(("store", GPU))  # refreshed in time
        await wait_all_tasks_blocked()  # and only now the timer fires
    for what, rank in queue:
        held.add(rank) if what == "store" else held.discard(rank)
    print(f"obvious: refreshed, and {len(held)} workers hold the prompt")


async def ordered_expiry() -> None:
    """The lane compares the deadline where it removes; a refresh has moved it."""
    async with open_lanes(lambda: RadixIndex(16), ttl_seconds=TTL_SECONDS) as lanes:
        store = Store(GPU, None, PROMPT.blocks, lease=Lease())
        await lanes.apply(store)
        await wait_all_tasks_blocked()
        CLOCK.jump(TTL_SECONDS)
        await lanes.apply(store)  # refreshed, while the expiry is already due
        await wait_all_tasks_blocked()
        print(
            f"lanes: refreshed, and {len(lanes.overlap(PROMPT).scores())} workers hold the prompt"
        )
        CLOCK.jump(TTL_SECONDS + 1)
        await wait_all_tasks_blocked()
        print(f"lanes: {len(lanes.overlap(PROMPT).scores())} hold it when nobody refreshes")


# Promise: a caller that hangs up never leaves coverage behind that nothing will end.


async def obvious_store() -> None:
    """The caller starts the timer after the answer; one that hangs up before it never does."""
    held = set[Rank]()
    send, receive = trio.open_memory_channel[tuple[Rank, trio.Event]](10)

    async def worker() -> None:
        async for rank, done in receive:
            held.add(rank)
            done.set()

    async def end_lease(rank: Rank) -> None:
        await trio.sleep(TTL_SECONDS)
        held.discard(rank)

    async def store(rank: Rank, timers: trio.Nursery) -> None:
        done = trio.Event()
        await send.send((rank, done))
        await done.wait()
        timers.start_soon(end_lease, rank)

    async with trio.open_nursery() as timers:
        with trio.CancelScope() as caller:
            async with trio.open_nursery() as callers:
                callers.start_soon(store, GPU, timers)
                await wait_all_tasks_blocked()
                caller.cancel()
        timers.start_soon(worker)  # it had other work before this
        await wait_all_tasks_blocked()
        CLOCK.jump(TTL_SECONDS + 1)
        await wait_all_tasks_blocked()
        timers.cancel_scope.cancel()
    print(f"obvious: {len(held)} workers hold the prompt for ever")


async def ordered_store() -> None:
    """Store, lease and answer are one step of the lane; a caller is only told about it."""
    async with open_lanes(lambda: RadixIndex(16), lanes=1, in_place=False) as lanes:
        store = Store(GPU, None, PROMPT.blocks, lease=Lease(TTL_SECONDS))
        with trio.CancelScope() as caller:
            for number in range(1000):  # the lane has other work before this
                lanes.post(
                    Store(Rank("gpu-1"), None, Prompt([number] * 16, 16).blocks, lease=Lease())
                )
            trio.lowlevel.current_trio_token().run_sync_soon(caller.cancel)
            await lanes.apply(store)
        await lanes.flush()
        held = len(lanes.overlap(PROMPT).scores())
        print(f"lanes: hung up {caller.cancelled_caught}, and {held} workers hold the prompt")
        CLOCK.jump(TTL_SECONDS + 1)
        await wait_all_tasks_blocked()
        print(f"lanes: {len(lanes.overlap(PROMPT).scores())} hold it once its lease is over")


def main() -> None:
    trio.run(obvious_expiry, clock=CLOCK)
    trio.run(ordered_expiry, clock=CLOCK)
    trio.run(obvious_store, clock=CLOCK)
    trio.run(ordered_store, clock=CLOCK)
    _promises_admission.main()


if __name__ == "__main__":
    main()
