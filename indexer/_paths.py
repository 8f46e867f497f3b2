"""How a flat table still knows the way from the root: what it needs to be dumped."""

import attrs


@attrs.define(eq=False)
class _Link:
    before: int | None
    block: bytes
    uses: int = 0  # holders of the place, and links that go on from it


@attrs.define(eq=False)
class Paths:
    """For each held place the place before it and its block hash, shared by all ranks.

    A link stays while anybody holds its place or one behind it, so the way to a block behind a
    hole is never lost, and what nobody holds is forgotten. Written by the backend that owns it.
    """

    links: dict[int, _Link] = attrs.Factory(dict)  # a link is made after the one before it

    def hold(self, place: int, before: int | None, block: bytes) -> None:
        """One more rank holds this place. O(1)."""
        if place not in self.links:
            self.links[place] = _Link(before, block)
            if before is not None:
                self.links[before].uses += 1
        self.links[place].uses += 1

    def let_go(self, place: int | None) -> None:
        """One rank less holds this place. O(links that go with it)."""
        while place is not None:
            link = self.links[place]
            link.uses -= 1
            if link.uses:
                return
            del self.links[place]
            place = link.before

    def check(self, holders: dict[int, int]) -> None:
        """Assert that uses are the given holders a place and the links behind it. O(links)."""
        uses = dict(holders)
        for link in self.links.values():
            if link.before is not None:
                uses[link.before] = uses.get(link.before, 0) + 1
        assert uses == {place: link.uses for place, link in self.links.items()}, self
