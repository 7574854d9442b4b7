"""Rings of callers that wait for each other, as an operator finds them from outside.

The questions are those of a round of `relock._runtime.background.chase`, but begin with the holders of a lock. A ring
counts if two rounds in a row have found it. Each client must answer here, so one that is silent can be named. Nothing
else happens: no wait ends, and no key changes.
"""

import itertools
from queue import Empty, SimpleQueue
from typing import NamedTuple

from relock._core.deadlocks import Cycle, Ring, cycle_of
from relock._core.effects import Failure
from relock._core.flows.ask import nth_of_each
from relock._errors import QuorumError
from relock._holding import check_answered
from relock._keys import lock_keys
from relock._runtime.background.chase import Key, Round, is_answered, send
from relock._runtime.session.reports import Reports
from relock._runtime.session.session import Session
from relock._runtime.wakeups.hub import ThreadHub

ANSWER_SECONDS = 5.0  # for all answers of one round
_numbers = itertools.count(1)  # of rounds: a client answers no question twice


class Found(NamedTuple):
    """Rings that were found.

    Attributes:
        cycles: for each ring its waits: the lock, the waiting owner, and the holder.
        silent: the holders whose clients did not answer: further rings may go through these.
        problem: the error of a look at the masters, in which case nothing is known; else empty.
    """

    cycles: tuple[Cycle, ...]
    silent: tuple[str, ...]
    problem: str = ""


class _Listener(Reports):
    """Listener that keeps the answers of other clients."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.answers: SimpleQueue[bytes] = session.platform.queue()

    def asked(self, message: bytes) -> None:
        """Keep the answer of another client."""
        self.answers.put(message)


def find_rings(session: Session, name: str) -> Found:
    """Return the rings of callers for which the waiters of a lock wait: through its holders, or those behind them."""
    listener, asker = _Listener(session), f"{session.client_id}.0"  # loops count from 1
    hub = ThreadHub(asker, session.prefix, session.masters, session.platform, listener)
    try:
        hub.listen(lock_keys(session.prefix, name), session.clock() + session.node_timeout)
        return ask_twice(session, asker.encode(), name, listener.answers)
    finally:
        hub.stop()
        hub.shared.stop()


def ask_twice(session: Session, asker: bytes, name: str, answers: "SimpleQueue[bytes]") -> Found:
    """Return what one round has found, or two if there are rings: those that both have found."""
    try:
        rings, silent = before, _ = _ask(session, asker, name, answers)
        if rings:
            rings, silent = _ask(session, asker, name, answers)
    except QuorumError as error:  # of any lock on the way: the user may have no right to see that one
        return Found((), (), str(error))
    cycles = tuple(cycle_of(ring) for key, ring in rings.items() if key in before)
    return Found(cycles, tuple(sorted(hold.decode(errors="replace") for hold in silent)))


def _ask(
    session: Session, asker: bytes, name: str, answers: "SimpleQueue[bytes]"
) -> tuple[dict[Key, Ring], set[bytes]]:
    """Play a round; return its rings, which begin with the lock `name` if it is in them, and the silent holders."""
    one, until = Round(session, b"%b.%d" % (asker, next(_numbers))), session.clock() + ANSWER_SECONDS
    while silent := _explore(session, one, asker, name):
        try:
            one.learn(answers.get(timeout=max(0.0, until - session.clock())))
        except Empty:
            break
    return one.rings(sorted(one.edges.values(), key=lambda edge: edge.lock != name)), silent


def _explore(session: Session, one: Round, asker: bytes, name: str) -> set[bytes]:
    """Ask the clients of the holders that have become known; return the holders of which nothing is known yet."""
    new = one.explore([name], {})
    for lock, replies in one.unread.items():
        check_answered(lock, replies, session.quorum)
    calls = [one.question(asker, lock, hold, lock.encode()) for lock, hold in new]
    answers = send(session, calls, is_answered)
    for number, (_, hold) in enumerate(new):
        told = [reply[2] for reply in nth_of_each(answers, number) if not isinstance(reply, Failure)]
        if len(told) >= session.quorum and set(told) == {0}:
            one.idle.add(hold)  # its client listens to no master, and a caller that waits needs that
    return {hold for holds in one.holders.values() for hold in holds} - one.edges.keys() - one.idle
