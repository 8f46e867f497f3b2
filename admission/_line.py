"""Who is served next, and who may pass whom."""

from collections import OrderedDict
from collections.abc import Iterator

import attrs
from trio.lowlevel import Task

from kvlanes.admission._permit import Ask


@attrs.define(eq=False)
class Waiter:
    """One request in the line; it stands there exactly as long as its task is parked."""

    ask: Ask
    task: Task
    since: float
    passed: int = 0  # how many went ahead while it stood at the head


@attrs.define(eq=False)
class WaitingLine:
    """A queue in which at most `overtake` others pass a given head. Written by its gate only.

    Only who fits passes, and only a head that does not fit is passed, so whoever passes is
    smaller than the head. The head is the first that the gate's total could carry: who came when
    the total was higher keeps the place for when it is again, and holds nobody up meanwhile.
    """

    limit: int
    overtake: int
    _waiters: OrderedDict[Waiter, None] = attrs.Factory(OrderedDict)

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters)

    def head(self, total: int) -> Waiter | None:
        """Whose turn it is under this total. O(1) beside those that are too large for it."""
        return next((waiter for waiter in self._waiters if waiter.ask.weight <= total), None)

    def join(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        del self._waiters[waiter]

    def next_served(self, free: int, total: int) -> Waiter | None:
        """The waiter whose turn it is, if `free` is enough for it. O(1); O(waiters) to pass."""
        head = self.head(total)
        if head is None or head.ask.weight <= free:
            return head
        if free <= 0 or not self.may_pass(total):
            return None
        return next((waiter for waiter in self._waiters if waiter.ask.weight <= free), None)

    def serve(self, waiter: Waiter, total: int) -> None:
        """Take the next served out of the line."""
        if waiter is not self.head(total):
            self.note_pass(total)
        self.leave(waiter)

    def may_pass(self, total: int) -> bool:
        """Whether a newcomer that fits may go ahead of the line."""
        head = self.head(total)
        return head is None or head.passed < self.overtake

    def note_pass(self, total: int) -> None:
        """Somebody goes ahead of the head, if there is one."""
        if (head := self.head(total)) is not None:
            head.passed += 1
