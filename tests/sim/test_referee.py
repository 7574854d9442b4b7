"""The referee: what is a violation, and what only looks like one."""

from random import Random
from typing import Any, cast

import pytest
from attrs import define

from relock._core.quorum import NEVER
from relock.testing._plan import draw
from relock.testing._referee import Referee
from relock.testing._world import Process, World


@define
class Held:
    """As much of a hold as the referee looks at."""

    token: int
    seconds: float
    owner: bytes = b"client:1"
    deadline: float = NEVER

    def remaining(self, _now: float) -> float:
        return self.seconds


@define
class Game:
    """A referee, and clients that get the lock."""

    world: World
    referee: Referee

    def grant(self, name: str, held: Held) -> None:
        process = Process(self.world, name)
        call = self.referee.called(process, timeout=1.0)
        belief = self.referee.granted(cast(Any, None), cast(Any, held), call)
        assert belief.is_believed() == (held.seconds > 0)


@pytest.fixture
def game() -> Game:
    world = World(0)
    return Game(world, Referee(world, [], draw(Random(0))))


def test_two_that_believe_are_a_violation(game: Game) -> None:
    game.grant("one", Held(1, 10.0))
    game.grant("two", Held(2, 10.0))
    assert game.referee.violations == ["two holders: one and two"]


def test_a_token_that_falls_is_a_violation(game: Game) -> None:
    first = Held(5, 10.0)
    game.grant("one", first)
    first.seconds = 0.0
    game.grant("two", Held(4, 10.0))
    assert game.referee.violations == ["two got token 4, which is not above 5"]


def test_who_stood_still_until_its_hold_was_over_may_be_told_of_it_late(game: Game) -> None:
    game.grant("one", Held(5, 10.0))
    game.grant("two", Held(4, 0.0))
    assert game.referee.violations == []
