"""Inboxes of loops: each message wakes the waiting task, whichever thread puts it in."""

import asyncio
import signal
from queue import Empty
from threading import get_ident

import pytest

from relock._core.hold import FOREVER
from relock._core.pulse import Pulse
from relock._runtime.aio.loop_inbox import Inboxes, LoopInbox
from relock._runtime.platform import CLOCK

SOON = 20.0


def inbox_of(loop: asyncio.AbstractEventLoop) -> LoopInbox:
    return LoopInbox(Inboxes(loop, CLOCK, Pulse(FOREVER)))


async def test_what_is_put_in_comes_out_in_order() -> None:
    inbox = inbox_of(asyncio.get_running_loop())
    assert inbox.empty()
    for item in range(3):
        inbox.put(item)
    assert [await inbox.take(0.0) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Empty):
        await inbox.take(0.0)


async def test_a_task_goes_on_when_its_time_is_over_though_another_one_has_longer() -> None:
    now = 0.0
    inboxes = Inboxes(asyncio.get_running_loop(), lambda: now, Pulse(FOREVER))
    slept = [LoopInbox(inboxes).sleep(until) for until in (9.0, 5.0)]
    assert inboxes.alarms.looks_at == 5.0
    now = 5.0
    inboxes.alarms._look()
    assert [woken is not None and woken.done() for woken in slept] == [False, True]
    inboxes.alarms.close()


async def test_a_thread_wakes_the_task() -> None:
    inbox = inbox_of(asyncio.get_running_loop())
    putting = asyncio.create_task(asyncio.to_thread(inbox.put, "it"))
    assert await inbox.take(CLOCK() + SOON) == "it"
    await putting


async def test_what_the_loop_itself_has_read_wakes_the_task_in_the_next_turn() -> None:
    inbox = inbox_of(asyncio.get_running_loop())

    def read() -> None:
        inbox._inboxes.thread = get_ident()
        inbox.put("it")
        inbox._inboxes.thread = 0

    asyncio.get_running_loop().call_soon(read)
    assert await inbox.take(CLOCK() + SOON) == "it"


async def test_a_signal_handler_wakes_a_loop_that_sleeps_in_its_thread() -> None:
    inbox = inbox_of(asyncio.get_running_loop())
    before = signal.signal(signal.SIGALRM, lambda *_: inbox.put("it"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert await asyncio.wait_for(inbox.take(CLOCK() + SOON), SOON / 2) == "it"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_is_put_in_after_its_loop_was_closed_disturbs_nobody() -> None:
    loop = asyncio.new_event_loop()
    inbox = inbox_of(loop)
    loop.close()
    inbox.put("it")
