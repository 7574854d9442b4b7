"""Masters at different, long distances: a grant from the releaser is no slower than a wake-up."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.masters import Masters
from support.quorum import key_of
from support.slow import Slow
from support.until import until
from support.urls import Urls

from relock import Client, Lock

ROUNDS = 5
MOST = 3  # of the rounds: when a machine stands still, the messages of one may seem too far apart
TTL = 60.0
Connect = Callable[..., Client]


@contextmanager
def far(server: Masters, one_way_ms: tuple[int, ...]) -> Iterator[Urls]:
    """Delay each master's messages by so much in either direction."""
    ways = []
    for member, ms in zip(server.members, one_way_ms, strict=True):
        ways.append(Slow(member.port, requests=lambda ms=ms: ms / 1000, replies=lambda ms=ms: ms / 1000))  # type: ignore[misc]
    try:
        yield Urls([way.url for way in ways], server.guard)
    finally:
        for way in ways:
            way.close()


def hand_over(server: Masters, holds: Lock, waits: Lock) -> tuple[float, str]:
    """Return the seconds from the release to the waiter's hold, and the name of that hold."""
    granted: list[tuple[float, str]] = []

    def wait() -> None:
        with waits:
            granted.append((time.monotonic(), str(waits.info().owner)))

    with holds:
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        queue = key_of(holds.name) + ":queue"
        until(lambda: all(one.cli("ZCARD", queue) == 1 for one in server.members), within=30, what="a caller waits")
        began = time.monotonic()
    thread.join(30)
    ((at, owner),) = granted
    return at - began, owner


@pytest.mark.parametrize("masters_count", [3])
@pytest.mark.parametrize("one_way_ms", [(1, 20, 20), (1, 40, 40), (10, 60, 110)], ids=str)
def test_a_grant_is_no_slower_than_a_wake_up(
    server: Masters, connect: Connect, name: str, one_way_ms: tuple[int, ...]
) -> None:
    """Messages of a grant come as far apart as the masters are; a waiter that does not wait gives back the first."""
    took: dict[str, list[float]] = {"grant": [], "wake": []}
    given = 0
    with far(server, one_way_ms) as urls:
        locks = {
            handoff: [connect(urls, handoff=handoff).lock(f"{name}-{handoff}", ttl=TTL) for _ in range(2)]
            for handoff in took
        }
        for _ in range(ROUNDS):
            for handoff, (holds, waits) in locks.items():
                seconds, owner = hand_over(server, holds, waits)
                took[handoff].append(seconds)
                given += re.fullmatch(r".+~[0-9a-f]{16}\.[0-9]+", owner) is not None
    assert given >= MOST, "most grants come from the releaser, not by a request"
    # The quickest ones count: other work on this machine makes some slower, and none quicker.
    assert min(took["grant"]) < 1.2 * min(took["wake"])
