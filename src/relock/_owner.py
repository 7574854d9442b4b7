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
from typing import Any, NamedTuple

_serials = itertools.count(1)
_UNREADABLE = re.compile(r"[^A-Za-z0-9_.-]")
_READABLE_LENGTH_MAX = 64


OwnerKey = Hashable

#: The event loop that the calling thread runs, or None. redis-py imports asyncio, so it costs nothing to do so here.
running_loop = asyncio._get_running_loop


class ThreadOwner:
    """One thread, for as long as it lives. Only that thread's `threading.local` keeps this object.

    Attributes:
        ident: the thread's identifier, which is its own while this object lives.
    """

    __slots__ = ("__weakref__", "ident", "who")

    ident: int
    who: "Who"

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.who = Who(next(_serials), weakref.ref(self), None)

    def get_name(self) -> str:
        """Return the thread's name; its identifier where `threading` did not start it."""
        return next((one.name for one in threading.enumerate() if one.ident == self.ident), str(self.ident))


ThreadRef = weakref.ref[ThreadOwner]


class TaskRef:
    """One task of an event loop, for as long as it can run. It does not keep the task alive."""

    __slots__ = ("_task",)

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self._task = weakref.ref(task)

    def __call__(self) -> "asyncio.Task[Any] | None":
        """Return the task; None once the task has ended, or its loop is closed, and so can never run it again."""
        task = self._task()
        return None if task is None or task.done() or task.get_loop().is_closed() else task


def task_of(thread: "ThreadRef | TaskRef | None") -> "asyncio.Task[Any] | None":
    """The task that an owner is, while it runs."""
    return thread() if isinstance(thread, TaskRef) else None


def caller_name(key: "OwnerKey", thread: "ThreadRef | TaskRef | None") -> str:
    """Return how people know the caller that a hold under `key` belongs to."""
    if thread is None:
        return f"owner={key[1]!r}" if isinstance(key, tuple) else "an owner="
    kind, caller = "task" if isinstance(thread, TaskRef) else "thread", thread()
    return f"a {kind} that has ended" if caller is None else f"the {kind} {caller.get_name()!r}"


def loop_of(caller: object) -> asyncio.AbstractEventLoop | None:
    """Return the event loop of a task; None where the caller is a thread."""
    return caller.get_loop() if asyncio.isfuture(caller) else None


def runs_on(caller: object, loop: object) -> bool:
    """Whether `caller` is a task of that event loop."""
    return loop_of(caller) is loop


class Who(NamedTuple):
    """The owner for which a call is made.

    Attributes:
        key: the key of its holds in the book.
        thread: a reference to the thread or task that is the owner: dead once that has ended, or the task's loop is
            closed. None where ``owner=`` names the owner.
        name: what ``owner=`` names, or None.
    """

    key: OwnerKey
    thread: ThreadRef | TaskRef | None
    name: str | None


def may_call_at_once(thread: ThreadRef | TaskRef | None) -> bool:
    """Whether several calls for one owner may be under way: not where that is a thread, which has one at a time.

    A task has others carry its calls out, as ``asyncio.gather`` and ``asyncio.wait_for`` do.
    """
    return thread is None or isinstance(thread, TaskRef)


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


class _Tasks(threading.local):
    """The tasks of the loop that each thread runs; each thread has its own, so no two change one at once."""

    def __init__(self) -> None:
        known: dict[weakref.ref[asyncio.Task[Any]], Who] = {}
        self.known = known  # a WeakKeyDictionary would cost a call of Python's for each look
        self.forget = lambda task: known.pop(task, None)  # whatever thread collects the task


_tasks = _Tasks()


def current_task() -> Who | None:
    """The task that the calling thread's event loop runs; None outside a task.

    By the task object, not by its name or id, which others may have, and not by a context variable: a child copies its
    parent's context, and would come in on top of it.
    """
    loop = running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    if task is None:
        return None
    tasks = _tasks
    who = tasks.known.get(weakref.ref(task))
    if who is None:
        who = tasks.known[weakref.ref(task, tasks.forget)] = Who(next(_serials), TaskRef(task), None)
    return who


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
