"""Who owns a hold.

On the masters a hold is named ``<client>:<uuid>``: one client object, one outermost acquire. Only the client knows
which callers may *use* it: one thread, or all that name the same ``owner=``. It knows a thread by an object in its
`threading.local`, which dies with the thread, and not by its ident, because idents are recycled.

The tasks of an event loop share their thread, and so would share its hold: each would come in on top of the others. So
a hold also knows which task took it, see `Taker`.
"""

import asyncio
import itertools
import re
import threading
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from operator import attrgetter
from typing import NamedTuple

_serials = itertools.count(1)
_UNREADABLE = re.compile(r"[^A-Za-z0-9_.-]")
_READABLE_LENGTH_MAX = 64


OwnerKey = Hashable

#: The event loop that the calling thread runs, or None. redis-py imports asyncio, so it costs nothing to do so here.
running_loop = asyncio._get_running_loop


class ThreadOwner:
    """One thread, for as long as it lives. Only that thread's `threading.local` keeps this object."""

    __slots__ = ("__weakref__", "who")

    who: "Who"

    def __init__(self) -> None:
        self.who = Who(next(_serials), weakref.ref(self), None)


ThreadRef = weakref.ref[ThreadOwner]


class Who(NamedTuple):
    """Who calls.

    Attributes:
        key: what its holds are kept under.
        thread: dead once the owner thread has ended; None where ``owner=`` names the owner.
        name: what ``owner=`` names, or None.
    """

    key: OwnerKey
    thread: ThreadRef | None
    name: str | None


def named(owner: str) -> Who:
    """The callers that name this ``owner=``."""
    return Who(("owner", owner), None, owner)


class _Local(threading.local):
    """What each thread has of its own; made when the thread first asks for it."""

    def __init__(self) -> None:
        self._owner = ThreadOwner()
        self.who = self._owner.who


#: The calling thread, also one that was started through ``_thread``.
current_thread: Callable[[], Who] = partial(attrgetter("who"), _Local())


class _Callback:
    """What an event loop runs outside a task. One callback can't be told from another."""

    def __repr__(self) -> str:
        return "a callback"


A_CALLBACK = _Callback()


def running_task() -> object | None:
    """What the calling thread's event loop runs: a task, or `A_CALLBACK`; None where the thread runs no loop."""
    loop = running_loop()
    if loop is None:
        return None
    task = asyncio.current_task(loop)
    return A_CALLBACK if task is None else task


class Taker(NamedTuple):
    """Which task of its thread's event loop took a hold, or took levels of one that the thread had before.

    Attributes:
        task: what `running_task` said; weak, because the ids of tasks are recycled, and a hold keeps no task alive.
        below: the hold count before that. Once there are no more levels, it has given back all of its own.
    """

    task: "weakref.ref[object]"
    below: int


def taker_of(running: object | None, count: int) -> Taker | None:
    """The taker of what is above the first `count` levels, taken while the loop runs `running`."""
    return None if running is None else Taker(weakref.ref(running), count)


def still_inside(taker: Taker | None, count: int) -> Taker | None:
    """`taker`, unless a hold with `count` levels has none of its own any more."""
    return taker if taker is not None and count > taker.below else None


def may_nest(taker: Taker | None, running: object | None) -> bool:
    """Whether one more level may be taken while the loop runs `running`, where `taker` is still inside.

    Not by another task: it would be inside together with the first. A thread that runs no loop at the moment, and a
    hold that was taken outside any, know no tasks.
    """
    return taker is None or running is None or taker.task() is running


def readable(text: str) -> str:
    """`text` as it may stand inside a ``<client>`` or a ``<uuid>``: short, and without ``:`` or blanks."""
    return _UNREADABLE.sub("_", text)[:_READABLE_LENGTH_MAX]


def attempt_name(waiter: bytes, number: int, ticket: int | None = None) -> bytes:
    """The owner's name of one attempt of a wait: its waiter is what comes before the ``~`` (see ``lua/_lib``).

    With the waiter's ticket, if it has one: a waiter that queues where the attempt has the lock gets a larger one.
    """
    return b"%b~%d" % (waiter, number) if ticket is None else b"%b~%d.%d" % (waiter, number, ticket)


def has_ticket(owner: bytes) -> bool:
    """Whether the waiter behind an owner's name had a ticket among several masters, and so a place in their queues."""
    return b"." in owner.partition(b"~")[2]


def waiter_name(owner: bytes) -> bytes:
    """The waiter behind an owner's name."""
    return owner.partition(b"~")[0]
