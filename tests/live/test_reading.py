"""`names` and `check`, which only read: a connection that ends under them is no error.

`info` and `locked` have the contract's tests (`tests/contract/test_reading.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.proxy import Fault, Line, Match, Words

from relock import Client, QuorumError, _names

pytestmark = pytest.mark.every_quorum

Connect = Callable[..., Client]

ENDS: dict[str, Callable[[Line, Match], Fault]] = {
    "before the request arrives": Line.lose_request,
    "after the request has arrived": lambda line, match: line.swallow_reply(match, close=True),
}
each_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)


def lines_of(proxy: Any) -> Sequence[Line]:
    """Return the proxy before each master."""
    return (proxy,) if isinstance(proxy, Line) else proxy.members


def calls(command: bytes) -> Match:
    return lambda words: words[0] == command


def each_once(command: bytes) -> Match:
    """Match each request with that command when it comes for the first time."""
    seen: list[Words] = []

    def matches(words: Words) -> bool:
        if words[0] != command or words in seen:
            return False
        seen.append(words)
        return True

    return matches


@each_end
def test_names_go_on_after_each_connection_that_ends(
    end: Callable[[Line, Match], Fault], connect: Connect, proxy: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_names, "NAMES_PER_SCAN", 1)
    user = connect(proxy.url)
    names = {f"{name}-{i}" for i in range(20)}
    for one in names:
        user.lock(one).acquire()
    faults = [end(line, match) for line in lines_of(proxy) for match in [each_once(b"SCAN")] for _ in range(3)]
    assert set(user.names(f"{name}-*")) == names
    assert sum(fault.struck.is_set() for fault in faults) > len(lines_of(proxy)), "faults strike later requests, too"
    assert all(master.down is None for master in user.statistics().masters)


@each_end
def test_names_whose_connection_ends_twice_in_one_place_are_an_error(
    end: Callable[[Line, Match], Fault], connect: Connect, proxy: Any, name: str
) -> None:
    user = connect(proxy.url)
    for line in lines_of(proxy):
        for _ in range(2):
            end(line, calls(b"SCAN"))
    with pytest.raises(QuorumError):
        list(user.names(f"{name}-*"))


@each_end
@pytest.mark.parametrize("command", [b"INFO", b"SUBSCRIBE"])
def test_a_check_whose_connection_ends_asks_again(
    end: Callable[[Line, Match], Fault], command: bytes, connect: Connect, proxy: Any
) -> None:
    user = connect(proxy.url)
    problems = user.check()
    faults = [end(line, calls(command)) for line in lines_of(proxy)]
    assert user.check() == problems
    assert all(fault.struck.is_set() for fault in faults)
    assert all(master.down is None for master in user.statistics().masters)
