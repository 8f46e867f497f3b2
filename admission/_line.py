"""Who is served next, and who may pass whom."""

from collections import OrderedDict
from collections.abc import Iterator
from operator import attrgetter

import attrs
from trio.lowlevel import Task

from kvlanes.admission._permit import Ask


@attrs.define(eq=False)
class Waiter:
    """One request in the line; it stands there exactly as long as its task is parked."""

    ask: Ask
    task: Task
    since: float
    serial: int = 0  # in the order in which they came
    passed: int = 0  # how many went ahead while it stood at the head


@attrs.define(eq=False)
class WaitingLine:
    """A queue in which at most `overtake` others pass a given head. Written by its gate only.

    Only who fits passes, and only a head that does not fit is passed, so whoever passes is
    smaller than the head. Who asks for more than the gate's total stands aside: they keep their
    place for when the total is high enough again, and hold nobody up meanwhile.
    """

    limit: int
    overtake: int
    total: int
    _waiters: OrderedDict[Waiter, None] = attrs.Factory(OrderedDict)
    _aside: OrderedDict[Waiter, None] = attrs.Factory(OrderedDict)
    _serials: int = 0

    def __len__(self) -> int:
        return len(self._waiters) + len(self._aside)

    def __iter__(self) -> Iterator[Waiter]:
        """Everybody, in the order in which they came."""
        return iter(sorted((*self._waiters, *self._aside), key=attrgetter("serial")))

    @property
    def head(self) -> Waiter | None:
        """Whose turn it is."""
        return next(iter(self._waiters), None)

    def join(self, waiter: Waiter) -> None:
        self._serials += 1
        waiter.serial = self._serials
        self._place(waiter)

    def _place(self, waiter: Waiter) -> None:
        side = self._waiters if waiter.ask.weight <= self.total else self._aside
        side[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        del (self._waiters if waiter in self._waiters else self._aside)[waiter]

    def resize(self, total: int) -> None:
        """Another total: who stood aside may have a turn now, and the reverse. O(n log n)."""
        everybody = [*self]
        self.total = total
        self._waiters.clear()
        self._aside.clear()
        for waiter in everybody:
            self._place(waiter)

    def next_served(self, free: int) -> Waiter | None:
        """The waiter whose turn it is, if `free` is enough for it. O(1); O(waiters) to pass."""
        head = self.head
        if head is None or head.ask.weight <= free:
            return head
        if free <= 0 or not self.may_pass():
            return None
        return next((waiter for waiter in self._waiters if waiter.ask.weight <= free), None)

    def serve(self, waiter: Waiter) -> None:
        """Take the next served out of the line."""
        if waiter is not self.head:
            self.note_pass()
        self.leave(waiter)

    def may_pass(self) -> bool:
        """Whether a newcomer that fits may go ahead of the line."""
        head = self.head
        return head is None or head.passed < self.overtake

    def note_pass(self) -> None:
        """Somebody goes ahead of the head, if there is one."""
        if (head := self.head) is not None:
            head.passed += 1
