"""What a batch means, seen from the watermark."""

import pytest

from kvlanes.engine.feeds._cursor import Cursor, Replay, Verdict
from kvlanes.engine.feeds._frames import Frame
from tests.feeds.frames import CLEARED, frame


def followed(upto: int, incarnation: bytes = b"") -> Cursor:
    cursor = Cursor()
    for sequence in range(upto + 1):
        cursor.advance(frame(sequence, incarnation=incarnation))
    return cursor


@pytest.mark.parametrize(
    ("sequence", "verdict"),
    [
        (4, Verdict.NEXT),
        (3, Verdict.DUPLICATE),
        (1, Verdict.DUPLICATE),
        (5, Verdict.GAP),
        (900, Verdict.GAP),
    ],
)
def test_live_batches_are_judged_by_number(sequence: int, verdict: Verdict) -> None:
    assert followed(3).judge(frame(sequence)) is verdict


def test_a_stream_begins_at_0() -> None:
    assert Cursor().judge(frame(0)) is Verdict.NEXT
    assert Cursor().judge(frame(1)) is Verdict.GAP


def test_judging_changes_nothing() -> None:
    cursor = followed(3)
    mark = cursor.watermark
    for sequence in range(9):
        cursor.judge(frame(sequence))
    assert cursor.watermark == mark
    assert cursor.expected == 4


def test_the_same_number_with_another_payload_is_another_process() -> None:
    assert followed(3).judge(frame(3, CLEARED)) is Verdict.RESTARTED
    first_batch_again = frame(0, ts=99.0)
    assert followed(0).judge(first_batch_again) is Verdict.RESTARTED


def test_a_number_that_went_back_is_a_restart_only_where_connections_say_nothing() -> None:
    cursor = followed(3)
    assert cursor.judge(frame(1), scoped=True) is Verdict.DUPLICATE
    assert cursor.judge(frame(1), scoped=False) is Verdict.RESTARTED


def test_an_incarnation_tells_even_what_numbers_do_not() -> None:
    cursor = followed(3, b"a" * 16)
    assert cursor.judge(frame(4, incarnation=b"a" * 16)) is Verdict.NEXT
    assert cursor.judge(frame(4, incarnation=b"b" * 16)) is Verdict.RESTARTED
    assert cursor.judge(frame(4)) is Verdict.NEXT


def test_a_replay_asks_for_the_watermark_itself() -> None:
    assert Replay(Cursor()).start == 0
    assert Replay(followed(7)).start == 7


def replies(cursor: Cursor, *frames: Frame) -> list[Verdict]:
    replay = Replay(cursor)
    verdicts = []
    for reply in frames:
        verdicts.append(replay.judge(reply))
        if verdicts[-1] in (Verdict.NEXT, Verdict.GAP):
            cursor.advance(reply)
    return [*verdicts, replay.ended()]


def test_a_replay_that_starts_with_the_watermark_is_the_same_process() -> None:
    verdicts = replies(followed(3), frame(3), frame(4), frame(5))
    assert verdicts == [Verdict.DUPLICATE, Verdict.NEXT, Verdict.NEXT, Verdict.NEXT]


def test_a_replay_of_another_payload_is_another_process() -> None:
    assert replies(followed(3), frame(3, CLEARED))[0] is Verdict.RESTARTED


def test_nothing_but_an_end_is_another_process() -> None:
    assert replies(followed(3)) == [Verdict.RESTARTED]
    assert replies(Cursor()) == [Verdict.NEXT]


def test_a_buffer_rotated_past_the_watermark_is_a_gap() -> None:
    assert replies(followed(3), frame(6), frame(7))[:2] == [Verdict.GAP, Verdict.NEXT]


def test_the_next_batch_without_the_watermarks_own_is_a_gap() -> None:
    assert replies(followed(3), frame(4), frame(5))[:2] == [Verdict.GAP, Verdict.NEXT]
    same = followed(3, b"a" * 16)
    assert replies(same, frame(4, incarnation=b"a" * 16))[0] is Verdict.NEXT


def test_a_hole_inside_a_replay_is_a_gap() -> None:
    assert replies(followed(3), frame(3), frame(4), frame(6))[2] is Verdict.GAP


def test_replies_out_of_order_are_duplicates() -> None:
    verdicts = replies(followed(3), frame(3), frame(4), frame(2), frame(4, CLEARED))
    assert verdicts[2:4] == [Verdict.DUPLICATE, Verdict.DUPLICATE]


def test_another_process_begins_before_its_first_batch() -> None:
    cursor = followed(3)
    cursor.forget()
    assert cursor.judge(frame(0)) is Verdict.NEXT
    assert cursor.expected == 0
