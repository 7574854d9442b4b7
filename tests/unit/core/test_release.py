"""Conclusions from the masters' answers to a release, or to a new hold count."""

from typing import Any

import pytest

from relock._core.effects import Failure
from relock._core.flows.release import Counting, Ending, judge_count, judge_end
from relock._core.hold import Hold
from relock._core.lock_spec import LockSpec
from relock._core.quorum import Grant
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._owner import Owner

RELEASED, ABSENT, COUNTED, VOID = [b"released", 0], [b"absent", 0], [b"counted", 0], [b"void", 0]
SILENT = Failure("a", "no reply yet", awaited=True)
DOWN = Failure("a", "down", sent=False)
ENDED = Ending(is_lost=False, is_confirmed=True, is_awaited=False, is_left=False)


def hold(masters: int, *, healing_pending: bool = False) -> Hold:
    """Return a hold that all of so many masters have granted."""
    addresses = tuple("abcde"[:masters])
    options = ClientOptions(ttl=9.0)
    spec = LockSpec.of(lock_keys("lock", "a"), addresses, options.for_lock(), options)
    grant = Grant(7, 9.0, [9.0] * masters, True, [[[b"granted", 0, 7]] for _ in addresses])
    one = Hold(spec, b"me:1", Owner(1, None, None), grant, 1)
    one.healing_pending = healing_pending
    return one


@pytest.mark.parametrize(
    ("said", "ending"),
    [
        ([RELEASED], ENDED),
        ([RELEASED] * 3, ENDED),
        ([ABSENT], Ending(is_lost=True, is_confirmed=False, is_awaited=False, is_left=True)),
        ([RELEASED, ABSENT, ABSENT], Ending(is_lost=True, is_confirmed=False, is_awaited=False, is_left=True)),
        ([RELEASED, RELEASED, ABSENT], ENDED._replace(is_left=True)),
        ([SILENT], Ending(is_lost=False, is_confirmed=False, is_awaited=True, is_left=False)),
        ([RELEASED, RELEASED, SILENT], ENDED._replace(is_awaited=True)),
        ([RELEASED, SILENT, SILENT], Ending(is_lost=False, is_confirmed=False, is_awaited=True, is_left=False)),
        ([RELEASED, RELEASED, DOWN], ENDED._replace(is_left=True)),
        ([RELEASED, SILENT, DOWN], Ending(is_lost=False, is_confirmed=False, is_awaited=False, is_left=True)),
        ([RELEASED, ABSENT, SILENT], Ending(is_lost=False, is_confirmed=False, is_awaited=False, is_left=True)),
        ([DOWN] * 3, Ending(is_lost=False, is_confirmed=False, is_awaited=False, is_left=True)),
    ],
)
def test_the_end_of_a_hold(said: list[Any], ending: Ending) -> None:
    assert judge_end(hold(len(said)), [[reply] for reply in said]) == ending


@pytest.mark.parametrize("said", [[RELEASED] * 3, [RELEASED, RELEASED, SILENT]])
def test_what_a_healing_may_still_bring_is_not_awaited_but_ended(said: list[Any]) -> None:
    ending = judge_end(hold(3, healing_pending=True), [[reply] for reply in said])
    assert ending == ENDED._replace(is_left=True)


@pytest.mark.parametrize(
    ("said", "counting"),
    [
        ([COUNTED], Counting(is_written=True, is_awaited=False)),
        ([COUNTED, COUNTED, ABSENT], Counting(is_written=True, is_awaited=False)),
        ([COUNTED, COUNTED, SILENT], Counting(is_written=True, is_awaited=True)),
        ([COUNTED, COUNTED, DOWN], Counting(is_written=False, is_awaited=False)),
        ([COUNTED, COUNTED, VOID], Counting(is_written=False, is_awaited=False)),
        ([COUNTED, DOWN, SILENT], Counting(is_written=False, is_awaited=True)),
        ([VOID], Counting(is_written=False, is_awaited=False)),
    ],
)
def test_a_new_hold_count(said: list[Any], counting: Counting) -> None:
    assert judge_count([[reply] for reply in said]) == counting
