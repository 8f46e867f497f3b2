"""What a backend that waits is given: tasks, one at a time, each to be acknowledged."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from kvlanes.indexer import Clear, Overlap, Prompt, Rank, Remove, Store
from kvlanes.nursery._errors import AcknowledgementMissing


class Departure(NamedTuple):
    """The rank is gone, with all it held."""

    rank: Rank


class Read(NamedTuple):
    """Somebody wants to know the overlap with a prompt; only where reads run in the lane."""

    prompt: Prompt


Work: TypeAlias = Store | Remove | Clear | Departure | Read


@attrs.define(eq=False)
class LaneTask:
    """One thing for a backend to do, and its acknowledgement.

    Attributes:
        work: Stores carry no lease and name their blocks by the published sequence hashes;
            leases and the engines' own names are kept by the lane.
    """

    work: Work
    acknowledged: bool = False
    overlap: Overlap | None = None
    notify: Callable[[], None] = lambda: None  # set by whoever carries the task to a thread

    @enable_ki_protection
    def acknowledge(self, overlap: Overlap | None = None) -> None:
        """Say that the work is done, with the overlap if it was a `Read`. From any thread.

        The lane acts on it when the backend asks for its next task, or ends. After the lane has
        given up on the backend it reaches nobody.

        Raises:
            ValueError: A `Read` without an overlap; it stays unacknowledged.
        """
        if isinstance(self.work, Read) and overlap is None:
            raise ValueError("a Read is acknowledged with the overlap that was found")
        self.overlap = overlap
        self.acknowledged = True
        self.notify()


class Desk(Protocol):
    """What a receiver needs of its lane."""

    def next_task(self, receiver: "TaskReceiver") -> LaneTask | None: ...
    def settle(self, task: LaneTask) -> None: ...
    def is_over(self) -> bool: ...
    async def pause(self) -> None: ...


class TaskReceiver:
    """Hands a backend its tasks, and does the lane's bookkeeping between them.

    Use it as an async iterator, in one task: the iteration ends when the lane does. It belongs to
    one call of `serve`; afterwards it hands out nothing.
    """

    __slots__ = ("_closed", "_desk", "_task")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._task: LaneTask | None = None
        self._closed = False

    @enable_ki_protection
    async def receive(self) -> LaneTask:
        """The next task. Always a checkpoint; a cancelled call loses nothing.

        Raises:
            AcknowledgementMissing: The task before was not acknowledged. Waiting for it could
                wait for ever, since whoever asks here is the one who owes it.
            trio.EndOfChannel: The lane has ended.
            trio.ClosedResourceError: The lane has given up on this backend.
        """
        self._account()
        # Before anything is taken, not after: a task must never be lost to a cancellation.
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                ended = self._desk.is_over()
                raise trio.EndOfChannel if ended else trio.ClosedResourceError("serve is over")
            self._task = self._desk.next_task(self)
            if self._task is not None:
                return self._task
            if self._desk.is_over():
                raise trio.EndOfChannel
            await self._desk.pause()

    def __aiter__(self) -> "TaskReceiver":
        return self

    async def __anext__(self) -> LaneTask:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    @enable_ki_protection
    def _account(self) -> None:
        if self._closed:
            return
        task, self._task = self._task, None
        if task is None:
            return
        if not task.acknowledged:
            self._closed, self._task = True, task  # so `close` will say that it is unsettled
            raise AcknowledgementMissing(f"{type(task.work).__name__} was not acknowledged")
        self._desk.settle(task)

    @enable_ki_protection
    def close(self) -> bool:
        """The call of `serve` has ended. Looks at the last acknowledgement, never waits for one.

        Returns:
            Whether no task was left without its acknowledgement.
        """
        self._closed = True
        task, self._task = self._task, None
        if task is None:
            return True
        if task.acknowledged:
            self._desk.settle(task)
        return task.acknowledged


@runtime_checkable
class ServedBackend(Protocol):
    """A backend that waits: it runs in its lanes' tasks, one call of `serve` a lane.

    A call that raises, returns before its lane ends, or leaves a task unacknowledged breaks the
    whole instance, which is then replaced. An instance begins empty: the lanes keep its books.
    """

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        ...

    @property
    def reads_in_caller(self) -> bool:
        """Whether `overlap` may be called from the Trio thread while `serve` works.

        Otherwise reads are handed to a lane as `Read` tasks.
        """
        ...

    def overlap(self, prompt: Prompt) -> Overlap: ...

    async def serve(self, tasks: TaskReceiver) -> None: ...
