"""Calls that only read: a connection that ends under them is no error, because asking again does no harm."""

from collections.abc import Callable

import pytest
from support.proxy import Fault, Line, Match

from contract.rigs.rig import Rig, calls
from relock import QuorumError

ENDS: dict[str, Callable[[Line, Match], Fault]] = {
    "before the request arrives": Line.lose_request,
    "after the request has arrived": lambda line, match: line.swallow_reply(match, close=True),
}
each_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)


@each_end
def test_a_connection_that_ends_under_a_look_is_no_error(
    end: Callable[[Line, Match], Fault], rig: Rig, name: str
) -> None:
    client = rig.client()
    rig.warm_up(client)
    rig.take_everywhere(client.lock(name), 1)

    def look() -> None:
        assert client.lock(name).locked()

    rig.until_asked(lambda line: end(line, calls(name, "inspect")), look)


@each_end
def test_connections_that_end_twice_under_a_look_are_an_error(
    end: Callable[[Line, Match], Fault], rig: Rig, name: str
) -> None:
    client = rig.client()
    rig.warm_up(client)
    for line in rig.lines:
        for _ in range(2):
            end(line, calls(name, "inspect"))
    with pytest.raises(QuorumError):
        client.lock(name).locked()
    assert not client.lock(name).locked(), "the next look uses other connections"


def test_a_look_tells_since_when_a_lock_is_held_and_since_when_others_wait(rig: Rig, name: str) -> None:
    """Tokens and tickets tell these times; several masters write tickets that lie a second ahead of their clocks."""
    client, other = rig.client(ttl=600), rig.client(ttl=600)
    rig.warm_up(client)
    rig.warm_up(other)
    begin = rig.clock()
    client.lock(name).acquire()
    taken_at = rig.clock()
    rig.until(lambda: rig.clock() >= taken_at + 0.5, "half a second has passed")
    waits_since = rig.clock()
    waiting = rig.start(lambda: other.lock(name).acquire(timeout=60))
    rig.until(lambda: client.info(name).queue, "the other one waits")
    queued_at = rig.clock()
    rig.until(lambda: rig.clock() >= queued_at + 0.5, "another half has passed")
    looks_at = rig.clock()
    info = client.info(name)
    seen_at, spare = rig.clock(), 0.01 + rig.slack
    assert info.held_for is not None
    assert looks_at - taken_at - spare <= info.held_for <= seen_at - begin + spare
    assert looks_at - queued_at - spare <= info.waits[0] <= seen_at - waits_since + spare
    client.lock(name).release()
    assert waiting.result()
    rig.until(lambda: client.info(name).waits == (), "nobody waits any more")
