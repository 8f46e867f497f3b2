"""The contract of every index backend, continued: which guesses are refused, and which never."""

import math

import pytest

from kvlanes.indexer import IndexerError, Lease, Store
from tests.indexer.chains import A, guess, names, packed, store
from tests.indexer.contract import FIVE, ContractIndex, MakeIndex, depths
from tests.indexer.contract_leases import TICK, at, expire


class GuessContract:
    """A malformed guess is refused before it writes; a legal one never breaks the index."""

    @pytest.fixture
    def index(self, make_index: MakeIndex) -> ContractIndex:
        return make_index()

    @pytest.mark.parametrize(
        "malformed",
        [
            Store(A, names(FIVE)[0], packed([6]), lease=Lease(1.0)),
            Store(A, None, packed([6]), [6], Lease(1.0)),
            Store(A, None, packed([6]), lease=Lease()),
            Store(A, None, packed([6])[:-1], lease=Lease(1.0)),
        ],
        ids=["parent", "names", "no ttl", "torn"],
    )
    def test_malformed_guess_is_refused_before_it_writes(
        self, index: ContractIndex, malformed: Store
    ) -> None:
        at(index, 0.0, store(A, FIVE))
        with pytest.raises(IndexerError) as refused:
            index.apply(malformed, 0.0)
        assert isinstance(refused.value, ValueError)
        index.check()
        assert depths(index, [6]) == {}
        assert index.statistics().blocks == 5

    @pytest.mark.parametrize(
        "stranger",
        [
            Store([A], None, packed([6]), lease=Lease(1.0)),  # type: ignore[arg-type]
            Store(("b", 0), None, packed([6]), lease=Lease(1.0)),  # type: ignore[arg-type]
            Store(A, None, bytearray(8), lease=Lease(1.0)),  # type: ignore[arg-type]
            Store(A, None, None, lease=Lease(1.0)),  # type: ignore[arg-type]
            Store(A, [1], packed([6]), lease=Lease(1.0)),  # type: ignore[arg-type]
            Store(A, None, packed([6]), None, Lease(1.0)),  # type: ignore[arg-type]
            Store(A, None, packed([6]), lease=10.0),  # type: ignore[arg-type]
        ],
        ids=str,
    )
    def test_guess_of_other_types_is_refused_before_it_writes(
        self, index: ContractIndex, stranger: Store
    ) -> None:
        at(index, 0.0, store(A, FIVE))
        with pytest.raises(IndexerError):
            index.apply(stranger, 0.0)
        index.check()
        assert index.statistics().blocks == 5

    @pytest.mark.parametrize(
        ("lease", "end"),
        [
            (Lease(1.0, age_seconds=1e308), 100.0),
            (Lease(1e308), math.inf),
            (Lease(1e308, age_seconds=1e308), 100.0),
            (Lease(math.inf, age_seconds=1e308), math.inf),
            (Lease(2.0**53), math.inf),
        ],
        ids=str,
    )
    def test_any_legal_lease_ends_or_never_does(
        self, index: ContractIndex, lease: Lease, end: float
    ) -> None:
        """Seconds that no clock can add up: a deadline is never before now, nor beyond 2**53."""
        at(index, 100.0, Store(A, None, packed(FIVE), lease=lease))
        assert depths(index, FIVE) == {"a": 5}
        later = expire(index, end + TICK if end < math.inf else 1e15)
        assert (later.blocks, later.next_deadline) == (5 if end < math.inf else 0, math.inf)

    @pytest.mark.parametrize("now", [math.nan, -math.inf])
    def test_time_that_is_none_is_refused(self, index: ContractIndex, now: float) -> None:
        with pytest.raises(IndexerError, match=str(now)):
            index.apply(guess(A, FIVE), now)
        index.check()
        assert index.statistics().blocks == 0
