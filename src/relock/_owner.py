"""Owners of holds.

On the masters a hold is named ``<client>:<uuid>``: one client object, one outermost acquire. Only the client knows
which callers may *use* it: one thread, one task, or all that name the same ``owner=``. A thread is known by an object
in its `threading.local`, which dies with the thread, and not by its ident, because idents are recycled.

The tasks of an event loop share their thread, and so its hold of a lock for threads: each task could nest in the hold
of another. So a hold also knows which task took it, as a `NestedTask`.
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

serials = itertools.count(1)
_UNREADABLE = re.compile(r"[^A-Za-z0-9_.-]")
_WISH = re.compile(r"#[0-9]+/([0-9]{1,4})(?:@[0-9]+)?$")  # the end of a waiter's name: see `LockSpec.of`
_READABLE_LENGTH_MAX = 64
LATCH_MARK = b"!"  # ends the name of a waiter at a latch
REST_MARK = "~"  # begins the name of a rest, which no owner has: see `Hold.rest_until`
READ_MARK = b"&"  # ends the name of a reader, before the name of its own hold for writing, if any
_MADE = re.compile(
    r"(?:(.+)-([0-9]+)|(.+))-[0-9a-f]{16}(?:\.[0-9]+)?:\$?(?:([A-Za-z0-9_.-]*)\.)?[0-9a-f]{16}(?:[@~&#!].*)?"
)
SHARD_MARK = b"$"  # begins the uuid of a waiter that listens on the channel of its name: see `name_channel`
_STEM = re.compile(rb"[@~&#]")  # what may follow the part of a name that its client has made


OwnerKey = Hashable

#: Return the event loop that the calling thread runs, or None. The import costs nothing: redis-py needs asyncio, too.
running_loop = asyncio._get_running_loop


class ThreadOwner:
    """Thread, for as long as it lives. Only that thread's `threading.local` keeps this object.

    Attributes:
        ident: the thread's identifier, which is its own while this object lives.
    """

    __slots__ = ("__weakref__", "ident", "who")

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.who = Owner(next(serials), weakref.ref(self), None)

    def get_name(self) -> str:
        """Return the thread's name; its identifier where `threading` did not start it."""
        return next((one.name for one in threading.enumerate() if one.ident == self.ident), str(self.ident))


ThreadRef = weakref.ref[ThreadOwner]


class TaskRef:
    """Reference to a task of an event loop, for as long as the task can run; it does not keep the task alive."""

    __slots__ = ("_task",)

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self._task = weakref.ref(task)

    def __call__(self) -> "asyncio.Task[Any] | None":
        """Return the task; None once the task has ended, or its loop is closed, and so can never run it again."""
        task = self._task()
        return None if task is None or task.done() or task.get_loop().is_closed() else task


def task_of(liveness: "ThreadRef | TaskRef | None") -> "asyncio.Task[Any] | None":
    """Return the task of an owner that is a task, while the task can run; else None."""
    return liveness() if isinstance(liveness, TaskRef) else None


def caller_name(key: "OwnerKey", liveness: "ThreadRef | TaskRef | None") -> str:
    """Return the name, for people, of the caller that a hold under `key` belongs to."""
    key = owner_key(key)
    if liveness is None or (isinstance(key, tuple) and key[0] == "owner"):
        return f"owner={key[1]!r}" if isinstance(key, tuple) else "an owner="
    kind, caller = "task" if isinstance(liveness, TaskRef) else "thread", liveness()
    return f"a {kind} that has ended" if caller is None else f"the {kind} {caller.get_name()!r}"


def loop_of(caller: object) -> asyncio.AbstractEventLoop | None:
    """Return the event loop of a task; None where the caller is a thread."""
    return caller.get_loop() if asyncio.isfuture(caller) else None


def runs_on(caller: object, loop: object) -> bool:
    """Return whether `caller` is a task of the event loop `loop`."""
    return loop_of(caller) is loop


class Owner(NamedTuple):
    """Owner for which a call is made.

    Attributes:
        key: the key of its holds in the book.
        liveness: a reference to the thread or task that is the owner: dead once that has ended, or the task's loop is
            closed. None where ``owner=`` names the owner, but for a leader that is a task.
        name: what ``owner=`` names, or None.
        takes_turns: True if the owner may have several calls under way, which take turns at a gate; a thread has one at
            a time. A task may have other tasks carry its calls out, as ``asyncio.gather`` and ``asyncio.wait_for`` do.
    """

    key: OwnerKey
    liveness: ThreadRef | TaskRef | None
    name: str | None
    takes_turns: bool = False


def named(owner: str) -> Owner:
    """Return the owner of the callers that name this ``owner=``."""
    return Owner(("owner", owner), None, owner, takes_turns=True)


class PermitKey(NamedTuple):
    """Key of one permit in the book: no other permit has it, also none of the same owner.

    Attributes:
        serial: the number of the permit in this process.
        owner: what ``owner=`` names, or None.
    """

    serial: int
    owner: str | None


def owner_of_permit(caller: Owner) -> Owner:
    """Return the owner of a permit that `caller` takes: any thread or task may use it, while the caller lives."""
    return Owner(PermitKey(next(serials), caller.name), caller.liveness, caller.name)


class ReadKey(NamedTuple):
    """Key of an owner's hold as a reader, beside that as a writer.

    Attributes:
        owner: the key of the owner's hold as a writer.
    """

    owner: OwnerKey


def owner_key(key: OwnerKey) -> OwnerKey:
    """Return the key of the owner itself, also for the key of its hold as a reader."""
    return key.owner if isinstance(key, ReadKey) else key


def as_reader(who: Owner) -> Owner:
    """Return `who` as the owner of its hold as a reader, if it is not that already."""
    return who if isinstance(who.key, ReadKey) else Owner(ReadKey(who.key), who.liveness, who.name, who.takes_turns)


class _Local(threading.local):
    """Values of each thread, made when the thread first asks for them."""

    def __init__(self) -> None:
        self._owner = ThreadOwner()
        self.who = self._owner.who


#: Return the calling thread as an owner, also a thread that was started through ``_thread``.
current_thread: Callable[[], Owner] = partial(attrgetter("who"), _Local())


class _Callback:
    """Callback that an event loop runs outside a task. One callback can't be told from another."""

    def __repr__(self) -> str:
        return "a callback"


A_CALLBACK = _Callback()


def running_task() -> object | None:
    """Return the task that the calling thread's event loop runs, or `A_CALLBACK`; None if the thread runs no loop."""
    loop = running_loop()
    if loop is None:
        return None
    task = asyncio.current_task(loop)
    return A_CALLBACK if task is None else task


class NestedTask(NamedTuple):
    """Task of a thread's event loop that took a hold, or levels of a hold that the thread had before.

    Attributes:
        task: a weak reference to the result of `running_task`: a hold must keep no task alive, and ids are recycled.
        below: the hold count before the task's first level. At this count, the task has released all of its levels.
    """

    task: "weakref.ref[object]"
    below: int


def nested_task_of(running: object | None, count: int) -> NestedTask | None:
    """Return the task inside on the levels above the first `count`, taken while the loop runs `running`."""
    return None if running is None else NestedTask(weakref.ref(running), count)


def still_inside(nested: NestedTask | None, count: int) -> NestedTask | None:
    """Return `nested`, or None if that task has released all of its levels of a hold with `count` levels."""
    return nested if nested is not None and count > nested.below else None


def may_nest(nested: NestedTask | None, running: object | None) -> bool:
    """Return whether one more level may be taken while the loop runs `running`, and `nested` is still inside.

    Another task may not: both would use the lock at the same time. The rule does not apply if the thread runs no loop
    at the moment, or the hold was taken outside any loop.
    """
    return nested is None or running is None or nested.task() is running


def readable(text: str) -> str:
    """Return `text` as it may stand inside a ``<client>`` or a ``<uuid>``: short, and without ``:`` or blanks."""
    return _UNREADABLE.sub("_", text)[:_READABLE_LENGTH_MAX]


def stem_of(owner: bytes) -> bytes:
    """Return the part of an owner's name that its client has made, such as the ``7`` in ``host:7@3000~1.5``."""
    return _STEM.split(owner.partition(b":")[2], 1)[0]


def rest_name(owner: bytes) -> bytes:
    """Return the name of the rest that follows the hold of `owner`."""
    return REST_MARK.encode() + owner


def is_rest(owner: str | None) -> bool:
    """Return whether a holder's name says that the lock rests: its last owner has released it, and nobody has it."""
    return owner is not None and owner.startswith(REST_MARK)


def is_reader(owner: bytes) -> bool:
    """Return whether an owner's name is that of a reader."""
    return READ_MARK in owner.partition(b":")[2]


def attempt_name(waiter: bytes, number: int, ticket: int | None = None) -> bytes:
    """Return the owner's name of one attempt of a wait: the waiter's name comes before the ``~`` (see ``lua/_lib``).

    The name ends with the waiter's ticket, if any. If the attempt has the lock on a master, that master gives later
    waiters larger tickets.
    """
    return b"%b~%d" % (waiter, number) if ticket is None else b"%b~%d.%d" % (waiter, number, ticket)


def has_ticket(owner: bytes) -> bool:
    """Return whether the waiter behind an owner's name had a ticket among several masters, and so a place there."""
    return b"." in owner.partition(b"~")[2]


def handed_slot(owner: bytes) -> int | None:
    """Return the slot that ends the name of a permit which a releaser gave; None for any other name.

    Such a name goes on behind the waiter's with ``~<room>.<ticket>.<slot>``.
    """
    parts = owner.partition(b"~")[2].split(b".")
    return int(parts[2]) if len(parts) == 3 else None


def limit_in(owner: str) -> int | None:
    """Return the limit that the name of a permit's owner, or of a waiter for permits, says; None if it says none."""
    found = _WISH.search(owner.partition("~")[0])
    return None if found is None else int(found[1])


def described(owner: str) -> str:
    """Return an owner's name in words: its process and host, or its client's name, and what ``owner=`` names.

    A name that relock has not made is returned as it is.
    """
    parts = parts_of(owner)
    if parts is None:
        return owner
    host, process, client, name = parts
    where = f"client {client}" if client else f"process {process} on {host}"
    return f"{where}, owner={name!r}" if name else where


def parts_of(owner: str) -> tuple[str | None, int | None, str | None, str | None] | None:
    """Return host and process, or else the client's name, and what ``owner=`` names; None if relock made no such name.

    In the latter, ``_`` stands for each character that an owner's name can't have.
    """
    found = _MADE.fullmatch(owner)
    if found is None:
        return None
    host, process, client, name = found.groups()
    return host, int(process) if process else None, client, name or None


def client_name(owner: bytes) -> bytes:
    """Return the client in an owner's name."""
    return owner.partition(b":")[0]


def waiter_name(owner: bytes) -> bytes:
    """Return the waiter behind an owner's name."""
    return owner.partition(b"~")[0]
