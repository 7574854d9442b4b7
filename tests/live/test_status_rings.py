"""`relock status` where callers wait for each other now, and where they do not."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from support.cluster import ClusterOfServers
from support.masters import Deployment
from support.processes import Worker
from support.servers import Server
from support.until import until

from relock import Client, _rings
from relock.cli._main import cli

SOON = 120.0  # seconds after which a wait has failed
# A machine that stands still for a while must change nothing; the ring stays.
OPTIONS = {"ttl": 600.0, "node_timeout": 20.0, "deadlock_after": 0.5, "deadlock": "report"}

Start = Callable[..., Worker]


def run(*words: str, url: Any, user: str | None = None, password: str | None = None) -> str:
    nodes = url if isinstance(url, str) else " ".join(url)
    environment = {"RELOCK_USERNAME": user, "RELOCK_PASSWORD": password, "RELOCK_NODES": nodes}
    done = CliRunner().invoke(cli, ["status", *words], prog_name="relock", env=environment)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def status(name: str, url: Any) -> Any:
    return json.loads(run(name, "--json", url=url))


def rings_soon(name: str, url: Any) -> Any:
    """Return the rings that are shown once there is one; on a busy machine, clients may answer late."""
    until(lambda: status(name, url)["deadlocks"], within=SOON, what="a ring is shown")
    return status(name, url)["deadlocks"]


def take(worker: Worker, name: str) -> None:
    worker.send({"do": "acquire", "name": name})
    assert worker.receive(SOON) == {"event": "granted", "lock": name}


def wait_for(worker: Worker, name: str, client: Client) -> None:
    worker.send({"do": "acquire", "name": name})
    until(lambda: client.info(name).queue, within=SOON, what="it waits")


@pytest.fixture
def names(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(2)]


@pytest.fixture
def ring(start_worker: Start, server: Deployment, client: Client, names: list[str]) -> list[Worker]:
    """Two processes, each of which has the lock of its number and waits for the other one's."""
    return make_ring(start_worker, server.url, client, names)


def make_ring(start_worker: Start, url: Any, client: Client, names: list[str]) -> list[Worker]:
    workers = [start_worker("workers.crosser", url, json.dumps(OPTIONS)) for _ in names]
    for worker, name in zip(workers, names, strict=True):
        assert worker.receive(SOON) == {"event": "ready"}
        take(worker, name)
    for worker, name in zip(workers, reversed(names), strict=True):
        wait_for(worker, name, client)
    return workers


def check_ring(client: Client, url: Any, names: list[str]) -> None:
    """Check that each lock shows the ring, which begins with that lock."""
    infos = [client.info(name) for name in names]
    waits = [{"lock": info.name, "waiter": info.queue[0], "holder": info.owner} for info in infos]
    assert rings_soon(names[0], url) == [waits]
    assert rings_soon(names[1], url) == [waits[::-1]]
    said = [f"            {one['waiter']} waits for {one['lock']!r}, which {one['holder']} has" for one in waits]
    assert "\n".join(["deadlock    2 callers wait for each other", *said, ""]) in run(names[0], url=url)
    after = [client.info(name) for name in names]
    assert [(info.owner, info.queue) for info in after] == [(info.owner, info.queue) for info in infos], (
        "to look changes nothing"
    )


@pytest.mark.every_quorum
def test_a_ring_of_two_processes_is_shown_from_each_of_its_locks(
    ring: list[Worker], server: Deployment, client: Client, names: list[str]
) -> None:
    check_ring(client, server.url, names)
    assert [worker.look() for worker in ring] == [None, None], "neither got an error"


def test_a_ring_on_a_cluster_with_each_lock_on_another_node(
    start_worker: Start, cluster: ClusterOfServers, connect: Callable[..., Client], name: str
) -> None:
    found: dict[int, str] = {}
    for number in range(30):
        found.setdefault(cluster.owner(f"{name}-{number}").port, f"{name}-{number}")
    names, client = [*found.values()][:2], connect(cluster.url)
    make_ring(start_worker, cluster.url, client, names)
    check_ring(client, cluster.url, names)


@pytest.mark.every_quorum
@pytest.mark.parametrize("has_waited", [False, True])
def test_a_holder_that_does_not_wait_is_no_ring(
    start_worker: Start, server: Deployment, client: Client, names: list[str], has_waited: bool
) -> None:
    """A client that has never waited listens to nothing; one that has waited must say that it does not wait now."""
    holder, other = [start_worker("workers.crosser", server.url, json.dumps(OPTIONS)) for _ in names]
    for worker in (holder, other):
        assert worker.receive(SOON) == {"event": "ready"}
    if has_waited:
        take(other, names[0])
        wait_for(holder, names[0], client)
        other.send({"do": "release"})
        assert holder.receive(SOON) == {"event": "granted", "lock": names[0]}
        assert other.receive(SOON) == {"event": "released"}
    else:
        take(holder, names[0])
    take(other, names[1])
    wait_for(other, names[0], client)
    until(lambda: not status(names[0], server.url)["silent"], within=SOON, what="all is known")
    assert status(names[0], server.url)["deadlocks"] == []
    until(lambda: "deadlock    none\n" in run(names[0], url=server.url), within=SOON, what="it says so")


def test_a_lock_that_nobody_waits_for_needs_no_question(client: Client, server: Server, name: str) -> None:
    def published() -> int:
        return int(server.all_calls().get("publish", 0))

    with client.lock(name):
        before = published()
        assert "deadlock" not in run(name, url=server.url)
        assert published() == before + 1, "a new client only tries if a script may send messages"


@contextmanager
def impatient() -> Iterator[None]:
    """Let the command wait only briefly for answers, where one must be missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rings, "ANSWER_SECONDS", 0.5)
        yield


def test_a_client_that_does_not_answer_is_named(
    ring: list[Worker], server: Server, client: Client, names: list[str]
) -> None:
    stopped, silent = ring[1], client.info(names[1]).owner
    stopped.stop()
    try:
        with impatient():
            seen = [status(name, server.url) for name in names]
            plain = run(names[0], url=server.url)
    finally:
        stopped.cont()
    assert [one["deadlocks"] for one in seen] == [[], []]
    assert [silent in one["silent"] for one in seen] == [True, True]
    assert "deadlock    not known: not every client has answered within " in plain
    assert f"no answer   {silent}\n" in plain
    check_ring(client, server.url, names)


@pytest.mark.parametrize("denied", ["-publish", "-subscribe"])
def test_an_operator_without_the_right_to_ask_or_to_hear_knows_of_no_ring(
    own_server: Server, connect: Callable[..., Client], start_worker: Start, names: list[str], denied: str
) -> None:
    make_ring(start_worker, own_server.url, connect(own_server.url), names)
    own_server.cli("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", denied)
    with impatient():
        plain = run(names[0], url=f"redis://127.0.0.1:{own_server.port}", user="limited", password="secret")
    assert "deadlock    not known: " in plain


def test_an_operator_who_may_see_only_one_lock_of_a_ring_sees_its_holder_and_why_no_more(
    own_server: Server, connect: Callable[..., Client], start_worker: Start, names: list[str]
) -> None:
    client = connect(own_server.url)
    make_ring(start_worker, own_server.url, client, names)
    keys = (f"~lock:{{{names[0]}}}*", "~lock:master")
    own_server.cli("ACL", "SETUSER", "limited", "on", ">secret", *keys, "&*", "+@all")
    where = {"url": f"redis://127.0.0.1:{own_server.port}", "user": "limited", "password": "secret"}
    assert f" ({client.info(names[0]).owner})\nheld for" in run(names[0], **where)
    assert f"deadlock    not known: {names[1]!r}: " in run(names[0], **where)
    assert json.loads(run(names[0], "--json", **where))["deadlocks"] is None
