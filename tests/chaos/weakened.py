"""CONTROLS ONLY: take safety checks out of relock in a worker's own process, to show that the nemesis notices.

The package itself stays as it is: code is replaced only in the memory of a worker that was told to.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import evolve

GUARDS: dict[str, Callable[[], None]] = {}
RECONNECT_SECONDS = 0.02
RECONNECTS_MAX = 250
STALLED_SECONDS = 0.1


def guard(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the function that takes this safety check out."""

    def keep(take_out: Callable[[], None]) -> Callable[[], None]:
        GUARDS[name] = take_out
        return take_out

    return keep


def _replace(where: object, name: str, by: object) -> None:
    """Replace an attribute, which must be there: a control that is out of date would show nothing."""
    getattr(where, name)
    setattr(where, name, by)


@guard("validity")
def believe_for_ever() -> None:
    """Let no hold be over before its holder releases it: the client never compares the clock with its deadline."""
    from relock._core.hold import Hold

    def no_reason(hold: Hold, now: float) -> None:
        return None

    def always_enough(hold: Hold, now: float) -> float:
        return hold.ttl

    _replace(Hold, "reason_for_loss", no_reason)
    _replace(Hold, "remaining", always_enough)


@guard("one attempt")
def send_again() -> None:
    """Let the client open a broken connection again silently, and resend requests without a reply: redis-py's retries.

    The client then believes that the new connection leads to the same incarnation as before, and tells the scripts so.
    """
    from relock import _scripts
    from relock._core.asking import Round
    from relock._runtime.masters.connections import Connection
    from relock._runtime.masters.errors import NETWORK_ERRORS
    from relock._runtime.masters.opener import Opener
    from relock._runtime.masters.pool import Pool
    from relock._runtime.masters.round import InFlight, Login
    from relock._runtime.net.channel import open_channel

    receive, request, introduce = Connection.receive, Connection.request, Opener.introduce

    def introduce_once(opener: Opener, replies: Sequence[Any]) -> bytes:
        return opener.facts.incarnation or introduce(opener, replies)

    def connect_again(connection: Connection) -> None:
        in_flight = list(connection.in_flight)
        connection.in_flight.clear()
        connection.raw.disconnect()
        for _ in range(RECONNECTS_MAX):
            with suppress(*NETWORK_ERRORS):
                connection.raw.connect()
                break
            time.sleep(RECONNECT_SECONDS)
        connection.channel = open_channel(connection.raw, connection.pool.opener.node_timeout)
        for one in in_flight:
            assert not isinstance(one, Login)
            connection._send(one if isinstance(one, InFlight) else InFlight.all_of(one), source=True)

    def patient_receive(connection: Connection) -> None:
        try:
            receive(connection)
        except NETWORK_ERRORS:
            connect_again(connection)

    def patient_request(connection: Connection, round_: Round) -> None:
        try:
            request(connection, round_)
        except NETWORK_ERRORS:
            connect_again(connection)

    def always_sound(pool: Pool, connection: Connection) -> bool:
        return True

    def never_straight(*_: object) -> None:
        return None

    _replace(_scripts, "_fragment", _never_asking(_scripts._fragment))
    _scripts.load.cache_clear()
    _replace(Opener, "introduce", introduce_once)
    _replace(Pool, "exchange", never_straight)
    _replace(Connection, "receive", patient_receive)
    _replace(Connection, "request", patient_request)
    _replace(Pool, "_is_sound", always_sound)


@guard("sockets that prove what they are")
def believe_sockets() -> None:
    """Let the client believe that a socket leads to the same server as when it was opened, however long ago."""
    from relock import _scripts

    _replace(_scripts, "_fragment", _never_asking(_scripts._fragment))
    _scripts.load.cache_clear()


def _never_asking(fragment: Callable[[Path, str, str | None], str]) -> Callable[[Path, str, str | None], str]:
    """Return the fragments of the scripts without the check of the server's incarnation."""
    return _with(fragment, "just_now", "just_now_us = 1000", "just_now_us = 2 ^ 53")


def _with(
    fragment: Callable[[Path, str, str | None], str], changed_name: str, there: str, instead: str
) -> Callable[[Path, str, str | None], str]:
    """Return the fragments of the scripts with another text in one of them."""

    def changed(folder: Path, name: str, piece: str | None = None) -> str:
        text = fragment(folder, name, piece)
        if name != changed_name:
            return text
        assert text.count(there) == 1, "the script has changed: nothing would be weakened"
        return text.replace(there, instead)

    return changed


@guard("subscriptions that move")
def stay_subscribed() -> None:
    """Let a subscription stay where it was; the client takes the grants that it hears there for the master's."""
    from relock._runtime.wakeups.subscription import Subscription

    granted_at = Subscription.granted_at

    def never_moved(subscription: Subscription) -> bool:
        return False

    def whoever_made_it(subscription: Subscription, granted_us: int, incarnation: bytes, arrived_at: float) -> float:
        subscription._incarnation = incarnation
        return granted_at(subscription, granted_us, incarnation, arrived_at)

    _replace(Subscription, "_has_moved", never_moved)
    _replace(Subscription, "granted_at", whoever_made_it)


@guard("a thread for the log")
def log_on_the_spot() -> None:
    """Run handlers of the log on the thread that logs."""
    from relock._runtime.background.telling import Log

    def on_the_spot(log: Log, tell: Callable[[Any], object], value: object, *, is_ordinary: bool = False) -> None:
        tell(value)

    Log.hand = on_the_spot  # type: ignore[assignment]  # all queues have `hand`; only the log's is replaced


@guard("one name for each hold")
def name_threads() -> None:
    """Give all holds of a thread the same name on the masters, so that a late release of one ends another."""
    from relock._runtime.wakeups.hub import AnyHub, Hub

    draw = Hub.draw_names

    def draw_names(hub: AnyHub) -> None:
        draw(hub)

        def name(_: int) -> bytes:
            return b"%bthread%x" % (hub.owner_head, threading.get_ident())

        hub.names = map(name, itertools.count())  # not a generator, because threads share it

    _replace(Hub, "draw_names", draw_names)


@guard("one owner for each task")
def share_holds_among_tasks() -> None:
    """Make all tasks of a process one owner, as if their loop's thread were it: each enters on top of the others."""
    from relock import _owner, aio_lock

    def anybody() -> _owner.Owner:
        return _owner.named("loop")

    _replace(aio_lock, "current_task", anybody)


@guard("names in one order")
def leave_names_as_they_are() -> None:
    """Take several locks in the order in which the caller names them, and look for no deadlock."""
    from relock import client

    _replace(client, "check_names", list)
    look_for_no_deadlock()


@guard("search for deadlocks")
def look_for_no_deadlock() -> None:
    """Let rings of callers stay, within a client and between clients."""
    from relock._core import calls
    from relock._core.hold import FOREVER
    from relock._runtime.background import chase

    _replace(calls, "check_ring", lambda _host, _record: None)
    _replace(chase.Chase, "next_at", lambda _chase: FOREVER)


@guard("permits that have slots")
def count_permits() -> None:
    """Let each master give any slot that it has free, as a counter does, and take any quorum of grants for a permit."""
    from relock._core import lock_spec

    made = lock_spec.LockSpec.of

    def without_slots(*arguments: Any) -> lock_spec.LockSpec:
        return evolve(made(*arguments), slots=None)

    _replace(lock_spec.LockSpec, "of", without_slots)


@guard("readers that look at the writer")
def pass_over_writers() -> None:
    """Let readers in whatever a writer has."""
    from relock import _scripts

    text = "  if writer and not is_own(writer, owner) then\n"
    _replace(_scripts, "_fragment", _with(_scripts._fragment, "take_read", text, "  if false then\n"))
    _scripts.load.cache_clear()


@guard("downgrades without a gap")
def release_and_take_again() -> None:
    """Let a writer that becomes a reader release the lock, and take it again as a reader."""
    from relock import rwlock

    def in_two_steps(write: rwlock.WriteLock) -> None:
        write.release()
        rwlock.ReadLock(write._client, write._reading, write.name).acquire()

    _replace(rwlock.WriteLock, "downgrade", in_two_steps)


@guard("parties that have names")
def count_arrivals() -> None:
    """Count each arrival at a latch as another party, also that of a job which runs twice."""
    from relock._core.host import WaiterRegister
    from relock._latches import LatchHandle

    def anybody(latch: LatchHandle, party: str | None, register: WaiterRegister) -> bytes:
        return next(register.names)

    _replace(LatchHandle, "_party", anybody)


@guard("threads that renew for tasks")
def renew_on_the_loop() -> None:
    """Renew the holds of tasks only while their loop turns, as a library does that renews in a task."""
    from relock._core.pulse import Pulse

    def stands_still(pulse: Pulse, limit: float) -> None:
        make(pulse, STALLED_SECONDS)

    make = Pulse.__init__
    _replace(Pulse, "__init__", stands_still)
