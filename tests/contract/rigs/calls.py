"""The calls that tests interrupt, keep waiting, and disturb between two steps."""

from collections.abc import Callable

from attrs import frozen

from relock import Client, Lock, MultiLock


@frozen
class Call:
    """A call of a lock, or of several as one: then the levels are those of each lock.

    Attributes:
        levels: how many levels the caller has before the call.
        after: how many it has after the call, if the call ends by itself.
        interrupted: how many it has after an interrupt of the call.
        script: the script that the masters are sent.
    """

    name: str
    do: Callable[[Lock | MultiLock], object]
    levels: int
    after: int
    interrupted: int
    script: str


def use(lock: Lock | MultiLock) -> None:
    """Acquire the lock and release it."""
    with lock:
        pass


CALLS = [
    Call("acquire", lambda lock: lock.acquire(), levels=0, after=1, interrupted=0, script="acquire"),
    Call("nested acquire", lambda lock: lock.acquire(), levels=1, after=2, interrupted=1, script="count"),
    Call("release", lambda lock: lock.release(), levels=1, after=0, interrupted=0, script="release"),
    Call("nested release", lambda lock: lock.release(), levels=2, after=1, interrupted=1, script="count"),
    Call("with", use, levels=0, after=0, interrupted=0, script="acquire"),
    Call("extend", lambda lock: lock.extend(), levels=1, after=1, interrupted=1, script="extend"),
]


def make(client: Client, name: str, *, several: bool) -> tuple[Lock | MultiLock, list[Lock]]:
    """Return a lock, or several as one, and the single lock of each name, which shows the levels of that name."""
    names = [f"{name}-{letter}" for letter in "abc"] if several else [name]
    singles = [client.lock(one) for one in names]
    return (client.lock_all(names) if several else singles[0]), singles


def take(lock: Lock | MultiLock, levels: int) -> None:
    """Acquire so many levels of the lock."""
    for _ in range(levels):
        assert lock.acquire(timeout=20)


def leave(lock: Lock | MultiLock) -> None:
    """Release every level that the caller has."""
    while lock.hold_count:
        lock.release()
