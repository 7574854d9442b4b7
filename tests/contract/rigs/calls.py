"""The calls that tests interrupt, keep waiting, and disturb between two steps."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self

from attrs import frozen

from relock import Client, Lock, MultiLock, Permit
from relock._owner import PermitKey
from relock.lock import NOT_PASSED

PERMITS_MAX = 3  # of a semaphore that is played as a lock: two for the caller, one for a call that is interrupted


class Permits:
    """Semaphore in the form of a lock, for tests that play either: its levels are the permits that its owner has.

    A permit that the client has without a caller that knows of it counts as well: so a test sees a leak.
    """

    def __init__(self, client: Client, name: str, **options: Any) -> None:
        self.name = name
        self.semaphore = client.semaphore(name, PERMITS_MAX, **options)
        self._session, self._owner = client._session, options.get("owner")
        self._kept: list[Permit] = []
        self._leave: list[Callable[..., None]] = []

    def acquire(self, blocking: bool = True, timeout: float = NOT_PASSED) -> bool:
        """Take a permit, and keep it."""
        permit = self.semaphore.acquire(blocking=blocking, timeout=timeout)
        if permit is not None:
            self._kept.append(permit)
        return permit is not None

    def release(self) -> None:
        """Release the permit that was taken last."""
        self._kept.pop().release()

    def extend(self) -> float:
        """Renew the permit that was taken last."""
        return self._kept[-1].extend()

    def __enter__(self) -> Self:
        leave = self.semaphore.__exit__  # Python reads this first, too
        self.semaphore.__enter__()
        self._leave.append(leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave.pop()(kind, error, traceback)

    @property
    def hold_count(self) -> int:
        """Number of the permits that the owner has."""
        holds = self._session.holds.copy().items()
        found = [(key, hold) for (name, key), hold in holds if name == self.name and isinstance(key, PermitKey)]
        return sum(key.owner == self._owner and hold.loss is None and hold.count > 0 for key, hold in found)

    @property
    def is_entered(self) -> bool:
        """True while a caller is inside a block, as far as the semaphore knows."""
        semaphore: Any = self.semaphore
        return bool(getattr(semaphore, "_semaphore", semaphore)._entered)

    def owned(self) -> bool:
        """Return whether the owner has a permit."""
        return self.hold_count > 0


AnyLock = Lock | MultiLock | Permits
Kind = Literal["one lock", "several", "permits", "reader"]
KINDS: tuple[Kind, ...] = ("one lock", "several", "permits", "reader")
SINGLE: tuple[Kind, ...] = ("one lock", "permits", "reader")


@frozen
class Call:
    """A call of a lock, or of several as one: then the levels are those of each lock; or of `Permits`.

    Attributes:
        levels: how many levels the caller has before the call.
        after: how many it has after the call, if the call ends by itself.
        interrupted: how many it has after an interrupt of the call.
        script: the script that the masters are sent.
        permit_script: the same for `Permits`.
    """

    name: str
    do: Callable[[Any], object]
    levels: int
    after: int
    interrupted: int
    script: str
    permit_script: str

    def script_for(self, kind: Kind) -> str:
        """Return the script that the masters are sent."""
        if kind == "reader":
            return self.script if self.script == "count" else f"read_{self.script}"
        return self.permit_script if kind == "permits" else self.script


def use(lock: AnyLock) -> None:
    """Acquire the lock and release it."""
    with lock:
        pass


CALLS = [
    Call("acquire", lambda lock: lock.acquire(), 0, 1, 0, "acquire", "permit_acquire"),
    Call("nested acquire", lambda lock: lock.acquire(), 1, 2, 1, "count", "permit_acquire"),
    Call("release", lambda lock: lock.release(), 1, 0, 0, "release", "permit_release"),
    Call("nested release", lambda lock: lock.release(), 2, 1, 1, "count", "permit_release"),
    Call("with", use, 0, 0, 0, "acquire", "permit_acquire"),
    Call("extend", lambda lock: lock.extend(), 1, 1, 1, "extend", "permit_extend"),
]


def make(client: Client, name: str, kind: Kind = "one lock", **options: Any) -> tuple[Any, list[Any]]:
    """Return a lock of this kind, and the single lock of each name, which shows the levels of that name."""
    if kind == "permits":
        permits = Permits(client, name, **options)
        return permits, [permits]
    if kind == "reader":
        lock = client.rwlock(name, **options).read
        return lock, [lock]
    names = [f"{name}-{letter}" for letter in "abc"] if kind == "several" else [name]
    singles = [client.lock(one, **options) for one in names]
    return (client.lock_all(names, **options) if kind == "several" else singles[0]), singles


def shut(client: Client, name: str, kind: Kind) -> Any:
    """Take the lock in the name of ``holder`` so that callers of this kind must wait; the first release lets one in."""
    if kind == "reader":
        holder: Any = client.rwlock(name, owner="holder").write
    else:
        holder, _ = make(client, name, kind, owner="holder")
    take(holder, PERMITS_MAX if kind == "permits" else 1)
    return holder


def take(lock: AnyLock, levels: int) -> None:
    """Acquire so many levels of the lock."""
    for _ in range(levels):
        assert lock.acquire(timeout=20)


def leave(lock: AnyLock) -> None:
    """Release every level that the caller has."""
    while lock.hold_count:
        lock.release()
