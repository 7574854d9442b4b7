"""Token that an operator's `force_release` writes back, so that tokens go on rising."""

from typing import Any

from relock._core.effects import Ask, Failure
from relock._core.flows.inspect import force_release
from relock._core.lock_spec import LockSpec
from relock._keys import lock_keys
from relock._options import ClientOptions

SILENT = Failure("c", "silent")


def fence_over(*answers: Any) -> int:
    """Return the token that `force_release` writes back after the masters have answered its look with `answers`."""
    client = ClientOptions(restart_guard=30.0)
    spec = LockSpec.of(lock_keys("lock", "a"), tuple("abcde"[: len(answers)]), client.for_lock(), client)
    flow = force_release(spec, lambda: 0.0)
    next(flow)
    ask = flow.send([[answer] for answer in answers])
    assert isinstance(ask, Ask)
    return int(ask.calls[0].own.split(b"\r\n")[1])


def held(now_us: int, pttl_ms: int, token: int) -> list[Any]:
    return [b"held", now_us, pttl_ms, b"me:1", 1, token, []]


def free(now_us: int, token: int) -> list[Any]:
    return [b"free", now_us, token, []]


def test_a_lone_master_has_given_every_token() -> None:
    assert fence_over(held(1_000_000, 30_000, 1_000_000)) == 0


def test_the_largest_token_that_is_known_is_written_back() -> None:
    assert fence_over(held(1_000_000, 29_000, 40_000_000), free(1_500_000, 900_000), SILENT) == 40_000_000


def test_several_masters_are_no_lone_one_where_none_knows_a_token() -> None:
    """A hold that was granted after the look may have a token."""
    assert fence_over(free(1_000_000, 0), free(1_500_000, 0), SILENT) == 1
