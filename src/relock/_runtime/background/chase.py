"""Chase: the search for deadlocks whose callers belong to several clients. Only the janitor's thread calls this.

An edge of a ring (see `relock._core.deadlocks`) is known to one client only. So a client whose caller has waited for
long, and holds another lock, asks for the others. It asks the masters for the holder of the lock that the caller waits
for. Then it asks the client in that holder's name, by ``ask``, for which lock the holder waits. A client whose caller
waits answers by ``wait``; any other one says nothing. The answer names the next lock, and so on. This is one *round*,
in which each lock is looked at once, and each holder asked for once. The edges are chased as by Chandy, Misra and Haas
in "Distributed Deadlock Detection" (ACM Transactions on Computer Systems, 1983), but by questions of one client.

A ring that a round has found may be none: its edges were seen at different moments. If the next round finds the same
ring, it was a deadlock. Each hold and each call has a name of its own, so one that has ended never comes back. Thus
each edge stood from its answer in the one round to its answer in the next, and all stood at the moment between the two.

The victim is the wait with the largest ticket, so all clients of a ring choose the same one. Each client looks for
itself, and only the victim's own client ends the victim's wait.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence

from relock._core.deadlocks import Edge, end_ring, find_ring, own_edges
from relock._core.effects import Answer, Ask, Failure
from relock._core.flows import inspect
from relock._core.flows.ask import nth_of_each
from relock._core.hold import FOREVER
from relock._core.quorum import NEVER, quorum_of
from relock._keys import lock_keys
from relock._owner import client_name
from relock._runtime.background.session_view import SessionView
from relock._scripts import Call, load

REPEAT_SECONDS = 5.0  # between two rounds for the same wait
PAUSE_SECONDS = 0.5  # between two rounds, except for one that must confirm a ring
CONFIRM_SECONDS = 0.01  # from a new ring to the round that confirms it
HOLDERS_MAX = 100  # questions in one round
HEARD_KEPT = 4 * HOLDERS_MAX  # questions that are known when another master brings them once more

_ASK = re.compile(rb"ask ([^ ]+) ([^ ]+) ([^ ]+)")  # the client that asks, the round, the hold
_WAIT = re.compile(  # the round, the hold, the wait, its ticket, whether it is sure, whether it may raise, the lock
    rb"wait ([^ ]+) ([^ ]+) ([^ ]+) ([0-9]{1,16}) ([01])([01]) (.+)", re.DOTALL
)

Key = frozenset[tuple[bytes, bytes, str, int]]
"""Holds, waits, locks and tickets of a ring, which are the same wherever one begins to read it."""


class Chase:
    """Search of one client, for its callers that wait.

    Args:
        plan: has `begin` called at a time of ours.
    """

    def __init__(self, session: SessionView, plan: Callable[[float], None]) -> None:
        self._session = session
        self._plan = plan
        self._began_at = NEVER  # when the last round began
        self._confirms_at = FOREVER  # when a round is due that may confirm a ring
        self._number = 0
        self._edges: dict[bytes, Edge] = {}  # of this round, by hold
        self._holders: dict[str, Sequence[bytes]] = {}  # of the locks that this round has looked at
        self._asked: set[bytes] = set()  # the holds for which this round has asked
        self._found: set[Key] = set()
        self._found_before: set[Key] = set()  # by the round before
        self._heard: deque[bytes] = deque(maxlen=HEARD_KEPT)  # the latest questions of other clients

    def next_at(self) -> float:
        """Return when the next round is due, by the waits that there are now; infinity without one that counts."""
        after = self._session.options.deadlock_after
        if after is None:
            return FOREVER
        due = [edge.since + after for edge in self._own().values()]
        return max(
            self._began_at + PAUSE_SECONDS,
            min((at if at > self._began_at else self._began_at + REPEAT_SECONDS for at in due), default=FOREVER),
        )

    def begin(self) -> None:
        """Begin a round, if one is due."""
        now = self._session.clock()
        if self._session.closed or now < min(self.next_at(), self._confirms_at):
            return
        self._began_at, self._confirms_at = now, FOREVER
        self._number += 1
        self._found_before, self._found = self._found, set()
        self._edges, self._holders, self._asked = {}, {}, set()
        self._explore()

    def hear(self, message: bytes) -> None:
        """Act on a question, or an answer, of another client."""
        if self._session.closed:
            return
        asked, told = _ASK.fullmatch(message), _WAIT.fullmatch(message)
        if asked is not None and message not in self._heard:
            self._heard.append(message)
            self._answer(*asked.groups())
        elif told is not None and told[1] == self._round and told[2] in self._asked and told[2] not in self._edges:
            _, hold, waiter, ticket, is_sure, may_raise, lock = told.groups()
            edge = Edge(hold, waiter, lock.decode(errors="replace"), int(ticket), is_sure == b"1", may_raise == b"1")
            self._edges[hold] = edge
            self._explore()

    @property
    def _round(self) -> bytes:
        return b"%b.%d" % (self._session.client_id.encode(), self._number)

    def _own(self) -> dict[bytes, Edge]:
        """Return the edges of this client's callers that have a place in a queue, in the order of their tickets."""
        edges, looks = {}, self._session.options.deadlock_after is not None  # else nothing ends a wait of this client
        for hold, edge in own_edges(self._session).items():
            waiter = self._session.hubs.waiter(edge.waiter)
            tickets = [] if waiter is None else waiter.tickets.copy()
            if tickets:
                edges[hold] = edge._replace(order=tickets[0], may_raise=edge.may_raise and looks)
        return edges

    def _answer(self, asker: bytes, number: bytes, hold: bytes) -> None:
        edge = self._own().get(hold)
        if edge is not None:
            words = (number, hold, edge.waiter, b"%d" % edge.order, b"%d%d" % (edge.is_sure, edge.may_raise))
            self._send([self._message(edge.lock, asker, b" ".join((b"wait", *words, edge.lock.encode())))], _is_told)

    # One round ------------------------------------------------------------------------------------------------------

    def _explore(self) -> None:
        """Look at the locks that edges wait for, and ask for the edges of their holders, until all is known or asked.

        Then end the waits of the rings that are known.
        """
        own, questions = self._own(), list[Call]()
        after = self._session.deadlock_after
        old = [edge for edge in own.values() if edge.since + after <= self._began_at]  # rounded as in `next_at`
        if not old:
            return
        askers = {client_name(edge.waiter): None for edge in old}
        # An event loop may stand still, and threads hear for themselves.
        own_name = self._session.client_id.encode()
        asker = own_name if own_name in askers else next(iter(askers))
        wanted = {edge.lock for edge in (*old, *self._edges.values())}
        while locks := sorted(wanted - self._holders.keys()):
            self._look(locks)
            wanted.clear()
            for lock, hold in [(one, hold) for one in locks for hold in self._holders[one]]:
                if hold in own:
                    self._edges[hold] = own[hold]
                    wanted.add(own[hold].lock)
                elif len(self._asked) < HOLDERS_MAX:
                    self._asked.add(hold)
                    words = b" ".join((b"ask", asker, self._round, hold))
                    questions.append(self._message(lock, client_name(hold), words))
        self._send(questions, _is_told)
        self._judge(old)

    def _look(self, names: Sequence[str]) -> None:
        """Ask the masters for the holders of the locks with these `names`."""
        session, script = self._session, load("inspect")
        calls = tuple(script.call(lock_keys(session.prefix, name), limit=1) for name in names)
        answers = self._send(calls, _is_answered)
        for i, name in enumerate(names):
            info = inspect.agree(name, nth_of_each(answers, i))
            self._holders[name] = [holder.owner.encode() for holder in info.holders] if info else []

    def _judge(self, waits: Sequence[Edge]) -> None:
        """End each ring through one of the `waits` that the round before has found as well; note new ones."""
        edges = self._edges | {wait.hold: wait for wait in waits}
        for wait in waits:
            ring = find_ring(edges, self._holders, wait.waiter)
            if ring is None:
                continue
            key = frozenset((edge.hold, edge.waiter, edge.lock, edge.order) for edge in ring)
            if key in self._found_before:
                end_ring(self._session, ring)
            elif key not in self._found:
                self._confirms_at = self._session.clock() + CONFIRM_SECONDS
                self._plan(self._confirms_at)
            self._found.add(key)

    # Requests -------------------------------------------------------------------------------------------------------

    def _message(self, lock: str, client: bytes, words: bytes) -> Call:
        return load("notify").call(lock_keys(self._session.prefix, lock), client=client, message=words)

    def _send(self, calls: Sequence[Call], is_certain: Callable[[Sequence[Answer]], bool]) -> list[Answer]:
        """Send `calls` to all masters, and wait for their answers until `is_certain`."""
        session = self._session
        if not calls:
            return []
        return session.ask_shielded(Ask(tuple(calls), session.clock() + session.node_timeout, is_certain))


def _is_answered(answers: Sequence[Answer]) -> bool:
    replied = sum(not isinstance(answer[-1], Failure) for answer in answers)
    return replied >= quorum_of(len(answers))


def _is_told(answers: Sequence[Answer]) -> bool:
    return any(not isinstance(answer[-1], Failure) for answer in answers)
