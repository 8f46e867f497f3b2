"""The policy comparison on a small synthetic trace, and the caches it simulates."""

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from examples import policies
from examples.policies import POLICIES, Entry, SimulatedWorker, run, synthetic_trace, table

TRACE = synthetic_trace(400)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, policies.Outcome]:
    return {policy: run(policy, TRACE, 4, 300) for policy in POLICIES}


def test_knowing_the_caches_saves_more_than_ignoring_them(
    outcomes: dict[str, policies.Outcome],
) -> None:
    for policy in policies.OURS:
        for blind in ("round robin", "least loaded"):
            assert outcomes[policy].cached_share > 1.3 * outcomes[blind].cached_share
            assert outcomes[policy].saved_share > outcomes[blind].saved_share


def test_callers_wait_less_than_under_any_policy_that_ignores_the_caches(
    outcomes: dict[str, policies.Outcome],
) -> None:
    for policy in policies.OURS:
        for blind in ("round robin", "least loaded"):
            assert outcomes[policy].mean_wait_seconds < outcomes[blind].mean_wait_seconds
        assert outcomes[policy].spread < outcomes["session hash"].spread


def test_every_figure_is_a_share_or_a_spread(outcomes: dict[str, policies.Outcome]) -> None:
    for outcome in outcomes.values():
        assert 0 <= outcome.cached_share < 1
        assert 0 <= outcome.saved_share < 1
        assert 1 <= outcome.spread <= 4
        assert outcome.mean_wait_seconds <= outcome.long_wait_seconds


def test_the_same_trace_gives_the_same_table() -> None:
    first = table(run(policy, TRACE[:100], 4, 300) for policy in POLICIES)
    assert first == table(run(policy, TRACE[:100], 4, 300) for policy in POLICIES)
    assert len(first.splitlines()) == 1 + len(POLICIES)


def test_a_simulated_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    worker = SimulatedWorker("gpu", 4)

    async def main() -> list[int]:
        asked = [(1, 2), (3, 4), (1, 2), (5,), (1, 2), (3, 4)]
        return [await worker.serve(Entry(0, 1024, 1, ids), lambda: None) for ids in asked]

    cached = trio.run(main, clock=MockClock(autojump_threshold=0))
    # (5,) pushed 4 out, the deeper block of what was used longest ago; 3 alone is left of it.
    assert cached == [0, 0, 1024, 0, 1024, 512]
    assert len(worker.cache) == 4


def test_a_trace_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 512, "output_length": 9, "hash_ids": [0]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert policies.read_trace(path, 1) == [Entry(1.5, 1100, 7, (0, 1))]
    assert len(policies.read_trace(path, 9)) == 2


def test_without_a_trace_it_makes_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KVLANES_TRACE", str(tmp_path / "absent"))
    policies.main(["60"])
    told = capsys.readouterr().out
    assert told.startswith("the first 60 requests of a synthetic trace")
    assert "kvlanes" in told
