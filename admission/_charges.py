"""What groups and requests hold and wait for."""

from collections.abc import Iterable
from typing import TypeVar

import attrs

from kvlanes.admission._permit import Ask

K = TypeVar("K")


@attrs.define(eq=False)
class Charges:
    """Weight held and waited for, by group and by family. Written by its gate only."""

    groups: dict[str, int] = attrs.Factory(dict)
    families: dict[object, int] = attrs.Factory(dict)

    def add(self, ask: Ask, weight: int) -> None:
        """Charge an ask with a weight; negative to return it."""
        _add(self.families, ask.family, weight)
        if ask.group is not None:
            _add(self.groups, ask.group, weight)

    def check(self, asks: Iterable[Ask]) -> None:
        """Assert that these asks, and no others, are charged."""
        true = Charges()
        for ask in asks:
            true.add(ask, ask.weight)
        assert self.groups == true.groups, (self.groups, true.groups)
        assert self.families == true.families, (self.families, true.families)


def _add(table: dict[K, int], key: K, weight: int) -> None:
    """Add a weight; an entry that is 0 goes, so tables stay small."""
    if left := table.get(key, 0) + weight:
        table[key] = left
    else:
        del table[key]
