"""The queue of callers that wait: the first has its turn, none misses a token, and an interrupt blocks no other."""

import threading
from queue import SimpleQueue
from typing import cast

import pytest
from support.instructions import Interrupt, Strike, is_any

from relock._runtime.machine import Machine
from relock._runtime.wait_queue import Entry, WaitQueue

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
def queue() -> WaitQueue:
    return WaitQueue()


def join(queue: WaitQueue, until: float = LONG) -> Entry:
    """Let a caller join the queue."""
    entry = Entry(SimpleQueue(), until=until)
    queue.join(entry)
    return entry


def tokens(*entries: Entry) -> list[int]:
    """Return the number of tokens that each entry has."""
    return [cast("SimpleQueue[None]", entry.tokens).qsize() for entry in entries]


# Turns ----------------------------------------------------------------------------------------------------------------


def test_nobody_is_first_where_nobody_waits(queue: WaitQueue) -> None:
    assert queue.first() is None
    queue.wake_first()
    queue.wake_all()
    assert list(queue) == []


def test_the_first_that_came_is_woken_first(queue: WaitQueue) -> None:
    first, second = join(queue), join(queue)
    assert queue.first() is first
    queue.wake_first()
    assert tokens(first, second) == [1, 0]
    queue.leave(first)
    assert queue.first() is second
    assert tokens(second) == [1], "the second caller is told that it has its turn"


def test_a_caller_that_leaves_from_the_middle_has_no_turn(queue: WaitQueue) -> None:
    first, second, third = join(queue), join(queue), join(queue)
    queue.leave(second)
    assert list(queue) == [first, third]
    queue.leave(first)
    assert queue.first() is third
    queue.leave(third)
    assert not queue.waiting, "no entry is left of callers that have gone"


def test_several_that_leave_at_once_wake_none_of_each_other(queue: WaitQueue) -> None:
    first, second, third = join(queue), join(queue), join(queue)
    queue.leave(first, second)
    assert tokens(first, second, third) == [0, 0, 1]


def test_to_leave_again_does_no_harm(queue: WaitQueue) -> None:
    first, second = join(queue), join(queue)
    for _ in range(2):
        queue.leave(first)
    assert queue.first() is second


def test_a_caller_that_died_or_whose_time_is_over_is_passed_over(queue: WaitQueue) -> None:
    """Interrupts may have kept a caller from leaving, and their exception may keep the entry alive."""
    dead, late, last = join(queue, 20.0), join(queue, 15.0), join(queue, 20.0)
    del dead
    assert queue.first(14.0) is late
    assert queue.first(16.0) is last
    assert len(queue.waiting) == 1, "`first` removes the entries before the one that it finds"


def test_a_caller_that_has_yet_to_look_gets_no_second_token(queue: WaitQueue) -> None:
    first, second = join(queue), join(queue)
    for _ in range(3):
        queue.wake_first()
        queue.wake_all()
    assert tokens(first, second) == [1, 1]


def test_all_that_wait_are_woken_at_once(queue: WaitQueue) -> None:
    first, gone, dead, last = join(queue), join(queue), join(queue), join(queue)
    gone.is_waiting = False
    del dead
    queue.wake_all()
    assert tokens(first, gone, last) == [1, 0, 1]


# Threads that wait for a change ---------------------------------------------------------------------------------------


def test_a_condition_that_holds_needs_no_token(queue: WaitQueue, platform: Clock) -> None:
    assert queue.wait_for(lambda: True, 0.0, platform)


def test_a_condition_that_does_not_hold_in_time_is_reported(queue: WaitQueue, platform: Clock) -> None:
    platform.now = 5.0
    assert not queue.wait_for(lambda: False, 5.0, platform)
    assert not queue.waiting, "no entry is left"


def test_every_thread_that_waits_looks_again(queue: WaitQueue, platform: Clock) -> None:
    changed = threading.Event()  # the test's own, whose wait no signal interrupts
    looking = threading.Semaphore(0)

    def has_changed() -> bool:
        looking.release()
        return changed.is_set()

    wait = (has_changed, LONG, platform)
    threads = [threading.Thread(target=queue.wait_for, args=wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert looking.acquire(timeout=LONG)
    changed.set()
    queue.wake_all()
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads)


def test_a_change_between_the_look_and_the_wait_is_not_missed(queue: WaitQueue, platform: Clock) -> None:
    looks = 0

    def has_changed() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            queue.wake_all()
        return looks > 1

    assert queue.wait_for(has_changed, LONG, platform)


# Interrupts -----------------------------------------------------------------------------------------------------------


def test_an_interrupt_at_any_instruction_keeps_nobody_from_waking_the_others(platform: Clock) -> None:
    """Interrupts come also at instructions of the standard library, where a signal handler may raise, too."""
    for raise_at in range(1, INSTRUCTIONS_MAX):
        platform.now, queue = 0.0, WaitQueue()
        before, exception = join(queue), _strike(queue, platform, raise_at)
        if exception is None:
            break
        after = join(queue)
        waking = threading.Thread(target=queue.leave, args=(before,), daemon=True)
        waking.start()
        waking.join(LONG)
        assert not waking.is_alive(), f"after instruction {raise_at}"
        del exception
        queue.wake_first()
        assert queue.first() is after, f"after instruction {raise_at}: the entry has died"
        assert tokens(after) == [1]
    assert raise_at > 50, "the instructions are seen"


def test_the_entry_of_an_interrupted_wait_collects_no_tokens_though_somebody_keeps_the_exception(
    platform: Clock,
) -> None:
    kept, left = [], 0
    for raise_at in range(1, INSTRUCTIONS_MAX):
        platform.now, queue = 0.0, WaitQueue()
        kept.append(_strike(queue, platform, raise_at))
        if kept[-1] is None:
            break
        for _ in range(3):
            queue.wake_all()
        left += len(list(queue))
        assert all(count <= 1 for count in tokens(*queue))
    assert left, "one interrupt struck a caller that was leaving"


def _strike(queue: WaitQueue, platform: Clock, raise_at: int) -> Interrupt | None:
    """Interrupt a wait that is woken once, in vain, at instruction `raise_at`; return the exception, if any."""

    def has_changed() -> bool:
        queue.wake_all()
        platform.now += LONG / 2
        return False

    try:
        with Strike(raise_at, is_any):
            queue.wait_for(has_changed, LONG, platform)
    except Interrupt as interrupt:
        return interrupt
    return None
