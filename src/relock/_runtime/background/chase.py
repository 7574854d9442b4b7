"""Chase: the search for deadlocks whose callers belong to several clients. Only the janitor's thread uses a `Chase`.

An edge of a ring (see `relock._core.deadlocks`) is known to one client only. So a client whose caller has waited for
long, and holds another lock, asks for the others. It asks the masters for the holder of the lock that the caller waits
for. Then it asks the client in that holder's name, by ``ask``, for which lock the holder waits. A client whose caller
waits answers by ``wait``. Any other one says nothing, unless an operator asks (`relock._rings`). The answer names the
next lock, and so on. This is one *round*, in which each lock is looked at once, and each holder asked for once. The
edges are chased as by Chandy, Misra and Haas in "Distributed Deadlock Detection" (ACM Transactions on Computer Systems,
1983), but by questions of one client.

A ring that a round has found may be none: its edges were seen at different moments. If the next round finds the same
ring, it was a deadlock. Each hold and each call has a name of its own, so one that has ended never comes back. Thus
each edge stood from its answer in the one round to its answer in the next, and all stood at the moment between the two.

The victim is the wait with the largest ticket, so all clients of a ring choose the same one. Each client looks for
itself, and only the victim's own client ends the victim's wait.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from relock._core.deadlocks import Edge, Ring, end_ring, find_ring, own_edges
from relock._core.effects import Answer, Ask, Failure
from relock._core.flows import inspect
from relock._core.flows.ask import nth_of_each
from relock._core.flows.notify import is_told, message
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

_ASK = re.compile(  # the client that asks, the round, the hold; its lock if each client shall answer
    rb"ask ([^ ]+) ([^ ]+) ([^ ]+)(?: (.+))?", re.DOTALL
)
_WAIT = re.compile(  # the round, the hold, the wait, its ticket, whether it is sure, whether it may raise, the lock
    rb"wait ([^ ]+) ([^ ]+) (?:-|([^ ]+) ([0-9]{1,16}) ([01])([01]) (.+))", re.DOTALL
)

Key = frozenset[tuple[bytes, bytes, str, int]]
"""Holds, waits, locks and tickets of a ring, which are the same wherever one begins to read it."""


class Round:
    """One round of questions: what became known in it.

    Attributes:
        edges: the edges that are known, by hold.
        holders: the holds of the locks that were looked at.
        asked: the holds for which a client was asked.
        idle: the holds whose owners wait for no lock, as far as clients say so.
        unread: the replies of the masters for each lock for which too few answered.
    """

    def __init__(self, session: SessionView, name: bytes) -> None:
        self._session = session
        self._name = name
        self.edges: dict[bytes, Edge] = {}
        self.holders: dict[str, Sequence[bytes]] = {}
        self.asked: set[bytes] = set()
        self.idle: set[bytes] = set()
        self.unread: dict[str, inspect.MasterReplies] = {}

    def explore(self, wanted: Iterable[str], own: Mapping[bytes, Edge]) -> list[tuple[str, bytes]]:
        """Look at the locks that are `wanted`, or that edges wait for; go on with `own`, this client's edges.

        Return the holds for which other clients must be asked now, each with its lock.
        """
        wanted, questions = {*wanted, *(edge.lock for edge in self.edges.values())}, []
        while locks := sorted(wanted - self.holders.keys()):
            self._look(locks)
            wanted.clear()
            for lock, hold in [(one, hold) for one in locks for hold in self.holders[one]]:
                if hold in own:
                    self.edges[hold] = own[hold]
                    wanted.add(own[hold].lock)
                elif len(self.asked) < HOLDERS_MAX:
                    self.asked.add(hold)
                    questions.append((lock, hold))
        return questions

    def _look(self, names: Sequence[str]) -> None:
        """Ask the masters for the holders of the locks with these `names`."""
        script = load("inspect")
        calls = tuple(script.call(lock_keys(self._session.prefix, name), limit=1) for name in names)
        answers = send(self._session, calls, is_answered)
        for i, name in enumerate(names):
            replies = nth_of_each(answers, i)
            info = inspect.agree(name, replies)
            self.holders[name] = [holder.owner.encode() for holder in info.holders] if info else []
            if info is None:
                self.unread[name] = replies

    def question(self, asker: bytes, lock: str, hold: bytes, *more: bytes) -> Call:
        """Return the question of the client `asker` for what the owner of a hold of this `lock` waits."""
        return message(self._session.prefix, lock, client_name(hold), b"ask", asker, self._name, hold, *more)

    def learn(self, words: bytes) -> bool:
        """Take in the answer to a question of this round; return whether another edge is known by it."""
        told = _WAIT.fullmatch(words)
        if told is None or told[1] != self._name or told[2] not in self.asked or told[2] in self.edges:
            return False
        _, hold, waiter, ticket, is_sure, may_raise, lock = told.groups()
        if waiter is None:
            self.idle.add(hold)
            return False
        name = lock.decode(errors="replace")
        self.edges[hold] = Edge(hold, waiter, name, int(ticket), is_sure == b"1", may_raise == b"1")
        return True

    def rings(self, waits: Sequence[Edge]) -> dict[Key, Ring]:
        """Return the rings through these `waits` that are known; each begins with the first of its waits here."""
        edges, rings = self.edges | {wait.hold: wait for wait in waits}, dict[Key, Ring]()
        for wait in waits:
            ring = find_ring(edges, self.holders, wait.waiter)
            if ring is not None:
                rings.setdefault(frozenset((edge.hold, edge.waiter, edge.lock, edge.order) for edge in ring), ring)
        return rings


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
        self._round = Round(session, b"")
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
        self._round = Round(self._session, b"%b.%d" % (self._session.client_id.encode(), self._number))
        self._explore()

    def hear(self, message: bytes) -> None:
        """Act on a question, or an answer, of another client."""
        if self._session.closed:
            return
        asked = _ASK.fullmatch(message)
        if asked is None:
            if self._round.learn(message):
                self._explore()
        elif message not in self._heard:
            self._heard.append(message)
            self._answer(*asked.groups())

    def _own(self) -> dict[bytes, Edge]:
        """Return the edges of this client's callers that have a place in a queue, in the order of their tickets."""
        edges, looks = {}, self._session.options.deadlock_after is not None  # else nothing ends a wait of this client
        for hold, edge in own_edges(self._session).items():
            waiter = self._session.hubs.waiter(edge.waiter)
            tickets = [] if waiter is None else waiter.tickets.copy()
            if tickets:
                edges[hold] = edge._replace(order=tickets[0], may_raise=edge.may_raise and looks)
        return edges

    def _answer(self, asker: bytes, number: bytes, hold: bytes, its_lock: bytes | None) -> None:
        edge = self._own().get(hold)
        lock, words = its_lock, [b"-"]
        if edge is not None:
            lock = edge.lock.encode()
            words = [edge.waiter, b"%d" % edge.order, b"%d%d" % (edge.is_sure, edge.may_raise), lock]
        if lock is not None:
            about = lock.decode(errors="replace")
            send(self._session, [message(self._session.prefix, about, asker, b"wait", number, hold, *words)], is_told)

    def _explore(self) -> None:
        """Look at the locks that edges wait for, and ask for the edges of their holders, until all is known or asked.

        Then end the waits of the rings that are known.
        """
        own, after = self._own(), self._session.deadlock_after
        old = [edge for edge in own.values() if edge.since + after <= self._began_at]  # rounded as in `next_at`
        if not old:
            return
        askers = {client_name(edge.waiter): None for edge in old}
        # An event loop may stand still, and threads hear for themselves.
        own_name = self._session.client_id.encode()
        asker = own_name if own_name in askers else next(iter(askers))
        questions = self._round.explore([edge.lock for edge in old], own)
        send(self._session, [self._round.question(asker, *one) for one in questions], is_told)
        self._judge(old)

    def _judge(self, waits: Sequence[Edge]) -> None:
        """End each ring through one of the `waits` that the round before has found as well; note new ones."""
        for key, ring in self._round.rings(waits).items():
            if key in self._found_before:
                end_ring(self._session, ring)
            elif key not in self._found:
                self._confirms_at = self._session.clock() + CONFIRM_SECONDS
                self._plan(self._confirms_at)
            self._found.add(key)


# Requests -------------------------------------------------------------------------------------------------------------


def send(session: SessionView, calls: Sequence[Call], is_certain: Callable[[Sequence[Answer]], bool]) -> list[Answer]:
    """Send `calls` to all masters, and wait for their answers until `is_certain`."""
    if not calls:
        return []
    return session.ask_shielded(Ask(tuple(calls), session.clock() + session.node_timeout, is_certain))


def is_answered(answers: Sequence[Answer]) -> bool:
    """Return whether a quorum has answered."""
    replied = sum(not isinstance(answer[-1], Failure) for answer in answers)
    return replied >= quorum_of(len(answers))
