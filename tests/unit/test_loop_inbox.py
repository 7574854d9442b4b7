"""What a task waits for wakes it, from wherever it is put in."""

import asyncio
import signal
from queue import Empty

import pytest

from relock._runtime.aio.loop_inbox import LoopInbox

SOON = 20.0


async def test_what_is_put_in_comes_out_in_order() -> None:
    inbox = LoopInbox(asyncio.get_running_loop(), bool)
    assert inbox.empty()
    for item in range(3):
        inbox.put(item)
    assert [await inbox.take(0.0) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Empty):
        await inbox.take(0.0)


async def test_a_thread_wakes_the_task() -> None:
    inbox = LoopInbox(asyncio.get_running_loop(), bool)
    putting = asyncio.create_task(asyncio.to_thread(inbox.put, "it"))
    assert await inbox.take(SOON) == "it"
    await putting


async def test_a_signal_handler_wakes_a_loop_that_sleeps_in_its_thread() -> None:
    inbox = LoopInbox(asyncio.get_running_loop(), bool)
    before = signal.signal(signal.SIGALRM, lambda *_: inbox.put("it"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert await asyncio.wait_for(inbox.take(SOON), SOON / 2) == "it"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_is_put_in_after_its_loop_was_closed_is_told() -> None:
    loop, told = asyncio.new_event_loop(), []
    inbox = LoopInbox(loop, lambda: told.append("orphaned"))
    loop.close()
    inbox.put("it")
    assert told == ["orphaned"]
