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
