"""A guess at what an engine evicts: the block pool of one rank, modelled from our own requests.

An engine without events still evicts. Modelled here is a pool of physical blocks as engines keep
it: a request references the resident prefix it hits and takes new copies for the rest; when it
ends, its blocks stay as cache until the pool needs them. They go in the order of their last
release, and within one release from the end of the chain to its root, so a prefix always outlives
what hangs on it.

The model changes no index. It answers the mutations that a lane applies: confirmed stores under
the published sequence hashes, which revoke any lease on the same blocks, and removals.

Source: the approximate LRU of the reference router (ai-dynamo/dynamo, `lib/kv-router`).
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence

import attrs

from kvlanes.indexer._counts import require_count
from kvlanes.indexer._errors import IndexerError, PackedLengthInvalid
from kvlanes.indexer._identity import Prompt, sequence_hashes
from kvlanes.indexer._mutations import Clear, Lease, Mutation, Rank, Remove, Store
from kvlanes.indexer._names import continued


class AttemptInUse(IndexerError, ValueError):
    """A second acquire under a name that already holds blocks."""

    def __init__(self, attempt: Hashable, blocks: int) -> None:
        super().__init__(f"attempt {attempt!r} already holds {blocks} blocks")
        self.attempt = attempt


@attrs.frozen
class CapacityStatistics:
    """A snapshot of a `CapacityModel`, in blocks where nothing else is said.

    Attributes:
        capacity: The size of the pool; `None` while it is unknown and leases stand in.
        resident: Physical copies in the pool, active and inactive.
        active: Copies that some attempt references.
        inactive: Copies that stay as cache until the pool needs them.
        private: Blocks that attempts hold and nobody can share (unfinished tails).
        over: How far active copies and private blocks exceed the pool.
        attempts: Attempts that hold blocks now.
        acquired: Acquires since the model began, those under leases included.
        grown: Output batches.
        evicted: Copies evicted.
        evictions: Calls that evicted anything.
        fallbacks: How often the capacity became unknown.
    """

    capacity: int | None
    resident: int
    active: int
    inactive: int
    private: int
    over: int
    attempts: int
    acquired: int
    grown: int
    evicted: int
    evictions: int
    fallbacks: int


@attrs.define(eq=False)
class _Copy:
    """One physical block: what it holds, how deep it lies, who references it."""

    place: int
    depth: int
    users: int = 0


@attrs.define(eq=False)
class _Attempt:
    copies: list[_Copy]
    private: int

    @property
    def tip(self) -> int | None:
        return self.copies[-1].place if self.copies else None


class CapacityModel:
    """The modelled block pool of one rank, for one incarnation of it.

    A model *is* an incarnation: whoever restarts a rank lets go of its model and makes another one,
    where what still arrives for the former one finds no attempt of its name.
    One writer: the lane that owns the rank. Never a checkpoint.

    Args:
        rank: Whose pool it is.
        capacity_blocks: Its size; `None` while unknown: then every acquire is a store
            under a lease whose TTL is left to the lane.

    Raises:
        ValueError: A capacity below 1.
    """

    def __init__(self, rank: Rank, capacity_blocks: int | None) -> None:
        _require_capacity(capacity_blocks)
        self.rank = rank
        self._capacity = capacity_blocks
        self._forget_all()
        self._acquired = self._grown = self._evicted = self._evictions = 0
        self._fallbacks = int(capacity_blocks is None)

    def _forget_all(self) -> None:
        self._attempts: dict[Hashable, _Attempt] = {}
        self._copies: dict[int, list[_Copy]] = {}  # place -> its copies, oldest first
        # In order of eviction: released earlier first, then the deeper one.
        self._inactive: OrderedDict[_Copy, None] = OrderedDict()
        self._resident = self._private = 0

    def acquire(
        self, attempt: Hashable, prompt: Prompt, *, private_blocks: int = 0
    ) -> list[Mutation]:
        """A request starts on this rank. O(blocks + evicted).

        The resident prefix is shared up to the first miss; from there on every block gets a
        copy of its own, as an engine computes it again. More than the pool holds is allowed and
        shows in `statistics().over`.

        Args:
            attempt: Names the request's stay until `release`; anything hashable.
            prompt: What it brings.
            private_blocks: Blocks beside those that nobody can share.

        Returns:
            Mutations to apply in order.

        Raises:
            AttemptInUse: The attempt holds blocks already.
            ValueError: `private_blocks` is negative.
        """
        require_count("private_blocks", private_blocks)
        if attempt in self._attempts:
            raise AttemptInUse(attempt, len(self._attempts[attempt].copies))
        self._acquired += 1
        if self._capacity is None:
            return [Store(self.rank, None, prompt.blocks, lease=Lease())] if prompt else []
        places = prompt.sequence_hashes
        copies = self._shared(places)
        copies += self._fresh(places[len(copies) :], len(copies))
        self._attempts[attempt] = _Attempt(copies, private_blocks)
        self._private += private_blocks
        stores = [Store(self.rank, None, prompt.blocks, places)] if places else []
        return [*stores, *self._reconcile()]

    def _shared(self, places: Sequence[int]) -> list[_Copy]:
        shared = []
        for place in places:
            if place not in self._copies:
                break
            copy = self._copies[place][0]
            if copy.users == 0:
                del self._inactive[copy]
            copy.users += 1
            shared.append(copy)
        return shared

    def _fresh(self, places: Sequence[int], depth: int) -> list[_Copy]:
        fresh = [_Copy(place, depth + k, users=1) for k, place in enumerate(places)]
        for copy in fresh:
            self._copies.setdefault(copy.place, []).append(copy)
        self._resident += len(fresh)
        return fresh

    def grow(
        self, attempt: Hashable, blocks: bytes = b"", *, private_blocks: int = 0
    ) -> list[Mutation]:
        """A request produced output: full blocks after its last one. O(blocks + evicted).

        Args:
            attempt: The request's name.
            blocks: Packed block hashes, root side first.
            private_blocks: What it holds unshared from now on, instead of before.

        Returns:
            Mutations to apply in order; none for an attempt that holds nothing here.

        Raises:
            PackedLengthInvalid: `blocks` is no whole number of hashes.
            ValueError: `private_blocks` is negative.
        """
        require_count("private_blocks", private_blocks)
        if len(blocks) % 8:
            raise PackedLengthInvalid(len(blocks))
        held = self._attempts.get(attempt)
        if held is None:
            return []
        tip = held.tip
        places = sequence_hashes(blocks) if tip is None else continued(tip, blocks)
        held.copies += self._fresh(places, len(held.copies))
        self._private += private_blocks - held.private
        held.private = private_blocks
        self._grown += 1
        stores = [Store(self.rank, tip, blocks, places)] if places else []
        return [*stores, *self._reconcile()]

    def release(self, attempt: Hashable) -> list[Mutation]:
        """A request ended; its blocks stay as cache while there is room. O(blocks + evicted).

        Returns:
            Mutations to apply; none for an attempt that holds nothing here.
        """
        held = self._attempts.pop(attempt, None)
        if held is None:
            return []
        self._private -= held.private
        for copy in reversed(held.copies):  # the deeper one goes first
            copy.users -= 1
            if copy.users == 0:
                self._inactive[copy] = None
        return self._reconcile()

    def _reconcile(self) -> list[Mutation]:
        """Evict until the pool fits or everything left is in use."""
        capacity, gone, before = self._capacity, list[int](), self._evicted
        assert capacity is not None  # attempts are only kept under a known capacity
        while self._inactive and self._resident + self._private > capacity:
            copy, _ = self._inactive.popitem(last=False)
            self._evict(copy, gone)
        self._evictions += self._evicted > before
        return [Remove(self.rank, gone)] if gone else []

    def _evict(self, copy: _Copy, gone: list[int]) -> None:
        copies = self._copies[copy.place]
        copies.remove(copy)
        if not copies:  # only the last copy takes coverage with it
            del self._copies[copy.place]
            gone.append(copy.place)
        self._resident -= 1
        self._evicted += 1

    def set_capacity(self, capacity_blocks: int | None) -> list[Mutation]:
        """The pool has another size, or one that nobody knows any more.

        Known from now on: what leases hold ends by itself, or is taken over by the next acquire
        that stores it. Unknown from now on: everything that this model stored goes, since
        nothing would ever remove it, and later acquires are leased; attempts are forgotten.

        Raises:
            ValueError: A capacity below 1.
        """
        _require_capacity(capacity_blocks)
        if capacity_blocks == self._capacity:
            return []
        self._capacity = capacity_blocks
        if capacity_blocks is not None:
            return self._reconcile()
        self._fallbacks += 1
        self._forget_all()
        return [Clear(self.rank)]

    def statistics(self) -> CapacityStatistics:
        """Counts as of now. O(1)."""
        in_use = self._resident - len(self._inactive) + self._private
        return CapacityStatistics(
            capacity=self._capacity,
            resident=self._resident,
            active=self._resident - len(self._inactive),
            inactive=len(self._inactive),
            private=self._private,
            over=0 if self._capacity is None else max(0, in_use - self._capacity),
            attempts=len(self._attempts),
            acquired=self._acquired,
            grown=self._grown,
            evicted=self._evicted,
            evictions=self._evictions,
            fallbacks=self._fallbacks,
        )

    def check(self) -> None:
        """Assert every invariant and recount every counter. O(blocks)."""
        copies = [copy for same in self._copies.values() for copy in same]
        users = Counter(copy for held in self._attempts.values() for copy in held.copies)
        assert len(copies) == self._resident, self.statistics()
        assert self._private == sum(held.private for held in self._attempts.values())
        assert all(copy.users == users[copy] for copy in copies), self.statistics()
        assert {copy for copy in copies if not copy.users} == set(self._inactive)
        assert all(same for same in self._copies.values()), "a place without a copy"
        total = self._resident + self._private
        assert not self._inactive or self._capacity is None or total <= self._capacity


def _require_capacity(capacity_blocks: int | None) -> None:
    if capacity_blocks is not None:
        require_count("capacity_blocks", capacity_blocks, 1)
