"""What an operator's `force_release` writes back, so that tokens go on rising."""

from typing import Any

from relock._core.effects import Ask, Failure
from relock._core.flows.inspect import force_release
from relock._core.terms import Terms
from relock._keys import lock_keys
from relock._options import ClientOptions

SILENT = Failure("c", "silent")


def fence_over(*answers: Any) -> int:
    """The token that is written back after the masters have answered the look with `answers`."""
    client = ClientOptions(restart_guard=30.0)
    terms = Terms.of(lock_keys("lock", "a"), tuple("abcde"[: len(answers)]), client.for_lock(), client)
    flow = force_release(terms, lambda: 0.0)
    next(flow)
    ask = flow.send([[answer] for answer in answers])
    assert isinstance(ask, Ask)
    return int(ask.calls[0].own.split(b"\r\n")[1])


def held(now_us: int, pttl_ms: int, token: int) -> list[Any]:
    return [b"held", now_us, pttl_ms, b"me:1", 1, token, []]


def free(now_us: int, token: int) -> list[Any]:
    return [b"free", now_us, token, []]


def test_one_master_knows_the_token_itself() -> None:
    assert fence_over(held(1_000_000, 30_000, 1_000_000)) == 1_000_000


def test_a_token_that_only_a_silent_master_knows_is_passed() -> None:
    """It may be as large as the end of a lease that another master gave, on the clock of that one."""
    assert fence_over(held(1_000_000, 29_000, 990_000), free(1_500_000, 900_000), SILENT) == 30_000_000


def test_a_token_above_all_leases_is_written_back_as_it_is() -> None:
    assert fence_over(held(1_000_000, 29_000, 40_000_000), free(1_500_000, 900_000), SILENT) == 40_000_000


def test_what_has_no_end_says_nothing() -> None:
    assert fence_over(held(1_000_000, -1, 7), free(1_500_000, 8), SILENT) == 1_000_000
