"""Grace of a loop's first round for masters that connect late, on a clock that the test sets."""

import asyncio
from collections.abc import Callable
from typing import Any

from relock._core.asking import GRACE_SECONDS, Round
from relock._core.effects import Ask, Failure
from relock._core.flows.release import leave_call
from relock._core.quorum import is_attempt_certain
from relock._keys import lock_keys
from relock._runtime.aio.link import wait_for_others

QUORUM = 2
UNHEARD = Failure("a", "silent", awaited=True)
GRANTED = [b"granted", 0, 7]


class FakeLink:
    """A link that is being opened until the test declares it open."""

    def __init__(self) -> None:
        self.connection: object = None
        self.looks: list[Callable[[object], object]] = []

    def when_opened(self, look: Callable[[object], object]) -> None:
        self.looks.append(look)

    def opened(self, connection: object) -> None:
        self.connection = connection
        for look in self.looks:
            look(None)


class Scene:
    """A round over three masters, none of which is connected."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[..., object], int]] = []
        self.links = [FakeLink() for _ in range(3)]
        self.loop = asyncio.new_event_loop()
        ask = Ask((leave_call(lock_keys("lock", "a"), b"me:1"),), 1.0, is_attempt_certain)
        answers: list[Any] = [(UNHEARD,)] * 3
        self.round = Round(ask, 0.0, answers, spared=1, done=self.loop.create_future())
        self.done: Any = self.round.done
        links: Any = self.links
        loop: Any = self
        wait_for_others(self.round, links, QUORUM, loop, lambda: self.now)

    def call_later(self, seconds: float, do: Callable[..., object], spared: int) -> None:
        self.timers.append((seconds, do, spared))

    def grant(self, *masters: int) -> None:
        for master in masters:
            self.round.answered(master, (GRANTED,))

    @property
    def is_over(self) -> bool:
        return bool(self.done.done())


def test_a_round_waits_for_the_others_for_as_long_again_as_a_quorum_took_to_connect() -> None:
    scene = Scene()
    scene.now = 0.5
    scene.links[0].opened(object())
    assert not scene.timers
    scene.now = 0.75
    scene.links[1].opened(object())
    scene.grant(0, 1)
    assert not scene.is_over, "a quorum has granted the lock, but the third master can be asked in a moment"
    ((seconds, do, spared),) = scene.timers
    assert seconds == 0.75 + GRACE_SECONDS
    do(spared)
    assert scene.is_over
    scene.loop.close()


def test_a_round_is_over_when_all_have_answered() -> None:
    scene = Scene()
    for link in scene.links:
        link.opened(object())
    scene.grant(0, 1)
    assert not scene.is_over
    scene.grant(2)
    assert scene.is_over
    scene.loop.close()


def test_a_round_is_over_when_the_other_can_not_be_connected() -> None:
    scene = Scene()
    for link in scene.links[:2]:
        link.opened(object())
    scene.grant(0, 1)
    scene.links[2].opened(None)
    scene.round.answered(2, (Failure("a", "refused", sent=False),))
    assert scene.is_over
    scene.loop.close()
