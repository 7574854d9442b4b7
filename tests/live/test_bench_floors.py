"""The floors of the benchmark are real locks: otherwise a comparison with them would mean nothing."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from bench import floors
from bench.contestants import CONTESTANTS
from bench.floors import BareSocket, TwoHops
from bench.names import LOOP_HOP, THREADS_HOP, TWO_HOPS, is_floor
from bench.page import USERS_PAGE
from support.bench import figures_of, leftovers, relock_bench, the_floor_is_all_there
from support.servers import Server
from support.tls import Tls
from support.until import until

from relock.cli._bench.crew import Program, play, start
from relock.cli._bench.floor import hops, pairs, sockets
from relock.cli._bench.floor.floor import floor_of
from relock.cli._bench.floor.hops import OneHop
from relock.cli._bench.floor.masters import FloorKeys, floor_keys
from relock.cli._bench.run import BenchPlan, run
from relock.cli._bench.words import NO_HOPS_OF_SEVERAL, ONE_HOP, RELOCK, SUMMARY_HEAD
from relock.cli._bench.work import Job
from relock.cli._bench.worker import SITES
from relock.cli._nodes import Where

WITHIN = 90.0


@pytest.fixture
def program() -> Iterator[Program]:
    started = start("bench.worker")
    yield started
    started.close()


@pytest.mark.parametrize("floor", [ONE_HOP, TWO_HOPS])
def test_workers_of_a_floor_take_turns_one_at_a_time(server: Server, name: str, program: Program, floor: str) -> None:
    job = Job(floor, (server.url,), name, processes=2, threads=2)
    played = play([(program, job)], seconds=2.0)
    assert {turn.worker for turn in played.turns} == {0, 1, 2, 3}
    assert played.figures.overlaps == 0
    assert server.cli("EXISTS", *floor_keys(job)[:3]) == 0, "the lock is free and without waiters"


@pytest.fixture
def job(server: Server, name: str) -> Job:
    return Job(ONE_HOP, (server.url,), name)


@pytest.fixture
def keys(job: Job) -> FloorKeys:
    return floor_keys(job)


@pytest.fixture
def lockers(job: Job) -> Iterator[Callable[[type[OneHop]], OneHop]]:
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(closing(kind(job)))


def test_a_release_hands_over_in_the_order_in_which_they_came(
    server: Server, keys: FloorKeys, lockers: Callable[[type[OneHop]], OneHop]
) -> None:
    first, *others = (lockers(OneHop) for _ in range(4))
    first.acquire()
    assert [server.cli("RPUSH", keys.queue, other.me) for other in others] == [1, 2, 3]
    last = first
    for other in others:
        last.release()
        assert server.cli("GET", keys.lock) == other.me.encode()
        last = other
    last.release()
    assert server.cli("EXISTS", keys.lock) == 0


@pytest.mark.parametrize(("kind", "commands"), [(OneHop, 3), (TwoHops, 4)])
def test_commands_from_the_first_acquire_until_the_next_worker_has_it(
    server: Server, keys: FloorKeys, lockers: Callable[[type[OneHop]], OneHop], kind: type[OneHop], commands: int
) -> None:
    holder, waiter = lockers(kind), lockers(kind)
    before = server.calls().get("evalsha", 0)
    holder.acquire()
    thread = threading.Thread(target=waiter.acquire)
    thread.start()
    until(lambda: server.cli("LLEN", keys.queue) == 1, within=WITHIN, what="the other waits")
    holder.release()
    thread.join(WITHIN)
    assert server.cli("GET", keys.lock) == waiter.me.encode()
    assert server.calls()["evalsha"] - before == commands


@pytest.mark.parametrize("kind", [OneHop, TwoHops])
def test_a_release_of_somebody_else_does_nothing(
    server: Server, keys: FloorKeys, lockers: Callable[[type[OneHop]], OneHop], kind: type[OneHop]
) -> None:
    holder, other = lockers(kind), lockers(kind)
    holder.acquire()
    other.release()
    assert server.cli("GET", keys.lock) == holder.me.encode()


def test_the_floors_are_contestants() -> None:
    assert {name for name in CONTESTANTS if is_floor(name)} == {ONE_HOP, TWO_HOPS, LOOP_HOP, THREADS_HOP}


# Beside relock, on a user's masters ----------------------------------------------------------------------------------

ACL_PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "acl.md"
SECRET = "s3cret"


def test_the_bench_measures_the_floor_beside_relock_and_leaves_nothing_of_it(server: Server) -> None:
    found = figures_of("--workers", "2,3", nodes=server.url)
    assert found["no_floor"] == []
    for one in found["alone"].values():
        assert one["floor"]["pairs"] > 0
        assert one["of_floor"] == {"median_us": pytest.approx(one["median_us"] / one["floor"]["median_us"])}
    for one in found["handed_over"]:
        assert (one["floor"]["overlaps"], one["floor"]["handoffs"] > 0) == (0, True)
        for figure in ("median_us", "handoffs_per_second"):
            assert one["of_floor"][figure] == pytest.approx(one[figure] / one["floor"][figure])
    assert not [key for key in leftovers(server) if b":floor" in key]


@pytest.mark.long
def test_people_see_the_table_of_the_page_about_performance_with_the_floor(server: Server) -> None:
    shown = " ".join(relock_bench("--workers", "2", nodes=server.url).stdout.split())
    heads = [line for line in USERS_PAGE.read_text().splitlines() if line.startswith("|  | **relock**")]
    columns = [cell.strip(" *") for cell in heads[0].split("|")[2:5]]
    assert columns == list(SUMMARY_HEAD)
    for part in (*columns, "hand-offs among 2 processes"):
        assert part in shown
    assert "No floor" not in shown


@pytest.mark.long
def test_several_masters_have_a_floor_of_pairs_and_say_why_there_is_no_other(
    start_server: Callable[..., Server],
) -> None:
    servers = [start_server() for _ in range(3)]
    found = figures_of("--workers", "2", nodes=" ".join(server.url for server in servers))
    assert found["no_floor"] == [NO_HOPS_OF_SEVERAL]
    assert found["alone"]["uncontended"]["of_floor"]["median_us"] > 0
    assert found["handed_over"][0]["floor"] is None
    assert not [key for server in servers for key in leftovers(server) if b":floor" in key]


def rights() -> list[str]:
    """Return relock's own rights, as the page about them lists them."""
    texts, *_ = re.findall(r"```text\n(.*?)```", ACL_PAGE.read_text(), re.DOTALL)  # the others are for a Cluster
    return str(texts).split()


def rights_of_the_floor() -> list[str]:
    """Return the rights that only the floor needs: a cell of a table on the same page."""
    (cell,) = re.findall(r"^\| `([^`]*)` \| the bare floor", ACL_PAGE.read_text(), re.MULTILINE)
    return str(cell).replace("\\|", "|").split()


@pytest.fixture
def limited(server: Server) -> Iterator[str]:
    """Yield the URL of a user with exactly the rights that relock needs."""
    server.cli(*rights())
    yield f"redis://relock:CHANGE-ME@127.0.0.1:{server.port}/0"
    server.cli("ACL", "DELUSER", "relock")


def test_a_floor_that_is_refused_is_said_and_relock_is_measured_all_the_same(server: Server, limited: str) -> None:
    found = figures_of("--workers", "2", nodes=limited)
    pair, handoff = found["no_floor"]
    assert pair.startswith("a pair has no floor here: NOPERM")
    assert handoff.startswith("a hand-off has no floor here: NOPERM")
    assert (found["alone"]["uncontended"]["floor"], found["handed_over"][0]["floor"]) == (None, None)
    assert found["alone"]["uncontended"]["pairs"] > 0
    assert found["handed_over"][0]["handoffs"] > 0


@pytest.mark.every_server
def test_the_documented_rights_are_enough_for_the_floor(server: Server, limited: str, name: str) -> None:
    server.cli("ACL", "SETUSER", "relock", *rights_of_the_floor())
    the_floor_is_all_there(limited, name)
    assert leftovers(server) == {}


@pytest.mark.parametrize("right", [*rights_of_the_floor(), "+publish", "+subscribe"])
def test_each_of_the_documented_rights_is_needed_and_a_refusal_leaves_nothing(
    server: Server, limited: str, name: str, right: str
) -> None:
    server.cli("ACL", "SETUSER", "relock", *rights_of_the_floor())
    server.cli("ACL", "SETUSER", "relock", f"-{right.removeprefix('+').partition('|')[0]}")
    with floor_of(Job(RELOCK, (limited,), name)) as floor:
        assert not floor.has_hops
        assert (floor.pair is None) == (right == "+script|load")
    assert leftovers(server) == {}


def test_the_floor_of_a_unix_socket(server: Server, name: str) -> None:
    the_floor_is_all_there(server.unix_url, name)
    assert leftovers(server) == {}


def test_the_floor_of_a_master_with_a_password_in_another_database(
    start_server: Callable[..., Server], name: str
) -> None:
    server = start_server(password=SECRET)
    the_floor_is_all_there(f"{server.url.removesuffix('/0')}/3", name)
    assert server.cli("INFO", "keyspace") == {}


@pytest.mark.every_server
def test_the_floor_over_tls(tls: Tls, name: str) -> None:
    the_floor_is_all_there(tls.url(), name)
    assert leftovers(tls.server) == {}


def test_masters_without_an_answer_have_no_floor(own_server: Server, name: str) -> None:
    own_server.kill()
    with floor_of(Job(RELOCK, (own_server.url,), name)) as floor:
        assert (floor.pair, floor.has_hops, len(floor.missing)) == (None, False, 2)


def test_a_floor_that_is_interrupted_while_it_is_tried_leaves_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(job: Job) -> None:
        with closing(OneHop(job)) as holder, closing(OneHop(job)) as waiter:
            assert (holder.enter(), waiter.enter()) == (True, False)
        assert set(leftovers(server)) >= {floor_keys(job).lock, floor_keys(job).queue}
        raise KeyboardInterrupt

    monkeypatch.setattr("relock.cli._bench.floor.floor.rehearse", interrupted)
    plan = BenchPlan((2,), threads=False, seconds=0.1, section_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        run(Where((server.url,), "lock"), plan, lambda _text, _part: None)
    assert leftovers(server) == {}


def test_the_floor_of_the_bench_is_that_of_the_benchmark() -> None:
    assert CONTESTANTS[ONE_HOP].enter is SITES[ONE_HOP] is hops.site
    assert vars(floors)["with_small_scripts"] is pairs.with_small_scripts
    assert issubclass(BareSocket, sockets.BareSocket)
