"""One lane without a task: the same step, and leases that end when somebody looks."""

import pytest
from trio.testing import MockClock, assert_no_checkpoints

from kvlanes.indexer import Applied
from kvlanes.nursery import DirectLane, LaneCrashed, StaleIncarnation
from tests.nursery.scenes import (
    A,
    B,
    Broken,
    Factory,
    HookedIndex,
    breaks_on,
    confirmed,
    leased,
    prompt,
    small_index,
)


async def test_a_lease_ends_when_somebody_looks(mock_clock: MockClock) -> None:
    lane = DirectLane(small_index, ttl_seconds=5.0)
    with assert_no_checkpoints():
        assert lane.apply(leased(A, 3, None)) == Applied(applied=3)
        assert lane.apply(confirmed(B, 2)) == Applied(applied=2)
    mock_clock.jump(4.0)
    assert lane.overlap(prompt(3)).scores() == {A: 3, B: 2}
    assert lane.apply(leased(A, 2, None)) == Applied(duplicates=2)
    mock_clock.jump(1.0)
    assert lane.overlap(prompt(3)).scores() == {A: 2, B: 2}
    mock_clock.jump(4.0)
    assert lane.apply(leased(A, 1, 1.0)) == Applied(applied=1)
    statistics = lane.statistics()
    assert (statistics.applied, statistics.ranks, statistics.leases_expired) == (4, 2, 3)


async def test_more_than_a_slice_of_leases_ends_at_one_look(mock_clock: MockClock) -> None:
    lane = DirectLane(small_index)
    for family in range(600):
        lane.apply(leased(A, 1, 1.0, family))
    mock_clock.jump(1.0)
    assert lane.overlap(prompt(1)).scores() == {}
    assert lane.statistics().leases_expired == 600


async def test_a_departure_ends_coverage_and_incarnation() -> None:
    lane = DirectLane(small_index)
    old = lane.attach(A)
    lane.apply(confirmed(A, 3), old)
    lane.drop("a")
    assert lane.overlap(prompt(3)).scores() == {}
    with pytest.raises(StaleIncarnation):
        lane.apply(confirmed(A, 3), old)
    assert lane.statistics().ranks == 0
    assert lane.apply(confirmed(A, 1), lane.attach(A)) == Applied(applied=1)
    with pytest.raises(StaleIncarnation):
        lane.apply(confirmed(A, 3), old)


async def test_a_crash_leaves_an_empty_index_and_its_cause_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    factory = Factory()
    lane = DirectLane(factory)
    lane.apply(confirmed(A, 3))
    factory.current.before = breaks_on("apply")
    with pytest.raises(LaneCrashed):
        lane.apply(confirmed(A, 4))
    assert lane.overlap(prompt(3)).scores() == {}
    assert lane.apply(confirmed(A, 1)) == Applied(applied=1)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is Broken


async def test_a_negative_ttl_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ttl_seconds must be .*, got -1"):
        DirectLane(small_index, ttl_seconds=-1)


async def test_leases_that_the_factory_brings_along_end_too(mock_clock: MockClock) -> None:
    def filled() -> HookedIndex:
        made.append(HookedIndex())
        made[-1].apply(leased(A, 3, 5.0), 0.0)
        return made[-1]

    made: list[HookedIndex] = []
    lane = DirectLane(filled)
    living = lane.attach(A)
    mock_clock.jump(4.0)
    assert lane.overlap(prompt(3)).of(A) == 3
    mock_clock.jump(1.0)
    assert lane.overlap(prompt(3)).of(A) == 0
    made[-1].before = breaks_on("apply")
    with pytest.raises(LaneCrashed):
        lane.apply(confirmed(A, 1), living)
    assert lane.overlap(prompt(3)).of(A) == 0  # it was due before it came
