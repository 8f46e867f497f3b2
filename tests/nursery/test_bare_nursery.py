"""A nursery without its own layer: errors leave as they came."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import trio

from kvlanes.nursery import open_bare_nursery
from tests.nursery.scenes import Broken


async def fail(error: Exception) -> None:
    try:
        await trio.lowlevel.checkpoint()
    finally:
        raise error


async def wait_beside(*errors: Exception) -> None:
    """Wait for ever, in a bare nursery whose other tasks fail."""
    async with open_bare_nursery() as nursery:
        for error in errors:
            nursery.start_soon(fail, error)
        await trio.sleep_forever()


async def test_several_errors_leave_as_a_group() -> None:
    with pytest.RaisesGroup(ValueError, KeyError):
        await wait_beside(ValueError("a"), KeyError("b"))


async def test_the_error_of_a_task_leaves_without_the_cancellation_it_caused() -> None:
    error = Broken()
    with pytest.raises(Broken) as caught:
        await wait_beside(error)
    assert caught.value is error
    assert error.__context__ is None


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_an_error_that_left_is_freed_without_the_collector(no_collector: None) -> None:
    async def break_down() -> None:
        raise Broken

    try:
        async with open_bare_nursery() as nursery:
            nursery.start_soon(break_down)
    except Broken as error:
        left = weakref.ref(error)
    assert left() is None
