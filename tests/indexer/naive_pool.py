"""The modelled block pool again, by searching and sorting lists."""

import attrs


@attrs.define(eq=False)
class NaiveCopy:
    path: tuple[int, ...]
    users: int
    number: int
    released: int = -1


class NaivePool:
    """The same pool by searching and sorting."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.copies: list[NaiveCopy] = []
        self.held: dict[str, tuple[list[NaiveCopy], int]] = {}
        self.made = 0

    def path(self, attempt: str) -> tuple[int, ...]:
        copies = self.held[attempt][0]
        return copies[-1].path if copies else ()

    def fresh(self, path: tuple[int, ...]) -> NaiveCopy:
        self.made += 1
        self.copies.append(NaiveCopy(path, 1, self.made))
        return self.copies[-1]

    def acquire(self, attempt: str, chain: list[int], private: int) -> None:
        mine: list[NaiveCopy] = []
        for k in range(len(chain)):
            path = tuple(chain[: k + 1])
            same = [copy for copy in self.copies if copy.path == path]
            if same:
                same[0].users += 1
            mine.append(same[0] if same else self.fresh(path))
        self.held[attempt] = mine, private
        self.reconcile()

    def grow(self, attempt: str, block: int) -> None:
        copies, _ = self.held[attempt]
        self.held[attempt] = [*copies, self.fresh((*self.path(attempt), block))], 1
        self.reconcile()

    def release(self, attempt: str, epoch: int) -> None:
        for copy in self.held.pop(attempt)[0]:
            copy.users -= 1
            copy.released = epoch
        self.reconcile()

    def occupancy(self) -> int:
        return len(self.copies) + sum(private for _, private in self.held.values())

    def reconcile(self) -> None:
        while self.occupancy() > self.capacity and any(not c.users for c in self.copies):
            idle = [copy for copy in self.copies if not copy.users]
            self.copies.remove(min(idle, key=lambda c: (c.released, -len(c.path), c.number)))
