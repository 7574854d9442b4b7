"""Clusters in `nodes`, and relock's reading of their nodes' answers; no cluster is needed."""

from typing import Any, cast

import pytest
from redis import exceptions as redis_errors
from support.listener import NewsListener

from relock import Client, ConfigurationError
from relock._core.effects import Answer, Failure
from relock._core.hold import FOREVER
from relock._core.master_facts import Down, InDoubt, Moved, Problem, RoundTrip, Seen, Stepped
from relock._keys import lock_keys
from relock._options import ClientOptions
from relock._runtime.machine import THREADS
from relock._runtime.masters import cluster
from relock._runtime.masters.cluster import Cluster
from relock._runtime.net.credentials import Credentials
from relock._runtime.net.failures import failure_of, words_of
from relock._runtime.net.node import Node, Seeds
from relock._runtime.net.parse import parse_nodes
from relock._runtime.net.slots import SLOTS, Range, Redirection, _range, redirection, slot_of
from relock._scripts import Prepared, load, script_names

SECRET = "hush"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis+cluster://a", "redis+cluster://a:6379"),
        ("redis+cluster://a:1,b,[::1]:2/0", "redis+cluster://a:1,b:6379,[::1]:2"),
        (f"rediss+cluster://me:{SECRET}@a:1/?ssl_check_hostname=no", "rediss+cluster://a:1"),
        (f"redis+cluster://a?password={SECRET}", "redis+cluster://a:6379"),
    ],
)
def test_a_cluster_url_names_some_of_its_nodes(url: str, address: str) -> None:
    (node,) = parse_nodes(url)
    assert node.address == address
    assert SECRET not in repr(node)


def test_what_a_cluster_url_says_of_connections_is_for_every_node() -> None:
    (node,) = parse_nodes(f"rediss+cluster://me:{SECRET}@a:1,b:2?ssl_ca_certs=/ca.pem")
    assert node.cluster is not None
    connections: list[Any] = [one.raw_connection(0.5) for one in (node, *node.cluster.nodes)]
    assert [(one.host, one.port) for one in connections] == [("a", 1), ("a", 1), ("b", 2)]
    for one in connections:
        assert (one.username, one.password, one.db, one.ca_certs) == ("me", SECRET, 0, "/ca.pem")
        assert one.retry._retries == 0


@pytest.mark.parametrize(
    "rest", ["a:1/1", "a:1/x", "", "/0", "a,,b", "a:x", "a#b", "a?b", "a:1?foo=1", "a:1?socket_timeout=x"]
)
def test_a_cluster_url_that_can_not_work(rest: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client(f"redis+cluster://:{SECRET}@{rest}")
    assert caught.value.option == "nodes"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("others", [["redis://b"], ["redis+cluster://b"], ["redis+sentinel://b/m"]])
def test_a_cluster_is_alone(others: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="alone"):
        Client(["redis+cluster://a", *others])
    assert Client(["redis+cluster://a"])


def test_a_cluster_has_no_guard() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client("redis+cluster://a", restart_guard=1)
    assert caught.value.option == "restart_guard"
    assert Client("redis+cluster://a", restart_guard=0)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("MOVED 3999 127.0.0.1:6381", Redirection(3999, "127.0.0.1", 6381, False)),
        ("ASK 3999 ::1:6381", Redirection(3999, "::1", 6381, True)),
        ("MOVED 0 :6381", Redirection(0, "", 6381, False)),  # the host of the node that answers
        ("TRYAGAIN Multiple keys request during rehashing of slot", None),
        ("ERR no MOVED 1 a:2", None),
    ],
)
def test_where_a_node_sends_a_call(words: str, found: Redirection | None) -> None:
    assert redirection(words) == found


@pytest.mark.parametrize(("host", "read"), [(b"10.0.0.1", "10.0.0.1"), (b"", ""), (None, ""), (b"?", "")])
def test_a_host_that_is_not_known_is_that_of_whoever_was_asked(host: bytes | None, read: str) -> None:
    assert _range(0, 9, [host, 7000, b"id", []]) == (0, 9, read, 7000)


@pytest.mark.parametrize("name", ["a", "a}b", "{a", "ä:b", "a{b}c"])
def test_all_keys_of_a_lock_are_in_one_slot(name: str) -> None:
    keys = lock_keys("lock", name)
    others = (keys.lock, keys.queue, keys.waiters, keys.token)
    assert {slot_of(type("Keys", (), {"lock": key})()) for key in others} == {slot_of(keys)}


def test_only_scripts_that_wake_differ_for_a_cluster() -> None:
    for name in script_names():
        script = load(name)
        wakes = not any("none" in line for line in script.header["PUBLISHES"])
        assert (script.on_cluster is not script) == wakes, name
        if wakes:
            assert b"'SPUBLISH'" in script.on_cluster.source
            assert b"'SPUBLISH'" not in script.source
            assert script.on_cluster.sha != script.sha
            assert script.on_cluster.statuses == script.statuses


@pytest.mark.parametrize(
    ("error", "begins"),
    [
        (redis_errors.MovedError("1 a:2"), "MOVED 1 a:2"),  # as redis-py reads it
        (redis_errors.ResponseError("MOVED 1 a:2"), "MOVED 1 a:2"),  # as hiredis reads it
        (redis_errors.AskError("1 a:2"), "ASK 1 a:2"),
        (redis_errors.TryAgainError("Multiple keys request"), "TRYAGAIN"),
        (redis_errors.ClusterDownError("The cluster is down"), "CLUSTERDOWN"),
    ],
)
def test_what_a_node_refuses_to_do_it_has_not_done(error: redis_errors.ResponseError, begins: str) -> None:
    assert words_of(error).startswith(begins)
    failure = failure_of("m", error, sent=True)
    assert (failure.sent, failure.permanent) == (False, False)
    assert failure.why.startswith(begins)


class OddNode:
    """A node that answers about its cluster as no real node does."""

    address = "redis://odd:7000/0"
    credentials = Credentials(None)

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.is_open = False

    def raw_connection(self, timeout: float) -> Any:  # noqa: ARG002
        return self

    def connect(self) -> None:
        self.is_open = True

    def disconnect(self) -> None:
        self.is_open = False

    def send_command(self, *words: str, check_health: bool) -> None: ...

    def read_response(self) -> Any:
        return self.reply


@pytest.mark.parametrize(
    "reply", [None, b"OK", [[0, 16383]], [[0, 16383, [b"\xff", 7000]]], [[0, 1, [7, b"h"]]]], ids=str
)
def test_what_no_node_says_is_an_error_of_its_connection(reply: Any) -> None:
    """Clients ask another node then; if there is none, there is no quorum, and the error has the reason."""
    odd = OddNode(reply)
    node = cast("Node", odd)
    cluster = Cluster(node, Seeds((node,)), ClientOptions(), THREADS, NewsListener())
    with pytest.raises(redis_errors.InvalidResponse, match="no server gives"):
        cluster.look(THREADS.clock() + 1)
    assert not odd.is_open


def test_news_of_a_node_are_summed_up_and_passed_on_where_they_concern_a_session() -> None:
    """A step may have ended any hold early, and a subscription may lead to any node: such news are the cluster's."""
    listener, (node,) = NewsListener(), parse_nodes("redis+cluster://a:1")
    cluster = Cluster(node, Seeds((node,)), ClientOptions(), THREADS, listener)
    shard = cluster.shard_at("b", 2)
    shard.act([Moved(), Seen(), InDoubt(), Down("reset"), Stepped(5.0, 7), Problem("it may evict"), RoundTrip(0.2)])
    assert listener.heard == [
        (cluster.facts, Moved()),
        (cluster.facts, Seen()),
        (shard.facts, Down("reset")),
        (cluster.facts, Stepped(5.0, 7)),
        (shard.facts, Problem("it may evict")),
        (shard.facts, RoundTrip(0.2)),
    ]
    shard.facts.down = "reset"
    shard.act([Down("reset")])
    assert cluster.facts.down == f"{shard.address}: reset"
    assert list(cluster.facts.problems.values()) == [f"{shard.address}: reset"]


def test_round_trips_are_measured_to_nodes_that_are_known_and_to_those_that_come() -> None:
    session = Client("redis+cluster://a")._session
    (cluster,) = cast("list[Cluster]", session.masters)
    known = cluster.shard_at("b", 2)
    assert known.facts.sample_at == FOREVER
    session.measure(print)
    assert known.facts.sample_at == cluster.shard_at("c", 3).facts.sample_at == -FOREVER


def test_holds_have_other_names_after_a_connection_to_a_node_was_opened() -> None:
    """A copy of a virtual machine's memory opens connections of its own, and must not name holds as the original."""
    session = Client("redis+cluster://a")._session
    (cluster,) = cast("list[Cluster]", session.masters)
    before = next(session.hub.names)
    cluster.shard_at("b", 2).act([Seen()])
    assert next(session.hub.names)[:-8] != before[:-8]


def test_the_connections_of_a_cluster_are_those_to_its_nodes() -> None:
    (node,) = parse_nodes("redis+cluster://a:1")
    cluster = Cluster(node, Seeds((node,)), ClientOptions(), THREADS, NewsListener())
    shards = [cluster.shard_at("b", port) for port in (2, 3)]
    assert cluster.servers == shards
    assert cluster.shard_at("b", 3) is shards[1]


OTHER = "127.0.0.1:7002"


class Straight:
    """A cluster of two nodes, the first of which serves all slots and gives the same answer to every request."""

    def __init__(self, answers: list[Answer] | None) -> None:
        (node,) = parse_nodes("redis+cluster://127.0.0.1:7001")
        self.cluster = Cluster(node, Seeds((node,)), ClientOptions(), THREADS, NewsListener())
        self.cluster.is_sharded = False  # nothing is asked
        self.first = self.cluster.shard_at("127.0.0.1", 7001)
        self.sent: list[Prepared] = []
        self.first.pool.exchange = self._answer  # type: ignore[method-assign,assignment]
        self._answers = answers

    def _answer(self, request: Prepared, *_: Any) -> list[Answer] | None:
        self.sent.append(request)
        return self._answers

    def learn(self) -> None:
        self.cluster._take([Range(0, SLOTS - 1, "127.0.0.1", 7001)], self.first.opener.node, FOREVER)
        self.cluster._stale = False

    def ask(self) -> Any:
        request = load("release").prepare(fence=0, token_ms=1, hand=1)
        return self.cluster.exchange(request, lock_keys("lock", "a"), b"me:1", 0.0, 1.0)


@pytest.mark.parametrize(
    ("why", "is_stale"),
    [
        ("TRYAGAIN Multiple keys request", False),
        ("it has not answered", False),
        ("CLUSTERDOWN Hash slot not served", True),
        ("TRYAGAIN: Script attempted to access a non local key in a cluster node", True),
        ("READONLY You can't write against a read only replica", True),
    ],
)
def test_the_usual_call_goes_straight_to_the_node_that_serves_its_lock(why: str, is_stale: bool) -> None:
    """The answer is what the node says. If that casts doubt on the slots, the next call looks first."""
    for answers in ([([b"released", 1],)], [(Failure("a", why),)], None):
        straight = Straight(answers)  # type: ignore[arg-type]
        straight.learn()
        assert straight.ask() is answers
        assert [request.script for request in straight.sent] == [load("release").on_cluster]
    straight.learn()
    assert straight.cluster.sent_on(straight.first, Failure("a", why)) is None
    assert straight.cluster._stale == is_stale


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ((True, True), True),
        ((True, False), False),  # of mixed versions, the older one counts
        ((False, True), False),
        ((OSError(), True), True),  # a node that is down at this moment is left out
        ((True, OSError()), True),
        ((OSError(), OSError()), None),  # nothing is known: the next look asks again
    ],
)
def test_which_channels_a_cluster_knows(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[bool | OSError, ...], kind: bool | None
) -> None:
    session = Client("redis+cluster://a")._session
    (master,), left = cast("list[Cluster]", session.masters), [*answers]

    def knows(*_: Any) -> bool:
        answer = left.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(cluster, "knows_shard_channels", knows)
    assert session.hub.awaits_kind
    half = SLOTS // 2
    node = master.opener.node
    master._take([Range(0, half, "b", 1), Range(half + 1, SLOTS - 1, "b", 2)], node, FOREVER)
    assert master.is_sharded is kind
    assert (session.hub.awaits_kind, session.hub.has_channels) == (kind is None, bool(kind))
    assert (b":$" in next(session.hub.names)) == bool(kind), "the name says where a waiter listens"
    assert (b":$job." in session.hub.new_name("job")) == bool(kind)


def test_a_call_does_not_go_straight_while_nodes_must_be_asked_for_their_slots() -> None:
    straight = Straight([([b"released", 1],)])
    assert straight.ask() is None
    straight.learn()
    straight.cluster._stale = True
    assert straight.ask() is None
    straight.learn()
    straight.cluster._slots = [None] * SLOTS
    assert straight.ask() is None
    assert straight.sent == []


@pytest.mark.parametrize(("word", "serves_now"), [("MOVED", 7002), ("ASK", 7001)])
def test_a_call_that_is_sent_on_goes_the_general_way_and_only_a_slot_that_has_moved_is_noted(
    word: str, serves_now: int
) -> None:
    slot = slot_of(lock_keys("lock", "a"))
    straight = Straight([(Failure("a", f"{word} {slot} {OTHER}", sent=False),)])
    straight.learn()
    assert straight.ask() is None
    served = [shard.opener.node.kwargs["port"] for shard in straight.cluster._slots[slot - 1 : slot + 1] if shard]
    assert served == [7001, serves_now]
    assert straight.cluster._stale == (word == "MOVED")


def test_a_failure_of_a_node_that_is_down_makes_the_next_call_look_where_its_slots_are() -> None:
    """A replica may have taken over, and the node does not say so."""
    straight = Straight([(Failure("a", "Connection refused"),)])
    straight.learn()
    straight.ask()
    assert not straight.cluster._stale
    straight.first.facts.down = "Connection refused"
    straight.ask()
    assert straight.cluster._stale
