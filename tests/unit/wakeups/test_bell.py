"""The bell makes waiting threads look again: none misses a change, and an interrupt leaves nothing that blocks."""

import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import cast

import pytest
from support.instructions import Interrupt, Strike, is_any

from relock._runtime.machine import Machine
from relock._runtime.wakeups.bell import Bell

LONG = 30.0  # seconds that no test waits for
INSTRUCTIONS_MAX = 1000  # one wait has fewer


class Clock(Machine):
    """A platform whose clock stands still, or has run out."""

    def __init__(self) -> None:
        self.now = 0.0
        self.clock = lambda: self.now


@pytest.fixture
def platform() -> Clock:
    return Clock()


@pytest.fixture
def bell(platform: Clock) -> Bell:
    return Bell(platform)


def test_a_condition_that_holds_needs_no_ring(bell: Bell) -> None:
    assert bell.wait_for(lambda: True, 0.0)


def test_a_condition_that_does_not_hold_in_time_is_reported(bell: Bell, platform: Clock) -> None:
    platform.now = 5.0
    assert not bell.wait_for(lambda: False, 5.0)


def test_every_thread_that_waits_looks_again(bell: Bell) -> None:
    changed = threading.Event()  # the test's own, whose wait no signal interrupts
    looking = threading.Semaphore(0)

    def has_changed() -> bool:
        looking.release()
        return changed.is_set()

    threads = [threading.Thread(target=bell.wait_for, args=(has_changed, LONG), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert looking.acquire(timeout=LONG)
    changed.set()
    bell.ring()
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads)


def test_a_change_between_the_look_and_the_wait_is_not_missed(bell: Bell) -> None:
    looks = 0

    def has_changed() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            bell.ring()
        return looks > 1

    assert bell.wait_for(has_changed, LONG)


def test_a_queue_that_an_interrupt_has_left_does_not_grow(bell: Bell, platform: Clock) -> None:
    for raise_at in range(1, INSTRUCTIONS_MAX):
        if not _strike(bell, platform, raise_at):
            break
    for _ in range(3):
        bell.ring()
    assert bell._waiting, "one was struck where it takes its queue away"
    assert all(cast("SimpleQueue[None]", rung).qsize() <= 1 for rung in bell._waiting)


def test_an_interrupt_at_any_instruction_keeps_nobody_from_ringing(platform: Clock) -> None:
    """Interrupts come also at instructions of the standard library: a signal handler may raise there, too."""
    for raise_at in range(1, INSTRUCTIONS_MAX):
        platform.now, bell = 0.0, Bell(platform)
        if not _strike(bell, platform, raise_at):
            break
        ringing = threading.Thread(target=bell.ring, daemon=True)
        ringing.start()
        ringing.join(LONG)
        assert not ringing.is_alive(), f"after instruction {raise_at}"
    assert raise_at > 50, "the instructions are seen"


def _strike(bell: Bell, platform: Clock, raise_at: int) -> bool:
    """Interrupts a wait that is rung once, in vain, at instruction `raise_at`; returns whether there is such a one."""

    def has_changed() -> bool:
        bell.ring()
        platform.now += LONG / 2
        return False

    with suppress(Interrupt), Strike(raise_at, is_any):
        bell.wait_for(has_changed, LONG)
        return False
    return True
