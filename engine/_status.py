"""What an engine tells about itself: figures for a dashboard, and sentences for a person."""

from collections.abc import Iterable, Iterator

import attrs

from kvlanes.admission import AdmissionGate, GateStatistics
from kvlanes.engine._config import EngineConfig
from kvlanes.engine._eligibility import Eligibility
from kvlanes.engine._registry import LiveRank, Registry
from kvlanes.engine.feeds import Feed
from kvlanes.engine.load import TRUSTED_AFTER
from kvlanes.nursery import LaneSetStatistics


@attrs.frozen
class RankStatistics:
    """One rank.

    Attributes:
        rank: Its name, `worker` or `worker:dp_rank`.
        requests: Running requests.
        prefill_tokens: Booked and waiting for a first output.
        decode_blocks: Of running requests, identical prompts once.
        left_out: Why it may not serve now, or `None`.
        fed: Whether engine events arrive for it.
        predicted_tokens: Prompt tokens expected in its cache, over requests that reported.
        measured_tokens: Those it found there.
    """

    rank: str
    requests: int
    prefill_tokens: int
    decode_blocks: int
    left_out: str | None
    fed: bool
    predicted_tokens: int
    measured_tokens: int


@attrs.frozen
class EngineStatistics:
    """A tree of snapshots.

    Attributes:
        gate: Who holds permits, and what they do.
        lanes: Queues, leases and crashes.
        ranks: A row a rank, in order of registration.
        open_requests: Requests that have not been left.
        dispatched: Dispatches that run, stragglers included.
    """

    gate: GateStatistics
    lanes: LaneSetStatistics
    ranks: tuple[RankStatistics, ...]
    open_requests: int
    dispatched: int


@attrs.frozen
class Health:
    """Whether requests can be served, and what a person should look at.

    Attributes:
        ready: New requests are admitted, and at least one rank may serve them.
        problems: One sentence each.
    """

    ready: bool
    problems: tuple[str, ...]


def rank_statistics(live: LiveRank, eligibility: Eligibility, now: float) -> RankStatistics:
    state = live.book.state
    return RankStatistics(
        rank=str(live.rank),
        requests=state.requests,
        prefill_tokens=state.prefill_tokens,
        decode_blocks=state.decode_blocks,
        left_out=eligibility.unfit(live, now),
        fed=live.fed,
        predicted_tokens=live.hits.predicted_tokens,
        measured_tokens=live.hits.measured_tokens,
    )


def shut(gate: AdmissionGate, *, closing: bool) -> str | None:
    """Why nobody new is admitted, whoever may serve."""
    if closing:
        return "the engine is closing"
    if gate.closed:
        return "the gate is closed"
    return None if gate.total else "the gate is paused: its total is 0"


def health(
    config: EngineConfig,
    registry: Registry,
    eligibility: Eligibility,
    lanes: LaneSetStatistics,
    now: float,
    feeds: Iterable[Feed] = (),
    shut: str | None = None,
) -> Health:
    """Look at everything once. O(ranks + feeds)."""
    lives = list(registry.ranks())
    problems = [f"{rank}: its coverage was lost in a crash of the index" for rank in lanes.resync]
    problems += [shut] if shut else []
    for live in lives:
        problems += (f"{live.rank}: {text}" for text in _complaints(live, config, now))
    problems += (f"{feed.rank}: {feed.complaint()}" for feed in feeds if feed.complaint())
    left_out = [eligibility.unfit(live, now) for live in lives]
    problems += (f"{live.rank}: {why}" for live, why in zip(lives, left_out) if why)
    ready = shut is None and None in left_out
    return Health(ready, tuple(sorted(problems)))


def _complaints(live: LiveRank, config: EngineConfig, now: float) -> Iterator[str]:
    silent = now - live.fed_at
    worker = live.member.worker
    # A stream that the engine follows itself is asked when it is silent, and has its own word.
    expected = worker.events is None and (live.fed or worker.feed)
    if expected and silent > config.feed_silence_seconds:
        yield f"no event for {silent:.0f} s; its coverage may be stale"
    for source in live.reports.stale(now):
        yield f"the load that {source} reports is older than {config.load_max_age_seconds:.0f} s"
    if live.hits.far_below:
        yield (
            f"found {live.hits.share_found:.0%} of the expected tokens in its cache over the last "
            f"{live.hits.reports} requests that said so (judged from {TRUSTED_AFTER}): "
            "another block size, adapter or cache salt than here, a cache that evicts sooner "
            "than the lease, or prefix caching that is off"
        )
