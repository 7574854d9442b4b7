"""Fencing tokens rise, whatever happens between two holders; and a master that may have forgotten has no vote."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from support.masters import Deployment
from support.processes import Worker
from support.until import until

from relock import Client, ConfigurationError, MasterWithoutVote, QuorumError, RelockWarning

pytestmark = pytest.mark.every_quorum


def take(client: Client, name: str) -> int:
    with client.lock(name, timeout=30) as lock:
        assert lock.token is not None
        return lock.token


@pytest.mark.every_server
def test_tokens_rise_with_every_outermost_acquire_and_stay_in_nested_ones(
    client: Client, server: Deployment, name: str
) -> None:
    tokens: list[int] = []
    for _ in range(50):
        with client.lock(name) as lock:
            tokens.append(lock.token or 0)
            with client.lock(name) as nested:
                assert nested.token == lock.token
    assert tokens[0] > 0
    assert tokens == sorted(set(tokens))


def test_tokens_rise_after_the_holder_was_killed(
    client: Client, server: Deployment, start_worker: Callable[..., Worker], name: str
) -> None:
    worker = start_worker("workers.locker", server.url, '{"ttl": 0.5}')
    assert worker.receive()["event"] == "ready"
    worker.send({"do": "acquire", "id": 1, "name": name})
    token = worker.receive()["token"]
    worker.kill()
    assert take(client, name) > token


def test_tokens_rise_after_the_lease_ran_out(connect: Callable[..., Client], server: Deployment, name: str) -> None:
    client = connect(server.url, ttl=3.0, renew=False)
    lock = client.lock(name, owner="forgetful")
    lock.acquire()
    token = lock.token
    assert token is not None
    assert take(client, name) > token


def test_tokens_rise_after_a_release_by_force(client: Client, server: Deployment, name: str) -> None:
    holder = client.lock(name, owner="holder")
    holder.acquire()
    token = holder.token
    assert token is not None
    assert client.lock(name).force_release() is True
    assert client.lock(name).force_release() is False
    assert take(client, name) > token


def test_tokens_rise_after_a_restart_without_persistence(
    own_server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    client = connect(own_server.url)
    before = take(client, name)
    own_server.restart()
    assert take(client, name) > before


def test_tokens_rise_although_the_last_one_is_ahead_of_the_clock(client: Client, server: Deployment, name: str) -> None:
    ahead = time.time_ns() // 1000 + 3_600_000_000
    server.client().set(f"lock:{{{name}}}:token", ahead)
    assert [take(client, name) - ahead for _ in range(3)] == [1, 2, 3]


# The restart guard ----------------------------------------------------------------------------------------------------

GUARD = 3.0
LONG_GUARD = 30.0  # long enough for looks during the guard, on a busy machine


def no_vote_for(client: Client, name: str) -> float:
    """Return for how many seconds the masters refuse to vote, by their own word; ask until one has told a time."""
    while True:
        try:
            with client.lock(name, timeout=0):
                return 0.0
        except QuorumError as error:
            said = [why.partition("no vote for ")[2].split() for why in error.failures.values()]
            if any(said):
                return max(float(words[0]) for words in said if words)


@pytest.mark.every_server
def test_a_master_that_relock_never_saw_grants_nothing_before_the_guard_is_over(
    connect: Callable[..., Client], start_server: Callable[..., Deployment], name: str
) -> None:
    events: list[Any] = []
    client = connect(start_server().url, ttl=GUARD, restart_guard=GUARD, on_event=events.append)
    begin = time.monotonic()
    assert 0 < no_vote_for(client, name) <= 1.1 * GUARD
    with client.lock(name, timeout=30):
        assert time.monotonic() - begin >= GUARD
    until(lambda: any(isinstance(e, MasterWithoutVote) for e in events), within=20, what="an event names the master")
    assert no_vote_for(client, name) == 0.0


@pytest.mark.parametrize("how", ["restarted", "flushed"])
def test_a_master_that_forgot_grants_nothing_to_a_client_that_never_saw_it_either(
    start_server: Callable[..., Deployment], connect: Callable[..., Client], name: str, how: str
) -> None:
    own_server = start_server()
    watching = connect(own_server.url, ttl=GUARD, restart_guard=GUARD)
    holder = watching.lock(name, owner="holder")
    assert holder.acquire(timeout=30)
    begin = time.monotonic()
    if how == "restarted":
        own_server.restart()
    else:
        own_server.cli("FLUSHALL")
    newcomer = connect(own_server.url, ttl=GUARD, restart_guard=GUARD)
    assert newcomer.lock(name).acquire(timeout=30)
    assert time.monotonic() - begin >= GUARD, "the second hold begins after the end of the first"
    assert not holder.owned()


def test_without_the_guard_there_are_two_holders(
    start_server: Callable[..., Deployment], connect: Callable[..., Client], name: str
) -> None:
    """The control: a master without the guard grants a lock that is still held."""
    own_server = start_server()
    holder = connect(own_server.url, restart_guard=0).lock(name)
    holder.acquire()
    own_server.restart()
    other = connect(own_server.url, restart_guard=0).lock(name)
    assert other.acquire(timeout=20)
    assert holder.owned()
    assert other.owned()


def test_a_client_without_a_guard_obeys_the_one_that_it_finds(
    start_server: Callable[..., Deployment], connect: Callable[..., Client], name: str
) -> None:
    own_server = start_server()
    first = connect(own_server.url, ttl=GUARD, restart_guard=LONG_GUARD)

    def is_everywhere() -> bool:
        """Return whether every master has the guard; one that is slow to connect is not asked, and has none yet."""
        assert no_vote_for(first, name) > 0
        return all(member.cli("EXISTS", "lock:master") for member in own_server.members)

    until(is_everywhere, within=30, what="every master has the guard")
    other = connect(own_server.url, ttl=GUARD, restart_guard=0)
    with pytest.warns(RelockWarning, match="larger restart guard") as caught:
        # A call warns at its end of a guard that was found by then, by any thread.
        until(lambda: no_vote_for(other, name) and len(caught), within=30, what="the client warns")


def test_patience_does_not_run_while_the_master_waits_for_its_vote(
    start_server: Callable[..., Deployment], connect: Callable[..., Client], name: str
) -> None:
    client = connect(start_server().url, ttl=2 * GUARD, restart_guard=2 * GUARD, patience=0, node_timeout=2.0)
    assert client.lock(name).acquire()


def test_where_info_is_not_allowed_a_guard_is_a_configuration_error(
    start_server: Callable[..., Deployment], connect: Callable[..., Client], name: str
) -> None:
    server = start_server()
    server.cli("ACL", "SETUSER", "default", "-info")
    with pytest.raises(ConfigurationError, match="INFO") as caught:
        connect(server.url, ttl=5.0, restart_guard=5.0).lock(name).acquire()
    assert caught.value.option == "restart_guard"


def test_a_client_that_may_not_look_never_touches_the_guard_that_it_finds(
    start_server: Callable[..., Deployment], connect: Callable[..., Client], name: str
) -> None:
    """Clients without that right can't name their sockets' incarnation: their votes would begin the guard for all."""
    server = start_server()
    guarded = connect(server.url, ttl=GUARD, restart_guard=GUARD)
    take(guarded, name)
    server.cli("ACL", "SETUSER", "default", "-info")
    lock = connect(server.url, ttl=GUARD, restart_guard=0).lock(name)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(ConfigurationError, match="refuses INFO") as caught:
            lock.acquire(timeout=30)
        until(lambda: warned, within=20, what="the warning of a thread that has seen the refusal")
    assert {warning.category for warning in warned} == {RelockWarning}
    assert caught.value.option == "restart_guard"
    server.cli("ACL", "SETUSER", "default", "+info")
    assert guarded.lock(name).acquire(timeout=20)


def test_a_client_whose_right_to_look_is_taken_away_gets_no_vote_and_says_why(
    start_server: Callable[..., Deployment], connect: Callable[..., Client], name: str
) -> None:
    """Sockets of such a client may lead elsewhere by now, and nothing proves the contrary."""
    server = start_server()
    client = connect(server.url, ttl=GUARD, restart_guard=GUARD)
    take(client, name)
    server.cli("ACL", "SETUSER", "default", "-info")
    with pytest.raises(QuorumError, match=r"'info' command.*ACL page"):
        client.lock(name).acquire(timeout=0)


def replication_ids(server: Deployment) -> set[str]:
    return {one.cli("INFO", "replication")["master_replid"] for one in server.members}


def test_a_master_that_gets_its_first_replica_has_its_vote_back_after_the_guard(
    start_server: Callable[..., Deployment], connect: Callable[..., Client], name: str
) -> None:
    """Masters have another replication id from then on, while open sockets go on naming the old one."""
    own_server = start_server()
    options = {"ttl": GUARD, "restart_guard": GUARD}
    early = connect(own_server.url, **options)
    take(early, name)
    before = replication_ids(own_server)
    start_server(replica_of=own_server)
    until(lambda: not before & replication_ids(own_server), within=20, what="other replication ids")
    late = connect(own_server.url, **options)

    def all_take_it() -> bool:
        try:
            for client in (early, late, early, late):
                with client.lock(name, timeout=0):
                    pass
        except QuorumError:
            return False
        return True

    until(all_take_it, within=20, what="sockets of both have the vote of one incarnation")


def test_a_promoted_replica_grants_nothing_before_the_guard_is_over(
    start_server: Callable[..., Deployment], connect: Callable[..., Client], name: str
) -> None:
    """The replica has the marker too, but it names the master that it was copied from."""
    own_server = start_server()
    holder = connect(own_server.url, ttl=GUARD, restart_guard=GUARD).lock(name, owner="holder")
    assert holder.acquire(timeout=30)
    replica = start_server(replica_of=own_server)
    until(
        lambda: all(one.cli("EXISTS", "lock:master") for one in replica.members), within=20, what="the marker is copied"
    )
    own_server.kill()
    begin = time.monotonic()
    replica.cli("REPLICAOF", "NO", "ONE")
    replica.cli("DEL", f"lock:{{{name}}}")  # as if the hold had not been copied in time
    newcomer = connect(replica.url, ttl=GUARD, restart_guard=GUARD)
    assert newcomer.lock(name).acquire(timeout=30)
    assert time.monotonic() - begin >= GUARD
    assert not holder.owned()
