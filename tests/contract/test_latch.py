"""Latches, on every driver: closed until so many parties have arrived, and open from then on."""

from functools import partial
from typing import Any

import pytest
from support.proxy import calls_script

from contract.rigs.rig import BRIEF, SOON, Rig, all_struck
from relock import Client, ClientClosedError, ConfigurationError, QuorumError

LOOK_SECONDS = 3.0  # a waiter that no message wakes looks again within this time


def latch_key(name: str) -> str:
    return f"lock:{{{name}}}:latch"


def warm(rig: Rig, **options: Any) -> Client:
    """Return a client with open connections, and whose scripts are loaded."""
    client = rig.client(**options)

    def is_warm() -> bool:
        try:
            return bool(client.latch("warm", 1).arrive("it") == 0 and client.latch("warm", 1).wait(0))
        except QuorumError:  # a busy machine looks like silent masters where the node timeout is brief
            return False

    rig.until(is_warm, "every master has answered in time")
    return client


def arrivals(rig: Rig, name: str) -> list[set[bytes]]:
    """Return the parties that each master knows."""
    return [{*rig.ask(master, "HKEYS", latch_key(name))} - {b""} for master in range(rig.masters)]


def forget(rig: Rig, master: int, name: str, *parties: str) -> None:
    """Let a master forget parties, as if it had missed them."""
    rig.ask(master, "HDEL", latch_key(name), *parties)


def waiting(rig: Rig, name: str) -> int:
    """Return how many waiters a quorum of the masters know."""
    counts = [rig.ask(master, "ZCARD", f"{latch_key(name)}:waiters") for master in range(rig.masters)]
    return int(sorted(counts)[rig.masters - rig.quorum])


# Arriving -------------------------------------------------------------------------------------------------------------


def test_a_latch_opens_with_the_last_party_and_stays_open(rig: Rig, name: str) -> None:
    one, two = warm(rig).latch(name, 2), warm(rig).latch(name, 2)
    assert (one.missing(), one.wait(0), one.wait(0.0), two.wait(timeout=0)) == (2, False, False, False)
    assert (one.arrive(), one.missing(), two.missing(), two.wait(0)) == (1, 1, 1, False)
    assert (two.arrive(), one.missing()) == (0, 0)
    assert [latch.wait() for latch in (one, two, one)] == [True] * 3
    assert (one.wait(0), one.arrive(), two.wait(-1)) == (True, 0, True)


def test_a_party_with_a_name_counts_once_whoever_says_so(rig: Rig, name: str) -> None:
    one, two = warm(rig).latch(name, 3), warm(rig).latch(name, 3)
    assert [one.arrive("a"), two.arrive("a"), one.arrive("a")] == [2, 2, 2]
    assert two.info().arrived == ("a",)
    assert one.arrive("ä}{ \n") == 1
    assert (one.info().arrived, one.info().parties, one.info().missing) == (("a", "ä}{ \n"), 3, 1)
    (own,) = {*((one.arrive(), one.info())[1].arrived)} - {"a", "ä}{ \n"}
    assert two.arrive(own) == 0, "the name of a party without one is a name like others"
    assert two.info().missing == 0


def test_a_latch_for_one(rig: Rig, name: str) -> None:
    latch = warm(rig).latch(name, 1)
    assert (latch.wait(0), latch.arrive("a"), latch.wait(0), latch.arrive("b")) == (False, 0, True, 0)


def test_more_parties_may_come_than_must(rig: Rig, name: str) -> None:
    latch = warm(rig).latch(name, 2)
    assert [latch.arrive(f"{number}") for number in range(5)] == [1, 0, 0, 0, 0]
    arrived = latch.info().arrived
    assert arrived[:2] == ("0", "1")
    assert len(arrived) == 2 or rig.masters > 1, "of several masters, one that has missed a party may count a later one"
    assert (latch.missing(), latch.wait(0)) == (0, True)


def test_callers_that_want_different_numbers_of_parties_are_told(rig: Rig, name: str) -> None:
    client = warm(rig)
    latch, other = client.latch(name, 3), client.latch(name, 2)

    def arrive_everywhere() -> bool:
        latch.arrive("a")  # again: a master that counts as down for a moment is not asked
        return arrivals(rig, name) == [{b"a"}] * rig.masters

    rig.until(arrive_everywhere, "every master knows")
    for call in (other.arrive, other.wait, partial(other.wait, 0)):
        with pytest.raises(ConfigurationError, match="for 3 parties"):
            call()
    assert arrivals(rig, name) == [{b"a"}] * rig.masters
    assert other.info().parties == 3
    assert client.latch(name, 3).missing() == 2


def test_a_waiter_learns_of_another_number_of_parties_later(rig: Rig, name: str) -> None:
    one, two = warm(rig), warm(rig)
    running = rig.start(one.latch(name, 2).wait)
    rig.until(lambda: waiting(rig, name), "it waits")
    two.latch(name, 3).arrive()
    with pytest.raises(ConfigurationError, match="for 3 parties"):
        running.result()


@pytest.mark.parametrize("party", ["", "\ud800", b"a", 1, 0, False], ids=repr)
def test_a_name_that_can_not_be_is_refused_before_anything_is_sent(rig: Rig, name: str, party: Any) -> None:
    latch = rig.client().latch(name, 2)
    with pytest.raises(ConfigurationError if isinstance(party, str) else TypeError, match="party"):
        latch.arrive(party)
    assert arrivals(rig, name) == [set()] * rig.masters


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(-2, ValueError), (-0.5, ValueError), (None, TypeError), ("1", TypeError), (1e300, OverflowError)],
    ids=repr,
)
def test_a_timeout_that_can_not_be_is_refused(rig: Rig, name: str, timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        rig.client().latch(name, 2).wait(timeout)


# Waiting --------------------------------------------------------------------------------------------------------------


def test_all_who_wait_are_woken(rig: Rig, name: str) -> None:
    clients = [warm(rig), warm(rig)]
    running = [rig.start(clients[number % 2].latch(name, 2).wait) for number in range(6)]
    rig.until(lambda: waiting(rig, name) == 6, "all wait")
    for client in clients:
        rig.until_heard_by_all(client)
    begin = rig.clock()
    assert [client.latch(name, 2).arrive() for client in clients] == [1, 0]
    assert [one.result() for one in running] == [True] * 6
    assert rig.clock() - begin < 1.0 + rig.slack
    assert not any(hub.waiters for client in clients for hub in client._session.hubs.all())


def test_a_wait_ends_with_its_timeout(rig: Rig, name: str) -> None:
    latch = warm(rig).latch(name, 2)
    begin = rig.clock()
    assert latch.wait(0.3) is False
    assert 0.3 <= rig.clock() - begin < 0.5 + rig.slack


def test_a_waiter_that_no_message_reaches_looks_again(rig: Rig, name: str) -> None:
    one, two = warm(rig), warm(rig)
    running = rig.start(one.latch(name, 1).wait)
    rig.until(lambda: waiting(rig, name), "it waits")
    for master in range(rig.masters):
        rig.ask(master, "DEL", f"{latch_key(name)}:waiters")
    begin = rig.clock()
    two.latch(name, 1).arrive()
    assert running.result()
    assert rig.clock() - begin < LOOK_SECONDS + rig.slack


def test_an_open_latch_is_passed_without_a_subscription(rig: Rig, name: str) -> None:
    warm(rig).latch(name, 1).arrive()
    client = warm(rig)
    assert client.latch(name, 1).wait()
    assert client.statistics().waits == 0
    assert not any(one.is_confirmed for hub in client._session.hubs.all() for one in hub.subscriptions)


def test_the_arrivals_are_forgotten_with_the_ttl(rig: Rig, name: str) -> None:
    latch = warm(rig).latch(name, 2, ttl=1.0)
    latch.arrive("a")
    rig.until(lambda: arrivals(rig, name) == [set()] * rig.masters, "the ttl is over")
    assert (latch.missing(), latch.arrive("b"), latch.wait(0)) == (2, 1, False)


# Ends of waits --------------------------------------------------------------------------------------------------------


def test_an_interrupted_wait_leaves_no_waiter_behind(rig: Rig, name: str) -> None:
    client = warm(rig)
    latch = client.latch(name, 2)
    assert rig.interrupt(latch.wait, lambda: waiting(rig, name))
    assert not any(hub.waiters for hub in client._session.hubs.all())
    assert latch.arrive() == 1
    assert latch.arrive() == 0
    assert latch.wait(0)


def test_a_client_that_is_closed_ends_its_waits(rig: Rig, name: str) -> None:
    client = warm(rig)
    latch = client.latch(name, 2)
    running = rig.start(latch.wait)
    rig.until(lambda: waiting(rig, name), "it waits")
    client.close()
    with pytest.raises(ClientClosedError):
        running.result()
    for call in (latch.wait, latch.arrive, latch.missing, latch.info):
        with pytest.raises(ClientClosedError):
            call()


def test_a_waiter_whose_thread_stands_still_is_no_waiter_in_a_queue(
    rig: Rig, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A waiter at a latch has no place that it could lose: nobody else waits behind it."""
    client = warm(rig)
    session = client._session
    running = rig.start(partial(client.latch(name, 2).wait, SOON))
    rig.until(lambda: waiting(rig, name) and session.hubs.waiters(), "it waits")
    (waiter,) = session.hubs.waiters()
    waiter.due_at = rig.clock() - 100.0
    session.janitor.ensure_beating(0.0)
    session.janitor._places._turns.woke(0.0, 0.0)
    assert session.janitor._places.give_up(session.clock()) == []
    for number in range(2):
        client.latch(name, 2).arrive(f"{number}")
    assert running.result()
    assert "has lost its place" not in caplog.text


# Faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.several
def test_no_single_master_needs_to_know_all(rig: Rig, name: str) -> None:
    """Each master has missed another party: a union opens the latch, and a quorum knows of each."""
    latch = warm(rig).latch(name, 3)
    for missed, party in enumerate("abc"):
        latch.arrive(party)
        forget(rig, missed, name, party)
    assert max(map(len, arrivals(rig, name))) < 3
    assert latch.missing() == 0
    assert latch.wait(0)
    assert latch.info().arrived == ("a", "b", "c")
    assert latch.arrive("a") == 0, "the arrival itself asks all masters for what they know"


@pytest.mark.several
def test_what_one_master_names_has_arrived(rig: Rig, name: str) -> None:
    latch = warm(rig).latch(name, 2)
    latch.arrive("a")
    latch.arrive("b")
    for master in range(1, rig.masters):
        rig.ask(master, "DEL", latch_key(name))
    assert (latch.wait(0), latch.missing()) == (True, 0)


@pytest.mark.several
def test_masters_that_count_the_same_party_do_not_count_it_twice(rig: Rig, name: str) -> None:
    latch = warm(rig).latch(name, rig.masters)
    latch.arrive("a")
    assert (latch.missing(), latch.wait(0)) == (rig.masters - 1, False)


def test_a_reply_that_is_lost_counts_once_when_the_caller_repeats_the_arrival(rig: Rig, name: str) -> None:
    client = warm(rig, node_timeout=BRIEF)
    latch = client.latch(name, 2)

    def arrive() -> None:
        with pytest.raises(QuorumError):
            latch.arrive("a")

    rig.until_asked(lambda line: line.swallow_reply(calls_script("latch_arrive")), arrive)
    rig.until(lambda: _succeeds(partial(latch.arrive, "a")), "the masters answer again")
    assert arrivals(rig, name).count({b"a"}) >= rig.quorum
    missing: list[int] = []
    rig.until(lambda: _succeeds(lambda: missing.append(latch.missing())), "the masters answer again")
    assert missing == [1]


def test_a_connection_that_breaks_is_no_error(rig: Rig, name: str) -> None:
    """An arrival, a look and a wait do no harm if they are sent once more."""
    latch = warm(rig).latch(name, 2)
    for script, call, result in (
        ("latch_arrive", partial(latch.arrive, "a"), 1),
        ("latch_look", latch.missing, 1),
        ("latch_look", partial(latch.wait, 0), False),
    ):
        faults = [line.swallow_reply(calls_script(script), close=True) for line in rig.lines]
        assert call() == result
        for line, fault in zip(rig.lines, faults, strict=True):
            line.disarm(fault)
    assert arrivals(rig, name) == [{b"a"}] * rig.masters


def test_a_wait_outlasts_masters_that_are_silent_for_less_than_its_patience(rig: Rig, name: str) -> None:
    """Two short silences, with answers between them, are not one long silence.

    Only virtual time shows the difference: a machine that stands still is as silent as masters are.
    """
    client = warm(rig, node_timeout=BRIEF, patience=2.0 + rig.slack)
    running = rig.start(client.latch(name, 1).wait)
    rig.until(lambda: waiting(rig, name), "it waits")
    for _ in range(2):
        faults = [line.swallow_reply(calls_script("latch_look")) for line in rig.lines]
        rig.until(partial(all_struck, faults), "nobody answers")
        until = rig.clock() + LOOK_SECONDS
        rig.until(lambda until=until: rig.clock() > until, "it has looked again")  # type: ignore[misc]
    rig.until(lambda: _succeeds(partial(client.latch(name, 1).arrive, "a")), "the masters answer again")
    assert running.result()


@pytest.mark.parametrize("timeout", [0, 0.2, -1])
def test_a_wait_without_a_quorum_is_an_error(rig: Rig, name: str, timeout: float) -> None:
    client = warm(rig, node_timeout=BRIEF, patience=0.3)
    latch = client.latch(name, 2)
    rig.go_silent()
    for call in (partial(latch.wait, timeout), latch.arrive, latch.missing):
        with pytest.raises(QuorumError):
            call()


def test_thousand_parties(rig: Rig, name: str) -> None:
    latch = warm(rig).latch(name, 1_000)
    for master in range(rig.masters):
        for number in range(998):
            rig.ask(master, "HSET", latch_key(name), "", 1_000, f"{number}", 1)
    assert latch.missing() == 2
    assert (latch.arrive("x"), latch.wait(0), latch.arrive("y"), latch.wait(0)) == (1, False, 0, True)
    assert len(latch.info().arrived) == 1_000


def _succeeds(call: Any) -> bool:
    try:
        call()
    except QuorumError:
        return False
    return True
