"""Masters that move: the virtual servers do as real ones, and the referee judges the moves rightly."""

from collections.abc import Callable
from typing import Any

import pytest
from redis import exceptions as redis_errors

from relock._core.hold import Hold
from relock._core.info import fields_of
from relock._scripts import load
from relock.testing._conditions import Conditions
from relock.testing._network import VirtualConnection, node_of
from relock.testing._process import Process
from relock.testing._world import World
from sim.given import Given
from sim.moves import Mover
from sim.plan import FAILING_BACK, MOVING, Moves
from sim.replication import ReplicatedServer
from sim.special import AROUND, MOVED_PART, moved

EPOCH_SECONDS = 1_700_000_000.0
LAG_SECONDS = 0.05
LOCK = b"lock:{a}"
LONG_US = b"9" * 16
LONG_SECONDS = 1.0  # until all messages that are under way have arrived


class Pair:
    """Two servers behind one address, and a process that uses it."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.process = Process(self.world, "client")
        self.master, self.replica = (
            ReplicatedServer(self.world, 0, Conditions(), rate=1.0, offset=EPOCH_SECONDS, name=name)
            for name in ("master", "standby")
        )
        self.servers, self.standbys = [self.master], [self.replica]
        moves = Moves(lag=LAG_SECONDS, handoffs=("grant",), goes_on=0.0)
        self.mover = Mover(self.world, self.servers, self.standbys, moves)
        self.world.run(0.0)

    def pass_time(self, seconds: float = LONG_SECONDS) -> None:
        self.world.run(self.world.now + seconds)

    def play(self, function: Callable[[], Any]) -> Any:
        """Run a function that waits, let time pass until it ends, and return what it returns."""
        results: list[Any] = []
        task = self.process.start(lambda: results.append(function()), "test")
        self.world.run(self.world.now + 100.0, is_over=lambda: task.is_over)
        assert not self.world.errors
        return results[0]

    def connect(self) -> VirtualConnection:
        raw: Any = node_of(self.process, self.servers, 0).raw_connection(1.0)
        self.play(raw.connect)
        assert isinstance(raw, VirtualConnection)
        return raw

    def ask(self, raw: VirtualConnection, *words: str | bytes | int) -> Any:
        def answer() -> Any:
            raw.send_command(*words)
            try:
                return raw.read_response()
            except redis_errors.ResponseError as error:
                return str(error)

        return self.play(answer)

    def info(self, raw: VirtualConnection, *sections: str) -> dict[str, str]:
        return fields_of(self.ask(raw, "INFO", *sections))

    def take(self, server: ReplicatedServer, owner: bytes) -> None:
        """Give `owner` the lock on that server."""
        server.master.read("HSET", LOCK, owner, b"1")
        server.master.read("PEXPIRE", LOCK, 60_000)
        if server.tell is not None:
            server.tell(server)

    def holder(self, server: ReplicatedServer) -> list[bytes]:
        return list(server.master.contents(LOCK) or ())


def give_back(pair: Pair, raw: VirtualConnection) -> Any:
    """Return the answer to a script that writes."""
    keys = LOCK, LOCK + b":queue", LOCK + b":waiters"
    return pair.ask(raw, "EVAL", load("give_back").source, len(keys), *keys, b"me", 1, 7000, 30_000, LONG_US)


@pytest.fixture
def pair() -> Pair:
    return Pair()


# The draws ------------------------------------------------------------------------------------------------------------


def test_masters_move_in_some_runs_in_every_way() -> None:
    plans = [plan for seed in range(2000) if (plan := moved(seed)) is not None]
    assert 0.8 * MOVED_PART < len(plans) / 2000 < 1.2 * MOVED_PART
    assert {kind for plan in plans for kind in plan.kinds} >= {*MOVING, *FAILING_BACK, *AROUND}
    assert {(plan.masters > 1, plan.guard > 0) for plan in plans} == {(True, True), (False, True), (False, False)}
    again = [plan for seed in range(2000) if (plan := moved(seed)) is not None]
    assert again == plans, "a seed has one plan"


# Replicas -------------------------------------------------------------------------------------------------------------


def test_a_replica_has_what_its_master_wrote_after_the_lag(pair: Pair) -> None:
    pair.take(pair.master, b"me")
    assert pair.holder(pair.replica) == []
    pair.pass_time()
    assert pair.holder(pair.replica) == [b"me"]


def test_a_subscriber_of_a_replica_hears_what_nobody_heard_at_the_master(pair: Pair) -> None:
    heard: list[tuple[float, bytes]] = []
    pair.replica.master.subscribe(b"channel", lambda _channel, message: heard.append((pair.world.now, message)))
    began = pair.world.now
    assert pair.master.master.read("PUBLISH", b"channel", b"hello") == 0
    assert heard == []
    pair.pass_time()
    ((at, message),) = heard
    assert message == b"hello"
    assert at > began


def test_a_replica_refuses_writes_and_answers_all_else(pair: Pair) -> None:
    pair.take(pair.master, b"me")
    pair.pass_time()
    pair.servers[0] = pair.replica
    raw = pair.connect()
    assert give_back(pair, raw).startswith("READONLY")
    keys = LOCK, LOCK + b":queue", LOCK + b":token"
    assert b"me" in pair.ask(raw, "EVAL", load("inspect").source, len(keys), *keys, 10)
    assert pair.ask(raw, "PING") == [b"pong", b""]
    assert pair.info(raw)["role"] == "slave"


def test_info_tells_the_present_state(pair: Pair) -> None:
    raw = pair.connect()
    before = pair.info(raw)
    assert set(pair.info(raw, "replication")) == {"role", "master_replid", "master_replid2"}
    assert "run_id" in pair.info(raw, "server")
    pair.replica.promote()
    pair.master.follow(pair.replica, LAG_SECONDS, 0.1)
    assert pair.info(raw)["role"] == "slave"
    assert pair.info(raw)["master_replid"] == before["master_replid"], (
        "the id stays until the data of the new master have come"
    )
    pair.pass_time()
    after = pair.info(raw)
    assert after["master_replid"] == pair.replica.master.replid != before["master_replid"]
    assert after["run_id"] == before["run_id"]
    pair.master.promote()
    back = pair.info(raw)
    assert back["role"] == "master"
    assert back["master_replid2"] == after["master_replid"] != back["master_replid"]
    assert back["master_replid"] != before["master_replid"], "a replication id never comes back"


def test_a_connection_with_a_subscription_may_ask_nothing_else(pair: Pair) -> None:
    raw = pair.connect()
    assert pair.ask(raw, "INFO", "server").startswith(b"# Server")
    assert pair.ask(raw, "SUBSCRIBE", "channel") == [b"subscribe", b"channel", 1]
    assert pair.ask(raw, "INFO", "server").startswith("ERR Can't execute 'info'")
    assert pair.ask(raw, "PING") == [b"pong", b""]


# Moves ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fail over", "promote", "split"])
def test_open_connections_stay_and_new_ones_lead_to_the_new_master(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections stay unless a server ends them afterwards."""
    for ending in ("kill_normal", "kill_connections"):
        monkeypatch.setattr(ReplicatedServer, ending, lambda _server: None)
    pair = Pair()
    listening, raw = pair.connect(), pair.connect()
    pair.ask(listening, "SUBSCRIBE", "channel")
    run_id = pair.info(raw)["run_id"]
    assert pair.mover.strike(kind, 0)
    assert not pair.mover.strike(kind, 0), "an address has one move at a time"
    pair.pass_time(3 * LONG_SECONDS)
    assert not listening.is_broken
    assert pair.info(raw)["run_id"] == run_id
    assert pair.info(raw)["role"] == "slave"
    assert pair.info(pair.connect())["role"] == "master"
    assert pair.servers == [pair.replica]
    assert pair.master.master.incarnation == run_id


def test_a_failover_loses_nothing_and_holds_scripts_up_meanwhile() -> None:
    pair = Pair()
    raw = pair.connect()
    pair.take(pair.master, b"me")
    feed = pair.replica.source
    assert feed is not None
    feed.stall(0.3)
    assert pair.mover.strike("fail over", 0)
    asked_at = pair.world.now
    assert give_back(pair, raw).startswith("READONLY")
    assert pair.world.now - asked_at > 0.2, "the reply waits as long as the replica lacks writes"
    pair.pass_time()
    assert pair.holder(pair.replica) == [b"me"]
    assert not pair.replica.is_replica


def test_a_promotion_loses_what_is_under_way(pair: Pair) -> None:
    feed = pair.replica.source
    assert feed is not None
    feed.stall(0.5)
    pair.take(pair.master, b"me")
    assert pair.mover.strike("promote", 0)
    pair.pass_time(3 * LONG_SECONDS)
    assert pair.holder(pair.replica) == pair.holder(pair.master) == []
    assert pair.replica.lost_at == 0.0


def test_both_servers_take_writes_until_the_old_master_is_demoted(pair: Pair) -> None:
    assert pair.mover.strike("split", 0)
    pair.pass_time(0.1)
    assert not pair.master.is_replica
    assert not pair.replica.is_replica
    pair.take(pair.master, b"me")
    pair.take(pair.replica, b"you")
    pair.pass_time(3 * LONG_SECONDS)
    assert pair.holder(pair.master) == pair.holder(pair.replica) == [b"you"]


def test_a_fail_back_brings_old_data_home_with_a_new_replication_id(pair: Pair) -> None:
    pair.master.master.read("HSET", b"lock:master", b"incarnation", b"the old one")
    pair.pass_time()
    feed = pair.replica.source
    assert feed is not None
    feed.stall(10.0)
    pair.take(pair.master, b"me")
    replid, run_id, epoch = pair.master.master.replid, pair.master.master.incarnation, pair.master.epoch
    assert pair.mover.strike("fail back", 0)
    pair.pass_time(3 * LONG_SECONDS)
    assert pair.servers == [pair.master]
    assert not pair.master.is_replica
    assert pair.replica.is_replica
    assert pair.holder(pair.master) == []
    assert pair.master.master.contents(b"lock:master") == {b"incarnation": b"the old one"}
    assert pair.master.master.replid != replid
    assert pair.master.master.incarnation == run_id
    assert pair.master.epoch > epoch


def test_a_master_that_was_lost_comes_back_as_a_replica(pair: Pair) -> None:
    raw = pair.connect()
    run_id = pair.master.master.incarnation
    assert pair.mover.strike("lose master", 0)
    pair.pass_time(3 * LONG_SECONDS)
    assert raw.is_broken
    assert pair.servers == [pair.replica]
    assert pair.master.is_replica
    assert pair.master.master.incarnation != run_id


def test_only_connections_without_a_subscription_are_ended(pair: Pair) -> None:
    listening, raw = pair.connect(), pair.connect()
    pair.ask(listening, "SUBSCRIBE", "channel")
    pair.master.kill_normal()
    assert (listening.is_broken, raw.is_broken) == (False, True)
    pair.master.drop(pair.process)
    assert listening.is_broken


def test_when_all_is_healed_each_address_leads_to_a_master_that_is_followed(pair: Pair) -> None:
    assert pair.mover.strike("split", 0)
    pair.pass_time(0.01)
    pair.mover.heal()
    pair.pass_time(3 * LONG_SECONDS)
    assert [server.is_replica for server in (*pair.servers, *pair.standbys)] == [False, True]
    pair.take(pair.servers[0], b"me")
    pair.pass_time()
    assert pair.holder(pair.standbys[0]) == [b"me"]


# The referee's judgement ----------------------------------------------------------------------------------------------


class Held:
    """The part of a hold that the record looks at."""

    def __init__(self, owner: bytes) -> None:
        self.owner = owner


def hold(owner: bytes) -> Hold:
    held: Any = Held(owner)
    return held  # type: ignore[no-any-return]


MINE, YOURS = hold(b"me"), hold(b"you")


def record(pair: Pair, *, is_guarded: bool) -> Given:
    return Given(LOCK, pair.servers, pair.standbys, is_guarded, longest=1.0)


def release(server: ReplicatedServer) -> None:
    server.master.read("DEL", LOCK)


def test_a_hold_that_was_on_no_master_was_given_by_none(pair: Pair) -> None:
    given = record(pair, is_guarded=True)
    assert given.places(MINE) == 0
    pair.take(pair.master, b"me")
    assert given.places(MINE) == 1
    pair.replica.master.is_replica = False
    pair.take(pair.replica, b"you")
    assert given.places(YOURS) == 0, "a replica gives no hold"


@pytest.mark.parametrize("is_guarded", [True, False])
def test_the_same_data_give_no_two_holds(pair: Pair, *, is_guarded: bool) -> None:
    given = record(pair, is_guarded=is_guarded)
    pair.take(pair.master, b"me")
    release(pair.master)
    pair.take(pair.master, b"you")
    assert not given.may_both_be(MINE, YOURS, 0.0)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_hold_that_a_move_lost_is_promised_only_with_a_guard(pair: Pair, *, is_guarded: bool) -> None:
    given = record(pair, is_guarded=is_guarded)
    pair.take(pair.master, b"me")
    pair.master.follow(pair.replica, LAG_SECONDS, 0.0)
    pair.replica.promote()
    pair.take(pair.replica, b"you")
    assert given.may_both_be(MINE, YOURS, 0.0) is not is_guarded
    assert not given.was_split(0.0)


def test_a_master_that_fails_back_has_other_data_and_is_the_same_server(pair: Pair) -> None:
    for is_guarded in (True, False):
        given = record(pair, is_guarded=is_guarded)
        pair.take(pair.master, b"me")
        pair.master.epoch += 1
        release(pair.master)
        pair.take(pair.master, b"you")
        release(pair.master)
        assert given.may_both_be(MINE, YOURS, 0.0) is not is_guarded


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_master_that_fails_back_lacks_what_its_replica_had_not_heard_of(pair: Pair, *, is_guarded: bool) -> None:
    """The copy has the hold, but not its last renewal, so the hold ends early there."""
    pair.pass_time()
    given = record(pair, is_guarded=is_guarded)
    pair.take(pair.master, b"me")
    pair.pass_time()
    pair.take(pair.master, b"me")
    pair.replica.promote()
    pair.master.follow(pair.replica, LAG_SECONDS, 0.0)
    pair.pass_time()
    pair.master.promote()
    pair.replica.follow(pair.master, LAG_SECONDS, 0.0)
    pair.take(pair.master, b"me")
    release(pair.master)
    pair.take(pair.master, b"you")
    assert not given.was_split(pair.world.now - LONG_SECONDS)
    assert given.may_both_be(MINE, YOURS, pair.world.now - 2 * LONG_SECONDS) is not is_guarded
    assert not given.may_both_be(MINE, YOURS, pair.world.now + LONG_SECONDS), "the loss came before the holds"


def test_two_holds_of_two_masters_behind_one_address_are_no_violation(pair: Pair) -> None:
    given = record(pair, is_guarded=True)
    pair.replica.promote()
    pair.take(pair.master, b"me")
    pair.world.run(5.0)
    pair.take(pair.replica, b"you")
    assert given.was_split(4.0)
    assert given.may_both_be(MINE, YOURS, 0.0)
    assert not given.may_both_be(MINE, YOURS, 6.0), "the split came before the holds"
