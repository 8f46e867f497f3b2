"""Recorded frames of every published encoding, and bytes that nobody ever published."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvlanes.engine.feeds._decode import decode, named_rank, read_tokens
from kvlanes.engine.feeds._errors import FrameInvalid, TokensUnreadable
from kvlanes.engine.feeds._events import Batch, Cleared, Removed, Stored, Unknown, Unreadable
from kvlanes.engine.feeds._frames import Frame, parse
from tests.feeds.frames import CLEARED, RECORDED, packed, payload, plain, recorded, remove, store
from tests.support.profiles import budget

A = [3753563854825738204, 2378715151359315973, 4593614550377271087, 935822303561933385]
GROWN = 6364179402719593482
LORA = [6983805372995528820, 2951795730640769529, 9612598654054446404, 11360119488755921734]
SALTED = [3880407828448427256, 8309487995736940072, 14521472652735093179, 8932286469076373195]
IMAGES = [15050111101184232893, 17927651699228480815, 2584537670818268867, 13876776817587801035]
MASKED = [7755852342165232747, 14829300208618661250]
PARTIAL, PROMOTED = 5640593155519480277, 9762489054092563930
BASE = list(range(1000, 1064))
IMAGE_TOKENS = [5] * 8 + [151655] * 30 + [6] * 26

VLLM: list[list[Any]] = [
    [Stored(A, None, BASE, 16)],
    [Stored([GROWN], A[3], list(range(2000, 2016)), 16)],
    [Stored(A, None, BASE, 16)],
    [Stored(LORA, None, BASE, 16, adapter="sql-adapter")],
    [Stored(SALTED, None, BASE, 16, salt="tenant-42")],
    [
        Stored(
            IMAGES,
            None,
            IMAGE_TOKENS,
            16,
            keys=(("img-sha-aaaa",), ("img-sha-aaaa", "img-sha-bbbb"), ("img-sha-bbbb",), ()),
        )
    ],
    [Stored(MASKED, None, list(range(3000, 3064)), 16, group=1)],
    [Stored([], None, list(range(3100, 3164)), 16, group=1)],
    [Stored([PARTIAL], None, list(range(4000, 4016)), 16, group=2)],
    [
        Removed([PARTIAL], group=2),
        Stored([PROMOTED], None, list(range(4000, 4032)), 32, group=2),
    ],
    [Stored([*A, GROWN], None, BASE + list(range(2000, 2016)), 16)],
    [Removed([*A[::-1], GROWN, *A[::-1]])],
    [Cleared()],
]

S = [5740554423035903369, 18168241855830461182, 15609451130047126951, 9763238681949312609]
CHILD = [1492903075295675048, 14138859150531719560]
SALTED_S = [16678532068372519035, 2071513133103284673]
LORA_S = [6324649932744837730, 14824775965160966375]


def sglang(salted: list[int], lora: list[int], adapter: str | None) -> list[list[Any]]:
    return [
        [Stored(S, None, BASE, 16)],
        [Stored(CHILD, S[3], list(range(2000, 2032)), 16)],
        [Stored(salted, None, BASE[:32], 16, salt="tenant-42")],
        [Stored(lora, None, BASE[:32], 16, adapter=adapter)],
        [Stored(S, None, BASE, 16, medium="CPU_PINNED"), Removed(S)],
        [
            Stored([1808298862440898859], None, list(range(7000, 7016)), 16),
            Stored([4987398036156601596], 1808298862440898859, list(range(7016, 7020)), 4),
        ],
        [Removed([*CHILD, *salted])],
        [Cleared()],
    ]


GOLDEN: dict[str, list[list[Any]]] = {
    "vllm_0_33_0_int": VLLM,
    "vllm_0_33_0_bytes": VLLM,
    "vllm_positional_derived": VLLM,
    "sglang_0_5_23_default": sglang(S[:2], S[:2], None),
    "sglang_0_5_23_dynamo": sglang(SALTED_S, LORA_S, "sql-adapter"),
    "sglang_0_5_3_positional": [
        [Stored([11, 2**64 - 12], None, list(range(32)), 16)],
        [Stored([13], 2**64 - 12, list(range(32, 48)), 16, adapter="lora_id:3")],
        [Removed([13]), Stored([14], 2**64 - 12, list(range(16)), 16)],
        [Cleared()],
    ],
}


def frames_of(name: str, kind: str = "live") -> list[Frame]:
    frames = [parse(message) for message in recorded(name, kind)]
    return [frame for frame in frames if frame is not None]


def test_every_recording_has_a_golden_list() -> None:
    assert sorted(GOLDEN) == RECORDED


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_frames_decode_to_the_canonical_events(name: str) -> None:
    batches = [decode(frame.payload) for frame in frames_of(name)]
    golden = GOLDEN[name]
    assert [list(plain(batch.events)) for batch in batches[: len(golden)]] == golden
    assert all(batch.readable and batch.dp_rank == 0 for batch in batches)


@pytest.mark.parametrize("name", ["vllm_0_33_0_int", "vllm_positional_derived"])
def test_other_block_sizes_and_media_decode(name: str) -> None:
    large, small = [
        event for frame in frames_of(name)[13:] for event in decode(frame.payload).events
    ]
    assert isinstance(large, Stored)
    assert (large.block_size, large.medium, len(large.hashes)) == (64, "CPU", 8)
    assert isinstance(small, Stored)
    assert (small.block_size, small.medium, len(small.hashes)) == (4, "GPU", 16)


def test_four_encodings_of_one_history_decode_alike() -> None:
    histories = [
        [list(plain(decode(frame.payload).events)) for frame in frames_of(name)]
        for name in RECORDED
        if name.startswith("vllm")
    ]
    assert len(histories) == 3
    assert all(history == histories[0] for history in histories)
    again = msgspec.msgpack.decode(frames_of("vllm_0_33_0_int")[0].payload)
    as_map = {"ts": again[0], "events": again[1], "data_parallel_rank": again[2]}
    batch = decode(msgspec.msgpack.encode(as_map))
    assert list(plain(batch.events)) == VLLM[0]


@pytest.mark.parametrize("name", RECORDED)
def test_replays_with_and_without_topic_bring_the_live_batches(name: str) -> None:
    live = [(frame.sequence, frame.payload) for frame in frames_of(name)]
    replayed = [(frame.sequence, frame.payload) for frame in frames_of(name, "replay_from_0")]
    assert replayed == live
    later = [(frame.sequence, frame.payload) for frame in frames_of(name, "replay_from_5")]
    assert later == live[5:]


@pytest.mark.parametrize("name", RECORDED)
def test_every_replay_ends_with_the_end_marker(name: str) -> None:
    for kind in ("replay_from_0", "replay_from_5", "replay_from_1000000"):
        *batches, end = [parse(message) for message in recorded(name, kind)]
        assert end is None
        assert None not in batches


def test_sequence_frame_of_24_bytes_carries_an_incarnation() -> None:
    uuid = bytes(range(16))
    frame = parse([b"topic", (7).to_bytes(8, "big") + uuid, b"payload"])
    assert frame == Frame(b"topic", 7, uuid, b"payload")


@pytest.mark.parametrize("message", [[], [b"x"], [b"", b"", b""], [b"t", b"1234567", b"p"]])
def test_messages_that_are_no_batch_are_refused(message: list[bytes]) -> None:
    with pytest.raises(FrameInvalid, match=r"\d"):
        parse(message)


# -- single events


def events(*given: Any) -> list[Any]:
    return list(plain(decode(payload(*given)).events))


def test_digests_and_signed_numbers_become_unsigned() -> None:
    (event,) = events(store([b"\xff" * 32, -1 + 2**64], [0] * 8, parent=-2))
    assert event.hashes == [2**64 - 1, 2**64 - 1]
    assert event.parent == 2**64 - 2


def test_unknown_events_and_fields_are_ignored() -> None:
    assert events({"type": "BlockMoved", "x": 1}, ["BlockPinned", 3], CLEARED) == [
        Unknown("BlockMoved"),
        Unknown("BlockPinned"),
        Cleared(),
    ]
    assert events(store([1], [1, 2, 3, 4], parent=None, from_the_future=[1])) == [
        Stored([1], None, [1, 2, 3, 4], 4)
    ]


@pytest.mark.parametrize(
    ("broken", "harmless"),
    [
        (store(["x"], []), True),  # type: ignore[list-item]
        (store([b"short"], [1, 2, 3, 4]), True),
        (["BlockStored", 5], True),
        (store([1], [1, 2, 3, 4], extra_keys=[[7]]), True),
        (store([1], [1, 2, 3, 4], mm_keys=["x"]), True),
        (remove("x"), False),  # type: ignore[arg-type]
        (["BlockRemoved"], False),
        (None, False),
        (17, False),
        ([], False),
        ({"kind": 1}, False),
    ],
)
def test_one_bad_event_costs_no_sibling(broken: Any, harmless: bool) -> None:
    before, bad, after = events(remove(1), broken, remove(2))
    assert (before, after) == (Removed([1]), Removed([2]))
    assert isinstance(bad, Unreadable)
    assert bad.harmless is harmless
    assert not decode(payload(broken)).readable


def test_too_many_hashes_are_refused_by_number() -> None:
    batch = decode(payload(remove(1, 2, 3), remove(1, 2)), limit_hashes=2)
    assert batch.events == [
        Unreadable("BlockRemoved: 3 hashes, at most 2"),
        Removed([1, 2]),
    ]
    many = decode(payload(remove(1, 2), remove(3)), limit_hashes=2)
    assert many.events == [Removed([1, 2, 3])]
    assert not decode(payload(remove(*range(101))), limit_hashes=100).readable
    assert decode(payload(remove(*range(101))), limit_hashes=101).readable


@pytest.mark.parametrize("other", [{"medium": "CPU"}, {"group_idx": 1}, {"locality": "REMOTE"}])
def test_removals_are_joined_only_where_they_say_the_same(other: dict[str, Any]) -> None:
    read = events(remove(1), remove(2), remove(3, **other), remove(4, **other), remove(5))
    assert [event.hashes for event in read] == [[1, 2], [3, 4], [5]]


def test_remote_blocks_lie_elsewhere() -> None:
    (event,) = events(store([1], [1, 2, 3, 4], locality="REMOTE", medium="GPU"))
    assert event.medium == "REMOTE"
    assert events(remove(1, medium="gpu")) == [Removed([1])]


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([], {}),
        ([None], {}),
        (["CPU"], {"medium": "CPU"}),
        (["GPU", "lora"], {"adapter": "lora"}),
        (["GPU", {"cache_salt": "s"}], {"salt": "s"}),
        (["GPU", ["a component"]], {}),
        (["GPU", None, [["salt"], None]], {"salt": "salt"}),
        (["GPU", None, None, 3], {"group": 3}),
        (
            ["GPU", "lora", None, 1, "full_attention", 128],
            {
                "adapter": "lora",
                "group": 1,
                "kind": "full_attention",
            },
        ),
        (["GPU", None, None, 1, None, None, None, None, "session"], {"group": 1}),
        (["GPU", None, None, 0, None, None, "REMOTE"], {"medium": "REMOTE"}),
    ],
)
def test_positional_tails_are_told_by_type(tail: list[Any], expected: dict[str, Any]) -> None:
    head = ["BlockStored", [1, 2], None, list(range(8)), 4, None]
    assert events([*head, *tail]) == [Stored([1, 2], None, list(range(8)), 4, **expected)]


def test_extra_keys_mix_adapter_salt_images_and_digests() -> None:
    keys = [["lora", ["image", -3], b"digest"], None]
    (event,) = events(store([1, 2], range(8), extra_keys=keys, lora_name="lora"))
    assert (event.adapter, event.salt, event.keys) == ("lora", None, (("image", b"digest"), ()))


def test_pairs_of_tokens_are_overlapping_windows() -> None:
    tokens, overlapping = read_tokens(packed([[1, 2], [2, 3], [3, 4], [4, 5]]))
    assert (list(tokens), overlapping) == ([1, 2, 3, 4, 5], True)


@pytest.mark.parametrize("tokens", [["a"], [2**32], [-1], [[1]], "text", 5, [[1, 2], 3]])
def test_unreadable_tokens_are_named(tokens: Any) -> None:
    with pytest.raises(TokensUnreadable):
        read_tokens(packed(tokens))


def test_rank_is_read_without_the_events() -> None:
    assert named_rank(payload(CLEARED, rank=3)) == 3
    assert named_rank(payload(rank=None)) is None
    assert named_rank(b"\x00junk") is None


# -- bytes from nowhere


def encoded(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.binary()
    | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
TAGS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
LISTED = st.builds(lambda tag, rest: [tag, *rest], TAGS, st.lists(VALUES, max_size=12))
MAPPED = st.builds(
    lambda tag, fields: {"type": tag, **fields},
    TAGS,
    st.dictionaries(
        st.sampled_from(["block_hashes", "token_ids", "medium", "block_size", "extra_keys"]), VALUES
    ),
)
EVENTS = st.lists(LISTED | MAPPED | VALUES, max_size=4)


@settings(max_examples=budget(ci=300, deep=20_000))
@given(st.binary() | EVENTS.map(lambda events: encoded([1.0, events, 0])) | VALUES.map(encoded))
@example(b"")
@example(b"\xc1")
@example(b"\x93\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff")
def test_decoding_never_raises(data: bytes) -> None:
    batch = decode(data)
    assert isinstance(batch, Batch)
    assert (
        len(batch.events) > 0 or data[:1] in (b"\x92", b"\x93", b"\x82", b"\x83") or batch.readable
    )


@settings(max_examples=budget(ci=300, deep=20_000))
@given(st.sampled_from(RECORDED), st.data())
def test_flipped_bytes_of_real_batches_never_raise(name: str, data: st.DataObject) -> None:
    frame = data.draw(st.sampled_from(frames_of(name)))
    damaged = bytearray(frame.payload)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] = data.draw(st.integers(0, 255))
    assert isinstance(decode(bytes(damaged)), Batch)


@settings(max_examples=budget(ci=200, deep=5_000))
@given(st.lists(st.binary(max_size=30), max_size=5))
def test_any_message_is_a_frame_an_end_or_refused(message: list[bytes]) -> None:
    try:
        frame = parse(message)
    except FrameInvalid:
        return
    assert frame is None or frame.payload == message[-1]
