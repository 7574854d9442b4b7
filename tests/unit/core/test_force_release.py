"""Token that an operator's `force_release` writes back, so that tokens go on rising."""

from typing import Any

import pytest

from relock._core.effects import Ask, Failure
from relock._core.flows.inspect import force_release
from relock._core.flows.notify import message
from relock._core.lock_spec import LockSpec
from relock._keys import lock_keys
from relock._options import ClientOptions

SILENT = Failure("c", "silent")


def end(*answers: Any) -> tuple[Any, Ask]:
    """Return the flow of a `force_release` whose look the masters have answered, and its next request."""
    client = ClientOptions(restart_guard=30.0)
    spec = LockSpec.of(lock_keys("lock", "a"), tuple("abcde"[: len(answers)]), client.for_lock(), client)
    flow = force_release(spec, lambda: 0.0)
    next(flow)
    ask = flow.send([[answer] for answer in answers])
    assert isinstance(ask, Ask)
    return flow, ask


def fence_over(*answers: Any) -> int:
    """Return the token that `force_release` writes back after the masters have answered its look with `answers`."""
    return int(end(*answers)[1].calls[0].own.split(b"\r\n")[1])


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


def test_the_holders_are_told_if_a_master_has_ended_their_holds() -> None:
    readers = [b"you:1&", 1, 9_000, b"they:2&", 1, 8_000]
    shared = [b"shared", 1_000_000, 7, readers, []]
    flow, _ = end(shared, shared, SILENT)
    told = flow.send([[[b"released", 0]], [[b"absent", 0]], [SILENT]])
    calls = [message("lock", "a", b"you", b"ended", b"1&", b"a"), message("lock", "a", b"they", b"ended", b"2&", b"a")]
    assert [call.own for call in told.calls] == [call.own for call in calls]
    assert told.is_certain is not None
    assert told.is_certain([[SILENT, SILENT], [SILENT, [b"told", 0, 1]], [SILENT, SILENT]])
    assert not told.is_certain([[SILENT, SILENT]])
    with pytest.raises(StopIteration) as over:
        flow.send([[SILENT, SILENT]] * 3)
    assert over.value.value[0] is True


@pytest.mark.parametrize("look", [free(1_000_000, 7), [b"held", 1_000_000, 29_000, b"", 0, 7, []]])
def test_nobody_is_told_if_nothing_was_held_or_another_library_held_it(look: Any) -> None:
    flow, _ = end(look)
    with pytest.raises(StopIteration):
        flow.send([[[b"released", 0]]])
