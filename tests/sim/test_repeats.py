"""A request that arrives a second time at once, because the network repeats it, changes nothing."""

from itertools import product
from typing import Any, NamedTuple

import pytest

from relock._keys import client_channel, lock_keys
from relock._scripts import load
from relock.testing._master import VirtualMaster

KEYS = lock_keys("lock", "a")
NOW_US = 1_700_000_000_000_000
LEASE_MS = 60_000
ME, YOU = b"me:1@3000", b"you:1@3000"
ATTEMPT = b"me:1@3000~1"
ALIVE_MS = 7_000


class State(NamedTuple):
    """State that a request finds: the tickets of two waiters whose clients listen, and the owner of the lock."""

    tickets: dict[bytes, int | None]
    listeners: tuple[str, ...]
    holder: bytes | None


STATES = [
    State({ME: mine, YOU: yours}, listeners, holder)
    for mine in (None, 10, 30)
    for yours in (None, 20)
    for listeners in ((), ("me",), ("you",), ("me", "you"))
    for holder in (None, ME, ATTEMPT, YOU)
]
TAKING = {"count": 1, "lease_ms": LEASE_MS}
QUEUEING = {"alive_ms": ALIVE_MS, "queue_ms": 30_000}
CALLS: list[tuple[str, dict[str, Any]]] = [
    *[("acquire", {**TAKING, "token_ms": LEASE_MS + 1_000, "fair": fair, "proposal": 0}) for fair in (0, 1)],
    *[
        ("enqueue", {**TAKING, **QUEUEING, "fair": fair, "ticket": ticket})
        for fair, ticket in product((0, 1), (-1, 0, 15, 25))
    ],
    *[("give_back", {**QUEUEING, "ticket": ticket}) for ticket in (0, 15, 25)],
    *[("release", {"fence": 0, "token_ms": LEASE_MS + 1_000, "hand": hand}) for hand in (0, 1)],
    ("leave", {}),
    ("extend", {"lease_ms": LEASE_MS, "token_ms": LEASE_MS + 1_000}),
    ("heal", {"value": 1, "lease_ms": LEASE_MS, "fence": NOW_US}),
]


def master_in(state: State) -> VirtualMaster:
    """Return a master whose clock stands still."""
    master = VirtualMaster(lambda: NOW_US, "this")
    for client in state.listeners:
        master.subscribe(client_channel("lock", client).encode(), lambda _channel, _message: None)
    for waiter, ticket in state.tickets.items():
        if ticket is not None:
            master.read("ZADD", KEYS.queue, b"%d" % ticket, waiter)
            master.read("ZADD", KEYS.waiters, b"%d" % (NOW_US // 1000 + ALIVE_MS), waiter)
    if state.holder is not None:
        master.read("HSET", KEYS.lock, state.holder, b"1")
        master.read("PEXPIRE", KEYS.lock, b"%d" % LEASE_MS)
    return master


@pytest.mark.parametrize(("script", "arguments"), CALLS)
def test_a_second_arrival_changes_neither_the_owner_nor_the_waiters(script: str, arguments: dict[str, Any]) -> None:
    """The client has only the reply to the first arrival."""
    for state, owner in product(STATES, (ME, ATTEMPT)):
        master, call = master_in(state), load(script).call(KEYS, owner=owner, **arguments)
        found = []
        for _ in range(2):
            master.execute(call, NOW_US, b"this", 0)
            found.append([master.contents(key) for key in (KEYS.lock, KEYS.queue)])
        assert found[0] == found[1], (state, owner)
