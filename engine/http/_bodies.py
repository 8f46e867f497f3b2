"""What the bodies of all requests in flight cost together."""

import attrs
import trio

from kvlanes.engine.http._messages import BodiesBusy

_TURNS = 16


@attrs.define(eq=False)
class Bodies:
    """How many bytes they hold, and whose turn it is to be read. Shared by all connections."""

    limit_bytes: int
    used_bytes: int = 0
    _turns: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(_TURNS))

    def take(self, count: int) -> None:
        """Count body bytes that were decoded; nobody waits for others to give back.

        Raises:
            BodiesBusy: All together would be more than allowed.
        """
        if self.used_bytes + count > self.limit_bytes:
            raise BodiesBusy(self.limit_bytes)
        self.used_bytes += count

    def give_back(self, count: int) -> None:
        """The request that held them is over."""
        self.used_bytes -= count

    async def turn(self) -> None:
        """Wait before reading on where much is to be read. Always a checkpoint.

        Else one pass of the loop would read from every upload there is, and an ordinary request,
        which takes a dozen passes, would miss its deadline behind a thousand of them.
        """
        async with self._turns:
            await trio.lowlevel.checkpoint()
