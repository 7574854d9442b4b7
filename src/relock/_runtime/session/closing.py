"""End of a session: waiters leave the queues, calls that are under way end, and threads stop.

If a session is still open when the process ends, relock's handler of `atexit` finishes what is pending on the masters,
as `close` does. The handler does not close the client, which later handlers of `atexit` may still use. It runs when all
threads that the interpreter waits for have ended. Daemon threads still run then, but from Python 3.12 on no thread can
be started any more.
"""

import atexit
import itertools
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import FrameType

from relock._core.effects import Answer, Ask, Failure
from relock._core.flows import release as release_flows
from relock._core.quorum import is_status
from relock._runtime.driver import Driver
from relock._runtime.machine import THREADS
from relock._runtime.session.session import Session, sessions
from relock._runtime.wakeups.waiter import Waiter

logger = logging.getLogger("relock.session")

GRANTEES_SECONDS = 0.5  # a client that is closed waits this long for waiters that were given a lock at that moment
GRANTEES_LOOK_SECONDS = 0.001  # between two checks whether these waiters have given it back
CONNECTING_SECONDS = 0.01  # between two requests to a master that is being connected
JOIN_SECONDS = 2.0
SETTLE_SECONDS = 0.5  # a client that is closed waits this long for the log


def close(session: Session) -> None:
    """End threads, waits and connections; leave the holds to their leases.

    A signal handler may call this in the middle of a call, which can't end before the handler returns. Then another
    thread waits until that call has ended, and closes the session with what the call has left.
    """
    if session.closed and not session.is_half_closed:
        return
    door = _door_of_call() if session.platform is THREADS else None
    if door is not None:
        session.is_closing = session.closed = True  # so the interrupted call ends when it goes on
        with suppress(RuntimeError):  # there can't be another thread now
            session.platform.start(partial(_close_after, session, door), "relock-closer")
            return
    _close(session)


def _close_after(session: Session, door: FrameType) -> None:
    _see_off(session, door)
    _close(session)


def _close(session: Session) -> None:
    session.is_half_closed = False  # so that another thread which calls `close` meanwhile returns at once
    try:
        _end(session)
    except BaseException:  # an interrupt: the next call of `close` begins again
        session.is_half_closed = True
        raise


def drop(session: Session) -> bool:
    """Have the session end once nothing is held: its client was garbage-collected, so no further call can come.

    A finalizer calls this, at any instruction of any thread, so this function takes no lock and does not wait. Return
    whether a thread or a connection had to be ended.
    """
    if session.closed or session.platform is not THREADS or sys.is_finalizing():
        return False
    services = [service for service in session.services() if service.has_begun]
    for service in services:
        service.call_after_steps(partial(_end_if_idle, session))
    if services or not any(pool.connections or pool.loop_connections for pool in session.pools):
        return bool(services)
    _disconnect(session)
    return True


def _end_if_idle(session: Session) -> None:
    """Close the session unless a lock is held: such a hold is renewed as long as its owner lives.

    The session's own threads call this, so a new thread closes the session: `close` waits for them to end.
    """
    is_idle = all(hold.loss is not None for hold in session.holds.copy().values())
    if is_idle and not session.closed and next(session.closers) == 0:
        try:
            session.platform.start(partial(close, session), "relock-closer")
        except RuntimeError:  # there can't be another thread now
            session.closers = itertools.count()


def abandon_in_child(session: Session) -> None:
    """Close the copies of the parent's sockets in a forked child, and send nothing to any server."""
    session.closed = True
    for hub in session.hubs.all():
        hub.abandon()
    for pool in session.pools:
        pool.abandon()


def _end(session: Session) -> None:
    """End threads, waits and connections, and leave nothing but the holds on any master."""
    waiters = _finish(session)
    session.is_closing = False
    for hub in session.hubs.all():
        if hub.channels is not None:
            hub.channels.close()
    services = (session.watchdog, *session.hub.subscriptions)
    for service in services:
        service.stop()
    session.hubs.wake_all()
    for service in services:
        service.join(JOIN_SECONDS)
    session.hub.shared.stop()
    _leave_queues(session, waiters)  # once more: a heartbeat that was under way may have restored places
    for master in session.masters:
        if master.reconnector is not None:
            master.reconnector.stop()  # Serve, then stop: the janitor needed its connections
    _disconnect(session)
    session.platform.log.settle(SETTLE_SECONDS)


def _disconnect(session: Session) -> None:
    """Close the connections of threads and of loops; stop the callbacks' threads after the callbacks that wait."""
    for pool in session.pools:
        pool.close()
    for foreground in session.foregrounds.copy():
        foreground.close()
    session.hubs.stop_spare()
    session.losses.stop()
    for observer in session.observers:
        session.events.hand(observer.end, None)
    session.events.stop()


def _finish(session: Session) -> list[Waiter]:
    """Give up all places in queues, and end what calls have left on the masters; return all waiters.

    This returns at once if nothing is pending. Otherwise it lasts until the last not-after time of the requests that
    were sent, and a node timeout longer if masters are silent.
    """
    session.is_closing = session.closed = True
    for foreground in session.foregrounds.copy():
        foreground.end_if_closed()
    _end_calls_for_several(session)
    waiters = session.hubs.waiters()  # also those without a ticket, whose place may have been taken just now
    _see_grantees_off(session, _leave_queues(session, waiters))
    _see_calls_off(session)
    session.janitor.stop()  # Serve, then stop: the janitor still needs connections and subscriptions for its undos
    session.janitor.join(JOIN_SECONDS + 3 * session.node_timeout)
    return waiters


def _door_of_call() -> FrameType | None:
    """Return the frame of the door whose call a signal handler on this thread has interrupted; None without one."""
    return next((frame.f_back for frame in _stack(sys._getframe(1)) if frame.f_code is Driver.run.__code__), None)


def _see_off(session: Session, door: FrameType) -> None:
    """Wait until an interrupted call has left its `door`, which hands its undo over; a node timeout at most."""
    until = session.clock() + session.node_timeout
    while session.clock() < until and any(door in _stack(top) for top in sys._current_frames().values()):
        session.platform.sleep(GRANTEES_LOOK_SECONDS)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _finish_at_exit() -> None:
    for session in sessions:
        try:
            _wait_until_closed(session) if session.closed else _finish_for_exit(session)
        except Exception:
            session.platform.log.error(logger, "pending work at exit is left to its lease", exc_info=True)


def _wait_until_closed(session: Session) -> None:
    """Wait for another thread that is closing the session: the interpreter's end would cut off that thread."""
    until = session.clock() + JOIN_SECONDS + 4 * session.node_timeout
    while session.is_closing and session.clock() < until:
        session.platform.sleep(GRANTEES_LOOK_SECONDS)


def _finish_for_exit(session: Session) -> None:
    session.is_ending = True
    try:
        for foreground in session.foregrounds.copy():
            foreground.end_if_stopped()
        _finish(session)
    finally:
        session.closed = session.is_ending = session.is_closing = False  # in this order: see `Foreground`


def _end_calls_for_several(session: Session) -> None:
    """Have callers that wait for one of several locks give back those that they have; wait a node timeout at most."""
    until = session.clock() + session.node_timeout
    while session.several and session.clock() < until:
        for record in session.several.copy():
            session.overtake(record)
            for part in record.members:
                for waiter in part.owners[:1]:
                    session.hubs.look_again(waiter)
        session.platform.sleep(GRANTEES_LOOK_SECONDS)


def _leave_queues(session: Session, waiters: list[Waiter]) -> list[Waiter]:
    """Give up the places of `waiters`; return the waiters that had no place any more on some master.

    A master that does not answer is left out: its messages for these waiters would not come either. One that is being
    connected is asked again: a releaser could give one of these waiters the lock there, and nobody would hear of it.
    """
    ask = Ask(
        tuple(release_flows.leave_call(waiter.keys, waiter.owner) for waiter in waiters),
        session.clock() + session.node_timeout,
    )
    answers = session.ask_shielded(ask) if waiters else []
    while session.clock() < ask.until and any(_is_unasked(session, i, one) for i, one in enumerate(answers)):
        session.platform.sleep(CONNECTING_SECONDS)
        again = session.ask_shielded(ask)
        answers = [again[i] if _is_unasked(session, i, one) else one for i, one in enumerate(answers)]
    return [w for i, w in enumerate(waiters) if any(is_status(answer[i], b"absent") for answer in answers)]


def _is_unasked(session: Session, master: int, answer: Answer) -> bool:
    """Return whether nothing was sent to the master with this number, though it is not known to be down."""
    return isinstance(answer[0], Failure) and not (answer[0].sent or session.is_down(master))


def _see_grantees_off(session: Session, grantees: list[Waiter]) -> None:
    """Wait until `grantees` have given back what they were given.

    A waiter that a master no longer had in its queue was given the lock, as a rule. The waiter reads that message,
    finds the client closed, and gives the lock back. After `close`, no thread would read the message.
    """
    until = session.clock() + GRANTEES_SECONDS
    while session.clock() < until and any(session.hubs.waiter(waiter.owner) for waiter in grantees):
        session.platform.sleep(GRANTEES_LOOK_SECONDS)


def _see_calls_off(session: Session) -> None:
    """Wait for the answers that are under way: a caller that misses its answer may have the lock and not know it."""
    until = session.clock() + session.node_timeout
    loops = session.foregrounds.copy()
    while session.clock() < until and (any(p.is_in_use for p in session.pools) or any(one.is_in_use for one in loops)):
        session.platform.sleep(GRANTEES_LOOK_SECONDS)


atexit.register(_finish_at_exit)
