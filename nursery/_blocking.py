"""Backends that block: each lane's loop runs in a thread of its own."""

import math
import queue
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Protocol

import attrs
import trio

from kvlanes.indexer import Overlap, Prompt, require_count
from kvlanes.nursery._bare_nursery import open_bare_nursery
from kvlanes.nursery._owner import logger
from kvlanes.nursery._receiver import LaneTask, TaskReceiver


@attrs.define(eq=False)
class ThreadReceiver:
    """The thread's end of a `TaskReceiver`: iterate over it, acknowledge, iterate on.

    Its inbox is the one queue more that a thread costs; it never holds more than one task.
    """

    _token: trio.lowlevel.TrioToken
    _old_loop: bool
    # Shielded: the thread is told that it is over, and only then does its time begin to run.
    joining: trio.CancelScope = attrs.Factory(lambda: trio.CancelScope(shield=True))
    began: bool = False  # written by the thread
    _inbox: "queue.SimpleQueue[LaneTask | None]" = attrs.Factory(queue.SimpleQueue)
    _ready: trio.Event = attrs.Factory(trio.Event)  # for the next task

    def receive(self) -> LaneTask | None:
        """Block until there is a task; `None` when the lane has ended. For a thread.

        Asking says that the task before is done, so it must be acknowledged by now.
        """
        if not self._old_loop:
            self._say_ready(self._ready)
        return self._inbox.get()

    def __iter__(self) -> Iterator[LaneTask]:
        return iter(self.receive, None)

    def _say_ready(self, event: trio.Event) -> None:
        # After the run's end an abandoned thread reaches nobody; `end` has told it to stop.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(event.set)

    async def pump(self, tasks: TaskReceiver) -> None:
        """Carry tasks to the thread, each when it is ready for it. Always a checkpoint."""
        if not self._old_loop:
            await self._until_ready()
        async for task in tasks:
            if self._old_loop:
                task.notify = partial(self._say_ready, self._ready)
            self._inbox.put(task)
            await self._until_ready()

    async def _until_ready(self) -> None:
        await self._ready.wait()
        self._ready = trio.Event()

    def end(self, join_seconds: float) -> None:
        """Tell the thread that it is over, and how long it will be waited for."""
        self._inbox.put(None)
        self.joining.deadline = trio.current_time() + join_seconds


class BlockingServer(Protocol):
    """What `BlockingBackend` runs: `serve` is called in a thread, once a lane."""

    @property
    def block_size(self) -> int: ...

    @property
    def reads_in_caller(self) -> bool: ...

    def overlap(self, prompt: Prompt) -> Overlap: ...

    def serve(self, tasks: ThreadReceiver) -> None: ...


class BlockingBackend:
    """Serves lanes from a backend that blocks, in threads that no other work can use up.

    A thread cannot be cancelled. When a lane ends or gives up, its thread is told so at its next
    `receive`; one that does not get there in time is abandoned, counted and logged.

    Args:
        server: What works in the threads. It must allow as many calls of `serve` at a time as
            there are lanes.
        old_loop: The server may ask for tasks before it has acknowledged what it has, and may
            acknowledge from any thread: so each acknowledgement, not the asking, brings the next.
        threads: The most threads at a time, abandoned ones included. Each lane needs one: without
            it the lane waits until another thread has ended.
        join_seconds: How long a thread may take to end when it is told to.

    Raises:
        ValueError: `threads` is below 1, or `join_seconds` negative or not finite.
    """

    def __init__(
        self,
        server: BlockingServer,
        *,
        old_loop: bool = False,
        threads: int = 64,
        join_seconds: float = 1.0,
    ) -> None:
        require_count("threads", threads, 1)
        if not 0 <= join_seconds < math.inf:
            raise ValueError(f"join_seconds must be finite and >= 0, got {join_seconds}")
        self._join_seconds = join_seconds
        self._server = server
        self._old_loop = old_loop
        self._limiter = trio.CapacityLimiter(threads)
        self.abandoned = 0

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._server.block_size

    @property
    def reads_in_caller(self) -> bool:
        """Whether the server's `overlap` is safe to call while its threads work."""
        return self._server.reads_in_caller

    def overlap(self, prompt: Prompt) -> Overlap:
        """The server's answer, from the calling thread. Never a checkpoint."""
        return self._server.overlap(prompt)

    @property
    def live_threads(self) -> int:
        """Threads that have not ended, abandoned ones included."""
        return self._limiter.statistics().borrowed_tokens

    async def serve(self, tasks: TaskReceiver) -> None:
        """One lane's thread, from its start to its end. Always a checkpoint."""
        thread = ThreadReceiver(trio.lowlevel.current_trio_token(), self._old_loop)
        async with open_bare_nursery() as nursery:
            nursery.start_soon(self._run, thread, nursery.cancel_scope)
            try:
                await thread.pump(tasks)
            finally:
                thread.end(self._join_seconds)

    async def _run(self, thread: ThreadReceiver, serving: trio.CancelScope) -> None:
        with thread.joining:
            await trio.to_thread.run_sync(
                self._serve_in_thread, thread, limiter=self._limiter, abandon_on_cancel=True
            )
        if thread.joining.cancelled_caught and thread.began:  # or it only waited for its turn
            self.abandoned += 1
            logger.warning("gave up on a lane's thread; %d are alive", self.live_threads)
        serving.cancel()  # it ended by itself: nobody is left to hand tasks to

    def _serve_in_thread(self, thread: ThreadReceiver) -> None:
        thread.began = True
        self._server.serve(thread)
