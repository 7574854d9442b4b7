"""Calls that ask for a hold, and how the referee judges their ends."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from relock import QuorumError
from sim.actors import Interrupted, actor_of
from sim.beliefs import Belief, Call
from sim.calls import Calls
from sim.cast import Cast
from sim.referee import Referee

FOREVER = float("inf")


def waiting(timeout: float) -> dict[str, Any]:
    """Return the arguments of an acquire that waits for so many seconds."""
    if not timeout:
        return {"blocking": False}
    return {"timeout": -1.0 if timeout == FOREVER else timeout}


@contextlib.contextmanager
def asking(
    cast: Cast, calls: Calls, referee: Referee, call: Call, lock: Any, *, owns: Callable[[], bool]
) -> Iterator[None]:
    """Ask for a hold in the block; judge an exception that ends the call. `owns` says whether the caller has a hold."""
    cast.acquiring[call.process] += 1
    try:
        with calls.call(actor_of(lock)):
            yield
    except Interrupted:
        referee.interrupted(call, cast.acquiring[call.process] - 1, owns=owns())
        raise
    except QuorumError as error:
        referee.failed(call, error)
        raise
    finally:
        cast.acquiring[call.process] -= 1
        referee.over(call)


def take(cast: Cast, calls: Calls, referee: Referee, call: Call, lock: Any) -> Belief | None:
    """Take a first level of a lock; return the belief that begins, if the caller got the lock."""
    try:
        with asking(cast, calls, referee, call, lock, owns=lock.owned):
            got = lock.acquire(**waiting(call.timeout))
    except Interrupted:
        return None
    hold = lock._hold()
    if got and hold is None:
        referee.violate(f"{call.process.name} was told that it has the lock, and has no hold")
    if not got or hold is None:
        referee.refused(call)
        return None
    return referee.granted(lock, hold, call)
