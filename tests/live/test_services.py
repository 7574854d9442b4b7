"""Services that refuse commands, in scripts or everywhere: what a client says of that, and how it works then."""

import math
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from support.servers import Server
from support.services import Service, playing
from support.until import until

from relock import AcquireTimeoutError, Client, ConfigurationError, LockLostError, QuorumError
from relock._doctor.examine import examine_all
from relock._doctor.findings import Verdict
from relock._runtime.net.parse import parse_nodes

Connect = Callable[..., Client]
LEASE = 15.0  # seconds; the watchdog renews after a third of it
GUARD = 2.0  # seconds, which each first use waits for
TURN = 0.05
SLOWEST = 3.0  # seconds from a release to the next holder, whatever a service refuses
PATIENT = 60.0  # seconds, for what a busy machine may delay


def found_by_doctor(url: str) -> dict[str, tuple[Verdict, str]]:
    """Return doctor's findings about a server, by what was looked at."""
    (examined,) = examine_all(parse_nodes(url), "lock", 5.0)
    return {finding.check: (finding.verdict, finding.says) for finding in examined.findings}


@pytest.mark.every_server
@pytest.mark.parametrize("masters", [1, 3])
def test_a_service_that_refuses_time_in_scripts_is_a_mistake_at_once(
    server: Server, connect: Connect, name: str, masters: int
) -> None:
    service = Service(("-time",), only_in_scripts=(b"TIME",))
    with playing(service, server, "untimely") as url:
        nodes = [url, *("redis://127.0.0.1:1", "redis://127.0.0.1:2")[: masters - 1]]
        client = connect(nodes, patience=math.inf)
        for call in (client.lock(name).acquire, client.check):
            with pytest.raises(ConfigurationError, match=r"it refuses TIME in scripts .*can't work there") as caught:
                call()
            assert caught.value.option == "nodes"
        verdict, says = found_by_doctor(url)["in scripts"]
        assert (verdict, "it refuses TIME in scripts" in says) == (Verdict.WRONG, True)


def turns_until(done: Callable[[], bool]) -> int:
    """Wait until it is `done`, and return the turns of `TURN` seconds: a machine that stands still makes no turns."""
    turns = 0
    while not done():
        time.sleep(TURN)
        turns += 1
    return turns


def use(url: str, connect: Connect, name: str, **options: Any) -> tuple[Client, Client]:
    """Take a lock, wait for it, hand it over, renew it and lose it; return the two clients that did so."""
    one, two = (connect(url, ttl=LEASE, node_timeout=LEASE / 3, **options) for _ in "12")
    first, second = one.lock(name), two.lock(name, owner="of several threads")
    assert first.acquire(timeout=PATIENT)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(second.acquire, timeout=PATIENT)
        until(lambda: two._session.waits or waiting.done(), within=PATIENT, what="the other client waits")
        token = first.ensure()
        assert first.extend() > 0
        first.release()
        assert turns_until(waiting.done) * TURN <= SLOWEST
        assert waiting.result()
    assert second.ensure() > token
    renewals = two.statistics().renewals
    until(lambda: two.statistics().renewals > renewals, within=PATIENT, what="the watchdog has renewed")
    assert two.force_release(name)
    with pytest.raises(LockLostError):
        second.extend()
    with suppress(LockLostError):
        second.release()
    return one, two


def count_of(words: str, caught: list[warnings.WarningMessage]) -> int:
    """Return how many warnings have these words; a guard below the lease, which keeps a test short, is another one."""
    return sum(words in str(warning.message) for warning in caught)


@pytest.mark.every_server
def test_a_guard_does_without_info_in_scripts_and_says_so(server: Server, connect: Connect, name: str) -> None:
    service = Service(("-info",), only_in_scripts=(b"INFO",))
    with playing(service, server, "blind") as url:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            one, _ = use(url, connect, name, restart_guard=GUARD, prefix=name)
        assert count_of("refuses INFO in scripts", caught) == 2, "each client warns once"
        (problem,) = one.check()
        assert "it refuses INFO in scripts" in problem
        assert one.statistics().masters[0].problems == (problem,)
        assert found_by_doctor(url)["in scripts"] == (Verdict.NOTE, mock.ANY)
        assert_guard_begins(server, one, name)


def assert_guard_begins(server: Server, client: Client, name: str) -> None:
    """Check that a server without its marker has no vote for the time of the guard."""
    server.cli("DEL", f"{name}:master")  # as a flush does
    with pytest.raises(QuorumError, match="may have forgotten leases"):
        client.lock(name).acquire(blocking=False)
    with client.lock(name, timeout=PATIENT):
        pass


NAMELESS = {
    "refuses INFO": Service(("-info",)),
    "names no run_id": Service(("-info",), only_in_scripts=(b"INFO",), hidden=b"run_id"),
}
REASONS = {"refuses INFO": "no permissions", "names no run_id": "it names no run_id"}  # by doctor


@pytest.mark.every_server
@pytest.mark.parametrize("limit", NAMELESS)
def test_where_a_server_does_not_say_which_it_is_a_guard_goes_by_the_marker_if_told_to(
    server: Server, connect: Connect, name: str, limit: str
) -> None:
    with playing(NAMELESS[limit], server, "blind") as url:
        client = connect(url, ttl=GUARD, restart_guard=GUARD, prefix=name)
        with pytest.raises(ConfigurationError, match=rf"{limit}.* restart_guard_by=\"marker\"") as caught:
            client.lock(name).acquire()
        assert caught.value.option == "restart_guard"
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            one, _ = use(url, connect, name, restart_guard=GUARD, restart_guard_by="marker", prefix=name)
        assert count_of(limit, warned) == 2, "each client warns once"
        (problem,) = one.check()
        assert limit in problem
        verdict, says = found_by_doctor(url)["INFO"]
        assert (verdict, REASONS[limit] in says) == (Verdict.WRONG if limit == "refuses INFO" else Verdict.NOTE, True)
        assert_guard_begins(server, one, name)
        server.cli("HSET", f"{name}:master", "incarnation", "another")  # as a restart with old data looks
        assert one.lock(name).acquire(blocking=False), "the marker alone does not show that"


SILENT = {  # with how often two clients, one of which waits, warn of PUBLISH and of SUBSCRIBE
    "PUBLISH": (Service(("-publish",)), 2, 0),
    "SUBSCRIBE": (Service(("-subscribe",)), 0, 1),
    "the channels": (Service(("resetchannels", "&other:*")), 2, 0),
}


@pytest.mark.every_server
@pytest.mark.parametrize("limit", SILENT)
def test_a_service_that_refuses_messages_is_slow_and_is_warned_of_once(
    server: Server, connect: Connect, name: str, limit: str
) -> None:
    service, *counts = SILENT[limit]
    with playing(service, server, "mute") as url, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one, two = use(url, connect, name, prefix=name)
        with one.lock(f"{name}:another"), pytest.raises(AcquireTimeoutError), two.lock(f"{name}:another", timeout=0.1):
            pass
        (problem,) = one.check()
        assert "is refused" in problem
        assert [count_of(f"it refuses {command}", caught) for command in ("PUBLISH", "SUBSCRIBE")] == counts
        verdicts = {check: verdict for check, (verdict, _) in found_by_doctor(url).items()}
        assert Verdict.WRONG in (verdicts.get("PUBLISH"), verdicts.get("Pub/Sub"))
        assert "in scripts" not in verdicts
