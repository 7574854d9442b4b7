"""Sentinels: which the client believes, and which it asks first."""

from typing import Any

import pytest
import redis

from relock._runtime.net.failures import failure_of
from relock._runtime.net.sentinel import Discovery

UP = {"ip": "10.0.0.1", "port": "6379", "flags": "master", "num-other-sentinels": "2"}


class Sentinel:
    """A connection to a Sentinel that answers with `state`, or raises it."""

    def __init__(self, state: "dict[str, str] | Exception") -> None:
        self.state = state
        self.asked: list[tuple[Any, ...]] = []
        self.opened = self.closed = 0

    def __call__(self, timeout: float) -> Any:
        assert timeout == 0.5
        return self

    def connect(self) -> None:
        self.opened += 1
        if isinstance(self.state, OSError | redis.ConnectionError):
            raise self.state

    def disconnect(self) -> None:
        self.closed += 1

    def send_command(self, *words: Any, check_health: bool) -> None:  # noqa: ARG002 - redis-py's signature
        self.asked.append(words)

    def read_response(self) -> list[bytes]:
        if isinstance(self.state, Exception):
            raise self.state
        return [word.encode() for pair in self.state.items() for word in pair]


def discovery(*sentinels: Sentinel, **options: Any) -> Discovery:
    return Discovery("mymaster", [(f"s{i}:26379", one) for i, one in enumerate(sentinels)], **options)


def test_the_first_sentinel_that_knows_a_master_is_believed() -> None:
    first, second = Sentinel(UP), Sentinel(UP | {"ip": "10.0.0.2"})
    assert discovery(first, second).find(0.5) == ("10.0.0.1", 6379)
    assert first.asked == [("SENTINEL", "MASTER", "mymaster")]
    assert (first.opened, first.closed, second.opened) == (1, 1, 0)


@pytest.mark.parametrize(
    "state",
    [
        OSError("unreachable"),
        redis.ConnectionError("Connection refused"),
        redis.ResponseError("ERR No such master with that name"),
        UP | {"flags": "master,s_down"},
        UP | {"flags": "master,o_down,failover_in_progress"},
        UP | {"flags": "slave"},
    ],
    ids=str,
)
def test_one_that_does_not_is_passed_over_and_asked_last_the_next_time(state: "dict[str, str] | Exception") -> None:
    doubtful, good = Sentinel(state), Sentinel(UP)
    service = discovery(doubtful, good)
    for _ in range(2):
        assert service.find(0.5) == ("10.0.0.1", 6379)
    assert (doubtful.opened, doubtful.closed) == (1, 1)
    assert good.opened == 2
    assert [address for address, _ in service.sentinels] == ["s1:26379", "s0:26379"]


def test_where_none_does_each_is_named_with_its_reason() -> None:
    service = discovery(Sentinel(OSError("unreachable")), Sentinel(UP | {"flags": "master,o_down"}))
    with pytest.raises(redis.ConnectionError) as caught:
        service.find(0.5)
    assert "'mymaster'" in str(caught.value)
    assert "s0:26379: unreachable" in str(caught.value)
    assert "s1:26379: it sees no master that is up (master,o_down)" in str(caught.value)


@pytest.mark.parametrize(
    ("others", "permanent"),
    [
        ([], True),
        ([redis.AuthenticationError("invalid username-password pair")], True),
        ([UP | {"flags": "master,s_down"}], False),
        ([OSError("unreachable")], False),
        ([redis.AuthenticationError("invalid username-password pair"), UP | {"flags": "master,o_down"}], False),
    ],
    ids=str,
)
def test_a_mistake_at_one_is_none_of_the_service_while_another_may_yet_know_its_master(
    others: "list[dict[str, str] | Exception]", permanent: bool
) -> None:
    """Sentinels name no master for a moment in a failover; a waiting call must go on waiting."""
    unknown = redis.ResponseError("ERR No such master with that name")
    with pytest.raises(redis.ConnectionError) as caught:
        discovery(*map(Sentinel, [unknown, *others])).find(0.5)
    assert failure_of("m", caught.value, sent=False).permanent is permanent


def test_one_that_sees_too_few_others_may_be_cut_off() -> None:
    alone, good = Sentinel(UP | {"num-other-sentinels": "0", "ip": "10.0.0.9"}), Sentinel(UP)
    assert discovery(alone, good, min_other_sentinels=1).find(0.5) == ("10.0.0.1", 6379)
    assert discovery(alone, good).find(0.5) == ("10.0.0.9", 6379)


def test_a_host_of_ones_own_stands_in_for_the_one_that_they_name() -> None:
    assert discovery(Sentinel(UP), master_host="gateway").find(0.5) == ("gateway", 6379)
