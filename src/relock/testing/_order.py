"""Watch of the order in which locks are taken, and the hook by which the watch sees every acquire.

The hook stands in for `Calls.acquire` while a watch is open; at other times it does not exist, and costs nothing.

The watch uses no lock of Python's: a signal handler may take a relock lock between any two instructions. It needs
none, because single operations of dicts and lists are atomic.
"""

import asyncio
import inspect
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Formatter
from types import FrameType
from typing import Any, NamedTuple

from relock import _synchronized
from relock._core.call_record import CallFlow, CallRecord
from relock._core.calls import Calls
from relock._core.hold import Hold
from relock._core.host import Host
from relock._core.lock_spec import LockSpec
from relock._core.multi import NotAll, _MemberCalls
from relock._core.quorum import Outcome
from relock._owner import Owner, caller_name, owner_key, task_of
from relock.aio_lock import AsyncLock
from relock.lock import Lock
from relock.testing._order_graph import Cycle, OrderEdge, OrderGraph, class_of, describe, find_cycles, write_graph

STACK_FRAMES = 5  # enough to tell two ways to one line apart
# Frames of these packages stand between those of the user's code, or below them all.
_HIDDEN = {"relock", "_relock_pytest", "asyncio", "pytest_asyncio", "contextlib", "threading", "concurrent", "unittest"}
_BELOW = {"_pytest", "pytest", "runpy", "asyncio.events", "asyncio.runners"}


class OrderError(AssertionError):
    """Raised when a watch ends that has seen locks taken in orders which together make a cycle.

    Attributes:
        cycles: the cycles, each a tuple of `OrderEdge`.
    """

    def __init__(self, cycles: Iterable[Cycle]) -> None:
        self.cycles: tuple[Cycle, ...] = tuple(cycles)
        super().__init__(describe(self.cycles))


class OrderWatch:
    """Orders that were seen while a watch was open.

    Attributes:
        graph: an `OrderEdge` for each pair of classes: that of the lock held, that of the lock wanted.
    """

    def __init__(self) -> None:
        self.graph: OrderGraph = {}

    def check(self) -> None:
        """Check what was seen so far.

        Raises:
            OrderError: the orders make a cycle.
        """
        if cycles := find_cycles(self.graph.copy()):
            raise OrderError(cycles)

    def write(self, path: str | Path) -> None:
        """Write what was seen so far as a JSON file, for ``relock order merge``."""
        write_graph(self.graph.copy(), path)


@contextmanager
def watch_order(path: str | Path | None = None) -> Iterator[OrderWatch]:
    """Watch the order in which all threads and tasks of this process take locks; check the order at the end.

    Args:
        path: a file to write the graph to, for ``relock order merge``.

    Raises:
        OrderError: the block ended without an error, and the orders make a cycle.
    """
    watch = OrderWatch()
    _open.append(watch)
    _install()
    try:
        yield watch
    finally:
        _open.remove(watch)
        _uninstall()
        if path is not None:
            watch.write(path)
    watch.check()


# What is seen ---------------------------------------------------------------------------------------------------------


class _Site(NamedTuple):
    """Place of one acquire in the user's code."""

    template: str | None  # of `synchronized`, if that made the lock
    frames: tuple[tuple[str, int, str], ...]

    def class_of(self, name: str) -> str:
        return class_of(name if self.template is None else _without_fields(self.template))

    def lines(self) -> tuple[str, ...]:
        return tuple(f"{file}:{line} in {function}" for file, line, function in self.frames)


_open: list[OrderWatch] = []
_hosts: "weakref.WeakKeyDictionary[Host, None]" = weakref.WeakKeyDictionary()  # the clients that were seen
_sites: "weakref.WeakKeyDictionary[Hold, _Site]" = weakref.WeakKeyDictionary()  # where the holds were taken
_UNSEEN = _Site(None, ())


def _ask(host: Host, specs: Iterable[LockSpec], who: Owner, until: float) -> _Site:
    """Note an edge from each lock of the owner to each of those for which it is about to wait; return the place."""
    site = _find_site(sys._getframe(2), task_of(who.liveness))
    _hosts[host] = None
    has_either, names = host.holds.has_either, [spec.keys.name for spec in specs]
    # A call that does not wait can't be part of a deadlock. An owner that has the lock on either side does not wait.
    wanted = [name for name in names if until > host.clock() and not has_either((name, who.key))]
    for hold in _holds_of(host, who) if wanted else ():
        for name in wanted:
            if name != hold.keys.name:
                _note(hold, name, caller_name(who.key, who.liveness), site)
    return site


def _note(hold: Hold, wanted: str, caller: str, site: _Site) -> None:
    taken = _sites.get(hold, _UNSEEN)
    held = hold.keys.name
    pair = taken.class_of(held), site.class_of(wanted)
    edge = OrderEdge(*pair, held, wanted, caller, taken.lines(), site.lines())
    for watch in _open.copy():
        watch.graph.setdefault(pair, edge)


def _take(host: Host, specs: Iterable[LockSpec], who: Owner, site: _Site) -> None:
    """Note the place where the owner has taken its holds, unless they were taken at another place before."""
    for spec in specs:
        hold = host.holds.get((spec.keys.name, who.key))
        if hold is not None:
            _sites.setdefault(hold, site)


def _holds_of(host: Host, who: Owner) -> list[Hold]:
    """Return what the owner holds, a thread or a task also through other clients; ``owner=`` is a client's own."""
    owner = owner_key(who.key)
    hosts = [host] if who.liveness is None else [other for ref in _hosts.keyrefs() if (other := ref()) is not None]
    return [
        hold
        for one in hosts
        if not one.closed
        for hold in one.holds.copy().values()
        if hold.loss is None and owner_key(hold.key) == owner
    ]


def _find_site(frame: FrameType | None, owner: "asyncio.Task[Any] | None") -> _Site:
    """Return the template and the user's frames of an acquire that `frame` is part of.

    If another task than the `owner` carries the acquire out, these are the frames in which the owner waits for that.
    """
    template, frames = None, list[FrameType]()
    for one in _callers(frame):
        if one.f_globals.get("__name__") == _synchronized.__name__ and not frames and template is None:
            template = _template_in(one.f_locals)
        elif _package_of(one) not in _HIDDEN:
            frames.append(one)
    if owner is not None and not frames:
        frames = [one for one in _awaits(owner) if _package_of(one) not in _HIDDEN][::-1]
    shown = ((one.f_code.co_filename, one.f_lineno, one.f_code.co_qualname) for one in frames[:STACK_FRAMES])
    return _Site(template, tuple(shown)[::-1])


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frame and those that called it, down to what runs the user's code."""
    while frame is not None and not _BELOW & {_package_of(frame), frame.f_globals.get("__name__")}:
        yield frame
        frame = frame.f_back


def _awaits(task: "asyncio.Task[Any]") -> Iterator[FrameType]:
    """Yield the frames of the coroutines in which a task waits, the outermost first."""
    waiting: Any = task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        yield frame
        waiting = waiting.cr_await


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _template_in(variables: Any) -> str | None:
    """Return the template of a function that `synchronized` has decorated, from the variables of its wrapper."""
    name_for = variables.get("name_for")
    return None if name_for is None else inspect.getclosurevars(name_for).nonlocals["template"]


def _without_fields(template: str) -> str:
    """Return `template` with ``#`` for each field: as the class of the name is, if the field is a number."""
    return "".join(text + ("" if field is None else "#") for text, field, _, _ in Formatter().parse(template))


# The hook -------------------------------------------------------------------------------------------------------------

_acquire_unwatched, _acquire_all_unwatched = Calls.acquire, _MemberCalls.acquire_all


def _acquire(
    calls: Calls, record: CallRecord, spec: LockSpec, who: Owner, until: float, *, count: int = 1
) -> CallFlow[Outcome | None]:
    """Take a level as `Calls.acquire` does, watched; the members of a multi-lock are watched as one, below.

    No edge leads to a permit or from one: each permit is an owner of its own.
    """
    if isinstance(calls, _MemberCalls):
        return (yield from _acquire_unwatched(calls, record, spec, who, until, count=count))
    site = _ask(calls._host, [spec], who, until)
    outcome = yield from _acquire_unwatched(calls, record, spec, who, until, count=count)
    if outcome is None:
        _take(calls._host, [spec], who, site)
    return outcome


def _acquire_all(
    calls: _MemberCalls, record: CallRecord, members: "tuple[LockSpec, ...]", who: Owner, until: float
) -> CallFlow[NotAll | None]:
    """Take all members as `_MemberCalls.acquire_all` does, watched as one: their order among themselves is safe."""
    site = _ask(calls._host, members, who, until)
    outcome = yield from _acquire_all_unwatched(calls, record, members, who, until)
    if outcome is None:
        _take(calls._host, members, who, site)
    return outcome


def _install() -> None:
    """Put the hook where it is looked up; the doors of plain locks have a reference of their own."""
    _set(_acquire, _acquire_all)


def _uninstall() -> None:
    """Take the hook away if no watch is open."""
    if not _open:
        _set(_acquire_unwatched, _acquire_all_unwatched)
        _hosts.clear()
        _sites.clear()
    if _open:  # another thread has opened a watch meanwhile
        _install()


def _set(acquire: Any, acquire_all: Any) -> None:
    Calls.acquire = acquire  # type: ignore[method-assign]
    _MemberCalls.acquire_all = acquire_all  # type: ignore[method-assign]
    for door in (Lock, AsyncLock):
        door._acquiring = staticmethod(acquire)
