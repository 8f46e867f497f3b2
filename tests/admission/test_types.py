"""What a type checker must know: run by it, and by the interpreter to see that it is true."""

from typing import assert_type

import trio

from kvlanes.admission import AdmissionGate
from kvlanes.nursery import Completed, DeadlineExpired, Failed, dispatch, run_branches


def measure(text: str, scale: float) -> int:
    return int(len(text) * scale)


async def ask(text: str, count: int) -> bytes:
    await trio.lowlevel.checkpoint()
    return text.encode() * count


async def test_run_blocking_keeps_the_types_of_its_function() -> None:
    with AdmissionGate(1).admit_nowait() as permit:
        assert_type(await permit.run_blocking(measure, "four", 2.0), int)
        wrong = permit.run_blocking(measure, 4, 2.0)  # type: ignore[arg-type]
        wrong.close()
        missing = permit.run_blocking(measure, "four")  # type: ignore[arg-type]
        missing.close()


async def test_dispatch_keeps_the_types_of_its_work(nursery: trio.Nursery) -> None:
    with AdmissionGate(1).admit_nowait() as permit:
        ended = await dispatch(
            ask, "x", 2, nursery=nursery, holding=permit.hold(), deadline=float("inf")
        )
        assert_type(ended, Completed[bytes] | Failed | DeadlineExpired)
        assert_type(ended.unwrap(), bytes)
        wrong = dispatch(
            ask,  # type: ignore[arg-type]
            "x",
            "2",
            nursery=nursery,
            holding=permit,
            deadline=float("inf"),
        )
        wrong.close()


async def test_branches_keep_the_type_of_their_results() -> None:
    async def one() -> str:
        await trio.lowlevel.checkpoint()
        return "one"

    assert_type(await run_branches([one]), list[str])
