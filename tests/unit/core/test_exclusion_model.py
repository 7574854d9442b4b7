"""The quorum's protocol in small: three masters, two clients, and every order in which anything can happen.

An explorer visits all states that can be reached. Time goes by in ticks, at any moment; requests and replies take any
time, or come when no client waits for them; masters forget at any moment; releases of earlier holds arrive late. Both
clients take the lock once, and one of them renews and heals. The explorer knows nothing of the code: it shows that the
rules exclude, as `docs/internals/argument.md` argues, and that each of them is needed.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
from attrs import evolve, frozen

MASTERS = 3
CLIENTS = RENEWER, RIVAL = 0, 1
NOBODY = -1
LEASE = 2  # ticks


@frozen
class Rules:
    """The rules that are explored; the tests take them away one at a time."""

    quorum: int = 2
    guard: int = LEASE  # ticks for which a master that forgot has no vote
    lease_counts_from_its_request: bool = True
    master_grants_only_what_is_free: bool = True
    release_names_its_hold: bool = True
    hold_is_over_before_its_release: bool = True
    every_lease_of_a_quorum_counts: bool = True  # D is the end of the q-th lease, not of the longest


@frozen(cache_hash=True)
class Side:
    """Side of one client and one master: the client's knowledge, and the message between them."""

    end: int = 0  # ticks for which the client counts the master's lease
    message: str = ""  # a request, "take", "extend" or "heal", or its reply, "yes" or "absent"
    age: int = 0  # ticks since the request was sent


@frozen(cache_hash=True)
class Master:
    """One master, with both clients' sides of it."""

    renewer: Side = Side()
    rival: Side = Side()
    owner: int = NOBODY
    lease: int = 0
    no_vote: int = 0

    def side(self, client: int) -> Side:
        return self.renewer if client == RENEWER else self.rival

    def with_side(self, client: int, **changes: Any) -> "Master":
        side = evolve(self.side(client), **changes)
        return evolve(self, renewer=side) if client == RENEWER else evolve(self, rival=side)


Masters = tuple[Master, ...]


class State(NamedTuple):
    phases: tuple[str, str]  # of each client: "new", "asking" or "holding"
    masters: Masters


@frozen
class Explorer:
    rules: Rules

    def two_holders(self) -> State | None:
        """Return a state with two holders, or None if no state that can be reached has them."""
        first = State(("new", "new"), (Master(),) * MASTERS)
        seen, left = {first}, [first]
        while left:
            for state in self.next_states(left.pop()):
                if state in seen:
                    continue
                if state.phases == ("holding", "holding"):
                    return state
                seen.add(state)
                left.append(state)
        return None

    def next_states(self, state: State) -> Iterator[State]:
        for phases, masters in self.moves(state):
            settled = (self.settle(phases[RENEWER], masters, RENEWER), self.settle(phases[RIVAL], masters, RIVAL))
            if "over" not in settled:  # else one client can never hold the lock again
                yield State(settled, tuple(sorted(masters, key=hash)))  # sorted, because the masters are alike

    def moves(self, state: State) -> Iterator[State]:
        """Yield the states that may come next, before the clients judge them."""
        phases, masters = state
        yield State(phases, tuple(map(tick, masters)))
        if phases[RENEWER] == "new":
            yield State(("asking", phases[RIVAL]), send("take", masters, RENEWER))
        if phases[RIVAL] == "new":
            yield State((phases[RENEWER], "asking"), send("take", masters, RIVAL))
        if phases[RENEWER] == "holding":
            yield State(phases, send("renew", masters, RENEWER))
        for i, master in enumerate(masters):
            for changed in happenings(self.rules, master, phases):
                yield State(phases, (*masters[:i], changed, *masters[i + 1 :]))

    def settle(self, phase: str, masters: Masters, client: int) -> str:
        """Return the phase of a client by its knowledge; it compares that with its clock whenever it is asked."""
        quorum = self.rules.quorum
        counted = sum(master.side(client).end > 0 for master in masters)
        if phase == "asking":
            open_yet = sum(master.side(client).message in ("take", "yes") for master in masters)
            return "holding" if counted >= quorum else "asking" if counted + open_yet >= quorum else "over"
        enough = quorum if self.rules.every_lease_of_a_quorum_counts else 1
        return "over" if phase == "holding" and counted < enough else phase


@cache
def happenings(rules: Rules, master: Master, phases: tuple[str, str]) -> tuple[Master, ...]:
    """Return the master after each event that may befall it, or a message from it."""
    return tuple(_happenings(rules, master, phases))


def _happenings(rules: Rules, master: Master, phases: tuple[str, str]) -> Iterator[Master]:
    for client in CLIENTS:
        side = master.side(client)
        if side.message == "yes":
            age = side.age if rules.lease_counts_from_its_request else 0
            yield master.with_side(client, message="", age=0, end=max(side.end, LEASE - age))
        elif side.message == "absent":
            yield master.with_side(client, message="", age=0, end=0)
        elif side.message:
            yield run(rules, master, client)
    if master.owner != NOBODY:
        free = evolve(master, owner=NOBODY, lease=0)
        yield evolve(free, no_vote=rules.guard)  # the master forgets
        if not rules.release_names_its_hold:
            yield free  # the release of an earlier hold arrives
        if not rules.hold_is_over_before_its_release and phases[master.owner] == "holding":
            yield free


def run(rules: Rules, master: Master, client: int) -> Master:
    """Run a script, which gives a lease, or replies that this client has no hold."""
    creates = master.side(client).message in ("take", "heal")
    free = master.owner == NOBODY or not rules.master_grants_only_what_is_free
    if master.owner == client or (creates and free and not master.no_vote):
        return evolve(master.with_side(client, message="yes"), owner=client, lease=LEASE)
    return master.with_side(client, message="absent")


def send(message: str, masters: Masters, client: int) -> Masters:
    """Send a request to every master. A renewal extends the hold where the client counts it, and else heals it."""
    return tuple(requested(message, master, client) for master in masters)


@cache
def requested(message: str, master: Master, client: int) -> Master:
    if message == "renew":
        message = "extend" if master.side(client).end else "heal"
    return master.with_side(client, message=message, age=0)


@cache
def tick(master: Master) -> Master:
    """Return the master after a tick of every clock."""
    lease = max(0, master.lease - 1)
    owner = master.owner if lease else NOBODY
    return Master(older(master.renewer), older(master.rival), owner, lease, max(0, master.no_vote - 1))


def older(side: Side) -> Side:
    """Return the side a tick later; a message that is as old as a lease is void, and dropped."""
    end = max(0, side.end - 1)
    if not side.message or side.age + 1 == LEASE:
        return Side(end)
    return Side(end, side.message, side.age + 1)


def test_no_order_of_events_makes_two_holders() -> None:
    assert Explorer(Rules()).two_holders() is None


@pytest.mark.parametrize(
    "rules",
    [
        Rules(quorum=1),
        Rules(guard=LEASE - 1),
        Rules(lease_counts_from_its_request=False),
        Rules(master_grants_only_what_is_free=False),
        Rules(release_names_its_hold=False),
        Rules(hold_is_over_before_its_release=False),
        Rules(every_lease_of_a_quorum_counts=False),
    ],
    ids=[
        "a minority is enough",
        "the guard is shorter than a lease",
        "a lease counts from its reply",
        "a master grants what is held",
        "a release ends any hold",
        "a release is sent before the hold is over",
        "the longest lease counts",
    ],
)
def test_without_one_of_the_rules_there_are_two_holders(rules: Rules) -> None:
    assert Explorer(rules).two_holders() is not None
