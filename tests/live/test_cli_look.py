"""`relock status`, `ls`, `release` and `doctor`, in the process of the tests, and in processes of their own."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.cli import relock
from support.servers import Server, die_with_parent
from support.until import until

from relock import Client, LockLostError
from relock._scripts import load, script_names

WITHIN = 90.0
SECRET = "s3cret-p4ss"
ME = f"process {os.getpid()} on {socket.gethostname()}"


def relock_bytes(*words: str, nodes: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "relock", *words],
        capture_output=True,
        timeout=WITHIN,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RELOCK_NODES": nodes, **environment},
    )


def begin() -> None:
    """Set, in the new process, the signals of a foreground process. One in the background ignores SIGINT."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(*words: str, nodes: str, stdout: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "relock", *words],
        stdout=stdout,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RELOCK_NODES": nodes},
        preexec_fn=begin,  # noqa: PLW1509
    )


def test_status_of_a_free_lock(server: Server, name: str) -> None:
    done = relock("status", name, "--json", nodes=server.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "name": name,
        "kind": "lock",
        "held": False,
        "resting": False,
        "owner": None,
        "hold_count": 0,
        "held_for_seconds": None,
        "lease_left_seconds": 0.0,
        "token": None,
        "note": None,
        "readers": [],
        "queue": [],
        "waits_seconds": [],
        "owners": {},
        "deadlocks": [],
        "silent": [],
    }
    assert "nobody" in relock("status", name, nodes=server.url).stdout


def test_status_of_a_lock_that_is_held_and_waited_for(server: Server, client: Client, name: str) -> None:
    with client.lock(name, ttl=600), client.lock(name) as held:
        waiter = threading.Thread(target=lambda: client.lock(name).acquire(timeout=WITHIN), daemon=True)
        waiter.start()
        until(lambda: client.info(name).queue, within=WITHIN, what="somebody waits")
        status = json.loads(relock("status", "--node", server.url, name, "--json").stdout)
        plain = relock("status", name, nodes=server.url).stdout
        token = held.token
        info = client.info(name)
    waiter.join(WITHIN)
    assert (status["held"], status["hold_count"], status["token"]) == (True, 2, token)
    assert (status["owner"], status["queue"]) == (info.owner, list(info.queue))
    me = {"host": socket.gethostname(), "process": os.getpid(), "client": None, "owner": None}
    assert status["owners"] == {info.owner: me, info.queue[0]: me}
    assert 0 < status["lease_left_seconds"] <= 600
    assert 0 <= status["waits_seconds"][0] <= status["held_for_seconds"] < WITHIN
    assert all(str(part) in plain for part in (name, info.owner, token, info.queue[0]))
    assert f"holder      {ME} ({info.owner})\nheld for    " in plain
    assert re.search(rf"^            1\. for [0-9.]+ s: {re.escape(ME)} \(", plain, re.MULTILINE)


@pytest.mark.parametrize("words", [("status", "orders:42"), ("ls", "--long")], ids=lambda words: words[0])
def test_a_narrow_terminal_has_no_line_that_is_too_long(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 60))
    with client.lock("orders:42", owner="nightly-report-of-the-large-customer"), open(controller, "rb") as shown:
        process = start(*words, nodes=server.url, stdout=terminal)
        os.close(terminal)
        text = b""
        with contextlib.suppress(OSError):  # so Linux reports that nobody can write any more
            while chunk := shown.read1():
                text += chunk
    assert process.wait(WITHIN) == 0
    lines = text.decode().splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert "owner='nightly-report-of-the-large-customer'" in "".join(map(str.strip, lines))


def test_status_of_a_lock_that_readers_have(server: Server, client: Client, name: str) -> None:
    lock = client.rwlock(name, ttl=600)
    with lock.read, client.rwlock(name, owner="job", ttl=900).read:
        status = json.loads(relock("status", name, "--json", nodes=server.url).stdout)
        plain = relock("status", name, nodes=server.url).stdout
        info = lock.info()
    said = [(reader["owner"], reader["hold_count"]) for reader in status["readers"]]
    assert said == [(reader.owner, 1) for reader in info.readers]
    assert len(said) == 2
    assert 600 < status["readers"][0]["lease_left_seconds"] <= 900
    assert (status["held"], status["owner"], status["token"]) == (True, info.owner, info.token)
    for reader in info.readers:
        assert f" ({reader.owner}), hold count 1, " in plain
    assert f"reader      {ME}, owner='job' (" in plain
    assert f"lock        {name}\n" in plain
    assert f"token       {info.token}\nqueue       nobody waits\n" in plain
    assert "holder" not in plain
    with lock.write:
        assert json.loads(relock("status", name, "--json", nodes=server.url).stdout)["readers"] == []


def test_a_lock_that_rests_is_shown_without_an_owner(server: Server, client: Client, name: str) -> None:
    with client.lock(name, at_least=600):
        pass
    status = json.loads(relock("status", name, "--json", nodes=server.url).stdout)
    assert (status["held"], status["resting"], status["owner"], status["held_for_seconds"]) == (True, True, None, None)
    assert "holder      nobody: it rests\nrests       for 6" in relock("status", name, nodes=server.url).stdout
    [shown] = json.loads(relock("ls", name, "--long", "--json", nodes=server.url).stdout)
    assert (shown["resting"], shown["holders"]) == (True, [])
    assert relock("ls", name, "--long", nodes=server.url).stdout.endswith("nobody: it rests\n")
    assert relock("release", name, "--force", nodes=server.url).returncode == 0
    assert not client.lock(name).locked()


def test_a_note_is_shown_on_one_line(server: Server, client: Client, name: str) -> None:
    with client.lock(name, note="nightly\x1b https://ci/7"):
        status = relock("status", name, "--json", nodes=server.url), relock("status", name, nodes=server.url)
        assert json.loads(status[0].stdout)["note"] == "nightly\x1b https://ci/7"
        assert "\nnote        nightly\\x1b https://ci/7\n" in status[1].stdout
        shown = relock("ls", name, "--long", "--json", nodes=server.url), relock("ls", name, "--long", nodes=server.url)
        assert json.loads(shown[0].stdout)[0]["note"] == "nightly\x1b https://ci/7"
        assert shown[1].stdout.endswith(f"  {ME}: nightly\\x1b https://ci/7\n")
        with start("watch", name, "--interval", "0.05", "--lines", "2", nodes=server.url) as process:
            assert process.stdout is not None
            assert process.stdout.readline().endswith(f"  {ME}: nightly\\x1b https://ci/7\n")
            server.cli("HSET", f"lock:{{{name}}}", client.info(name).owner or "", "1 later")
            assert process.stdout.readline().endswith(f"  {ME}: later\n")
    with client.rwlock(name, note="reads").read, client.rwlock(name).read:
        readers = json.loads(relock("status", name, "--json", nodes=server.url).stdout)["readers"]
        assert [reader["note"] for reader in readers] == ["reads"]
        assert "s left\n            reads\n" in relock("status", name, nodes=server.url).stdout


def test_another_librarys_lock_without_an_end_is_valid_json(server: Server, name: str) -> None:
    server.cli("SET", f"lock:{{{name}}}", "x")
    status = json.loads(relock("status", name, "--json", nodes=server.url).stdout)
    assert (status["held"], status["owner"], status["lease_left_seconds"]) == (True, None, None)


def test_ls_lists_what_is_held(server: Server, client: Client) -> None:
    with client.lock("a:1"), client.lock("b\x1b[2J"):
        assert sorted(relock("ls", nodes=server.url).stdout.splitlines()) == ["a:1", "b\\x1b[2J"]
        assert json.loads(relock("ls", "a*", "--json", nodes=server.url).stdout) == [{"name": "a:1", "kind": "lock"}]
        assert relock("ls", "--prefix", "other", nodes=server.url).stdout == ""


def test_ls_says_what_is_no_lock(server: Server, client: Client) -> None:
    with client.lock("a"), client.semaphore("a", 2), client.semaphore("b\t", 2):
        assert sorted(relock("ls", nodes=server.url).stdout.splitlines()) == ["a", "a\tsemaphore", "b\\t\tsemaphore"]
        assert relock("ls", "--kind", "lock", nodes=server.url).stdout == "a\n"
        assert sorted(relock("ls", "--kind", "semaphore", nodes=server.url).stdout.splitlines()) == ["a", "b\\t"]
        found = json.loads(relock("ls", "a", "--json", nodes=server.url).stdout)
        assert found == [{"name": "a", "kind": "lock"}, {"name": "a", "kind": "semaphore"}]
        found = json.loads(relock("ls", "--kind", "semaphore", "--json", nodes=server.url).stdout)
        assert found == [{"name": "a", "kind": "semaphore"}, {"name": "b\t", "kind": "semaphore"}]
        assert relock("ls", "--kind", "mutex", nodes=server.url).returncode == 2


def test_ls_long_says_what_has_each_name_and_for_how_long(server: Server, client: Client) -> None:
    assert relock("ls", "--long", nodes=server.url).stdout == (
        "NAME  KIND  HELD FOR  LEASE  WAITING  FIRST FOR  HOLDER\n"
    )
    server.cli("SET", "lock:{other}", "x")
    client.latch("go", 3).arrive()
    waiter = threading.Thread(target=lambda: client.lock("a").acquire(timeout=WITHIN), daemon=True)
    with (
        client.lock("a", owner="job"),
        client.rwlock("r").read,
        client.semaphore("s", 2),
        client.semaphore("s", 2),
    ):
        waiter.start()
        until(lambda: client.info("a").queue, within=WITHIN, what="somebody waits")
        long = relock("ls", "--long", nodes=server.url).stdout
        facts = json.loads(relock("ls", "--long", "--json", nodes=server.url).stdout)
    waiter.join(WITHIN)
    a, go, other, r, s = (re.split(r"  +", line) for line in long.splitlines()[1:])
    assert [*a[:2], a[4], a[6]] == ["a", "lock", "1", f"{ME}, owner='job'"]
    assert all(text.endswith(" s") for text in (a[2], a[3], a[5]))
    assert go == ["go", "latch", "-", "-", "-", "-", "closed: 2 of 3 are missing"]
    assert other == ["other", "lock", "-", "-", "0", "-", "another library"]
    assert [*r[:3], *r[4:]] == ["r", "lock", "-", "0", "-", f"{ME} reads"]
    assert [*s[:3], *s[4:]] == ["s", "semaphore", "-", "0", "-", f"{ME} and 1 more"]
    assert [fact["name"] for fact in facts] == ["a", "go", "other", "r", "s"]
    assert [fact.get("reading") for fact in facts] == [False, None, False, True, None]
    assert 0 <= facts[0]["first_waits_seconds"] <= facts[0]["held_for_seconds"] < WITHIN
    assert facts[2]["lease_left_seconds"] is None
    me = {"host": socket.gethostname(), "process": os.getpid(), "client": None}
    (holder,), (waiting,) = facts[0]["holders"], facts[0]["queue"]
    assert facts[0]["owners"] == {holder: {**me, "owner": "job"}, waiting: {**me, "owner": None}}
    assert {*facts[4]["owners"]} == {*facts[4]["holders"]}


def test_watch_prints_a_line_for_each_change_and_goes_on_without_masters(
    start_server: Callable[..., Server], connect: Callable[..., Client]
) -> None:
    server = start_server()
    client = connect(server.url, ttl=600)
    with start("watch", "a", "--interval", "0.05", "--lines", "5", nodes=server.url) as process:
        assert process.stdout is not None
        lines = (line.partition("  ")[2].strip() for line in process.stdout)
        assert next(lines) == "nobody"
        waiter = threading.Thread(target=lambda: client.lock("a").acquire(timeout=WITHIN), daemon=True)
        with client.lock("a", owner="job"):
            assert next(lines) == f"{ME}, owner='job'"
            waiter.start()
            assert next(lines) == f"{ME}, owner='job', 1 waiting"
        waiter.join(WITHIN)
        assert next(lines) == ME, "the waiter's thread has ended without a release"
        server.kill()
        assert next(lines).startswith("not known: ")
        assert process.wait(WITHIN) == 0


def test_watch_prints_json_for_scripts(server: Server, client: Client, name: str) -> None:
    client.latch(name, 2).arrive("a")
    one = json.loads(relock("watch", name, "--kind", "latch", "--lines", "1", "--json", nodes=server.url).stdout)
    assert one.pop("at") > 1_700_000_000
    assert one == {"name": name, "kind": "latch", "arrived": ["a"]}


def test_status_watch_shows_the_state_again_and_again_also_without_masters(
    start_server: Callable[..., Server], connect: Callable[..., Client]
) -> None:
    server = start_server()
    with start("status", "a", "--watch", "--json", nodes=server.url) as process:
        assert process.stdout is not None
        assert not json.loads(process.stdout.readline())["held"]
        connect(server.url).lock("a").acquire()
        assert any(json.loads(line)["held"] for line in process.stdout)
        server.kill()
        assert any("error" in json.loads(line) for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN) == 128 + signal.SIGINT


def test_status_of_a_semaphore_that_nobody_uses(server: Server, client: Client, name: str) -> None:
    done = relock("status", name, "--semaphore", "--json", nodes=server.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "name": name,
        "kind": "semaphore",
        "limits": [],
        "override": None,
        "used": 0,
        "holders": [],
        "queue": [],
        "waits_seconds": [],
        "owners": {},
    }
    assert (
        "limit       not known: nobody is there to name it\n"
        in relock("status", name, "--semaphore", nodes=server.url).stdout
    )
    client.semaphore(name, 4).override(2, 60)
    assert "limit       2, by an operator\n" in relock("status", name, "--semaphore", nodes=server.url).stdout


def test_status_of_a_latch(server: Server, client: Client, name: str) -> None:
    def status() -> tuple[object, list[str]]:
        printed = relock("status", name, "--latch", nodes=server.url).stdout.splitlines()
        return json.loads(relock("status", name, "--latch", "--json", nodes=server.url).stdout), printed[1:]

    latch, seen = client.latch(name, 2), {"name": name, "kind": "latch"}
    assert status() == ({**seen, "arrived": []}, ["state       closed: nobody has arrived"])
    latch.arrive("a\x1b")
    found = {**seen, "parties": 2, "arrived": ["a\x1b"], "missing": 1}
    assert status() == (found, ["state       closed: 1 of 2 are missing", "arrived     a\\x1b"])
    latch.arrive("b")
    assert status()[1] == ["state       open", "arrived     a\\x1b", "arrived     b"]
    assert relock("ls", "--kind", "latch", nodes=server.url).stdout == f"{name}\n"
    assert f"{name}\tlatch\n" in relock("ls", nodes=server.url).stdout
    both = relock("status", name, "--latch", "--semaphore", nodes=server.url)
    assert (both.returncode, "exclude each other" in both.stderr) == (2, True)


def test_status_of_a_semaphore_that_is_held_and_waited_for(server: Server, client: Client, name: str) -> None:
    semaphore = client.semaphore(name, 4, ttl=600)
    with semaphore as one:
        several = semaphore.acquire(3)
        assert several is not None
        waiter = threading.Thread(target=lambda: semaphore.acquire(timeout=WITHIN), daemon=True)
        waiter.start()
        until(lambda: semaphore.info().queue, within=WITHIN, what="somebody waits")
        semaphore.override(2, 60)
        status = json.loads(relock("status", name, "--semaphore", "--json", nodes=server.url).stdout)
        plain = relock("status", name, "--semaphore", nodes=server.url).stdout
        info = semaphore.info()
        semaphore.override(0, 0)
        several.release()
        assert one.owned()
    waiter.join(WITHIN)
    assert (status["limits"], status["override"], status["used"]) == ([4], 2, 4)
    assert status["queue"] == list(info.queue)
    assert {*status["owners"]} == {*info.queue, *(holder.owner for holder in info.holders)}
    held = sorted((holder["permits"], holder["slot"], holder["owner"]) for holder in status["holders"])
    assert held == sorted(
        ((holder.permits, holder.slot, holder.owner) for holder in info.holders), key=lambda one: one[0]
    )
    assert [slot for _, slot, _ in held] == [0, None]
    assert all(0 < holder["lease_left_seconds"] <= 600 for holder in status["holders"])
    (first, _, owner), (third, _, owner_of_three) = held
    assert (first, third) == (1, 3)
    for line in (
        *(f"semaphore   {name}\n", "limit       2, by an operator, in place of 4\n", "used        4\n"),
        *(f" ({owner}), slot 0, ", f" ({owner_of_three}), 3 permits, ", "queue       1 waiting\n            1. for "),
        f" ({info.queue[0]})\n",
    ):
        assert line in plain


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_every_output_takes_what_its_encoding_lacks(server: Server, client: Client, name: str, encoding: str) -> None:
    name = f"{name}-ключ→é"
    where = {"nodes": server.url, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    client.lock(name, owner="→").acquire()
    shown = relock_bytes("ls", **where).stdout
    if encoding == "latin-1":  # click writes UTF-8 to an ASCII output
        assert "-\\u043a\\u043b\\u044e\\u0447\\u2192é\n" in shown.decode(encoding)
    for words in (
        *(("status", name), ("doctor", "--prefix", name), ("run", name, "--no-wait", "true")),
        *(("release", name, "--force"), ("run", name, "--json", "true")),
    ):
        done = relock_bytes(*words, **where)
        assert done.stdout or done.stderr, words
        assert b"Traceback" not in done.stderr, done.stderr
        assert b"UnicodeEncodeError" not in done.stderr, done.stderr


def test_release_takes_force(server: Server, client: Client, name: str) -> None:
    lock = client.lock(name)
    assert lock.acquire()
    refused = relock("release", name, nodes=server.url)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert client.info(name).held
    done = relock("release", name, "--force", "--json", nodes=server.url)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"name": name, "released": True})
    assert not client.info(name).held
    with pytest.raises(LockLostError):
        lock.release()
    again = relock("release", name, "--force", nodes=server.url)
    assert (again.returncode, again.stdout) == (0, f"{name}: nobody held it\n")


def test_release_ends_the_permits_of_one_holder(server: Server, client: Client, name: str) -> None:
    semaphore = client.semaphore(name, 2)
    one, another = semaphore.acquire(), semaphore.acquire()
    assert one is not None
    assert another is not None
    owner = next(holder.owner for holder in semaphore.info().holders if holder.slot == one.slot)
    words = ("release", name, "--permits-of", owner)
    assert relock(*words, nodes=server.url).returncode == 2
    done = relock(*words, "--force", "--json", nodes=server.url)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"name": name, "owner": owner, "released": True})
    assert [holder.slot for holder in semaphore.info().holders] == [another.slot]
    with pytest.raises(LockLostError):
        one.release()
    again = relock(*words, "--force", nodes=server.url)
    assert (again.returncode, again.stdout) == (0, f"{name}: that owner has no permit\n")
    wrong = relock("release", name, "--permits-of", "job", "--force", nodes=server.url)
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)
    another.release()


@pytest.mark.parametrize(
    "words",
    [
        *(["status", "x"], ["status", "x", "--semaphore"], ["ls"]),
        *(["release", "x", "--force"], ["release", "x", "--force", "--permits-of", "a:1"]),
    ],
)
def test_a_server_that_is_away_is_one_line_and_an_exit_code(own_server: Server, words: list[str]) -> None:
    own_server.kill()
    done = relock(*words, nodes=own_server.url)
    assert (done.returncode, done.stdout) == (69, "")
    assert len(done.stderr.splitlines()) == 1


def test_usage_errors_and_help(server: Server) -> None:
    assert relock("ls").returncode == 2
    assert relock("status", "", nodes=server.url).returncode == 2
    assert relock("ls", nodes="redis+cluster://a/5").returncode == 78
    help_text = relock("--help").stdout
    assert all(command in help_text for command in ("run", "status", "ls", "release", "doctor", "   79  "))


# Passwords ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["status", "x"], ["ls"], ["doctor"], ["doctor", "--json"], ["run", "x", "--", "true"]]
)
def test_passwords_come_from_the_environment_and_are_never_printed(
    start_server: Callable[..., Server], words: list[str]
) -> None:
    server = start_server(password=SECRET)
    plain = f"redis://127.0.0.1:{server.port}"
    good = relock(*words, nodes=plain, RELOCK_PASSWORD=SECRET)
    in_url = relock(*words, nodes=server.url)
    bad = relock(*words, nodes=plain, RELOCK_PASSWORD=f"{SECRET}-wrong")
    none = relock(*words, nodes=plain)
    refused = relock(*words[:1], "--node", server.url, *words[1:])
    assert (good.returncode, in_url.returncode) == (0, 0)
    assert bad.returncode == none.returncode == (1 if words[0] == "doctor" else 69)
    assert refused.returncode == 2
    assert SECRET not in "".join(done.stdout + done.stderr for done in (good, in_url, bad, none, refused))


# Doctor ---------------------------------------------------------------------------------------------------------------


def doctor(*nodes: str, **environment: str) -> tuple[int, dict[str, Any]]:
    done = relock("doctor", "--json", nodes=" ".join(nodes), **environment)
    return done.returncode, json.loads(done.stdout)


def verdicts(master: dict[str, Any]) -> dict[str, str]:
    return {finding["check"]: finding["verdict"] for finding in master["findings"]}


@pytest.mark.every_server
def test_a_good_server(server: Server, server_kind: str) -> None:
    code, found = doctor(server.url)
    (master,) = found["masters"]
    assert (code, found["healthy"], found["together"]) == (0, True, [])
    assert (master["reachable"], master["role"]) == (True, "master")
    assert verdicts(master) == {
        **dict.fromkeys(("reachable", "commands", "INFO", "role", "version", "eviction", "clock", "SCAN"), "ok"),
        **dict.fromkeys(("PUBLISH", "PUBSUB", "scripts", "Pub/Sub"), "ok"),
        "persistence": "note",
    }
    low, high = master["clock_offset_seconds"]
    assert low <= high
    assert not [key for key in server.cli("KEYS", "*") if not key.endswith(b":token")]


def test_a_server_that_keeps_everything(start_server: Callable[..., Server]) -> None:
    _, found = doctor(start_server("--appendonly", "yes", "--appendfsync", "always").url)
    assert verdicts(found["masters"][0])["persistence"] == "ok"


def test_a_policy_that_evicts(start_server: Callable[..., Server]) -> None:
    code, found = doctor(start_server("--maxmemory-policy", "allkeys-lru").url)
    assert (code, found["healthy"]) == (1, False)
    assert verdicts(found["masters"][0])["eviction"] == "wrong"


def test_a_replica(start_server: Callable[..., Server], server: Server) -> None:
    code, found = doctor(start_server("--replicaof", "127.0.0.1", str(server.port)).url)
    assert code == 1
    assert verdicts(found["masters"][0])["role"] == "wrong"


def test_a_server_that_is_away_beside_one_that_is_there(own_server: Server, server: Server) -> None:
    own_server.kill()
    code, found = doctor(own_server.url, server.url)
    assert code == 1
    assert [master["reachable"] for master in found["masters"]] == [False, True]
    assert [finding["check"] for finding in found["together"]] == ["number"]


def test_a_server_that_hangs(own_server: Server) -> None:
    own_server.stop()
    done = relock("doctor", "--timeout", "0.2", nodes=own_server.url)
    own_server.cont()
    assert done.returncode == 1
    assert "\twrong\treachable\t" in done.stdout


def test_the_same_server_twice(server: Server) -> None:
    code, found = doctor(server.url, f"unix://{server.socket_path}")
    assert code == 1
    assert "independent" in [finding["check"] for finding in found["together"]]


def test_a_right_that_relock_does_without_is_noted(own_server: Server) -> None:
    own_server.cli("ACL", "SETUSER", "limited", "on", f">{SECRET}", "~*", "&*", "+@all", "-pubsub")
    environment = {"RELOCK_USERNAME": "limited", "RELOCK_PASSWORD": SECRET}
    code, found = doctor(f"redis://127.0.0.1:{own_server.port}", **environment)
    assert (code, verdicts(found["masters"][0])["PUBSUB"]) == (0, "note")


@pytest.mark.parametrize(
    ("denied", "check"),
    [("-info", "INFO"), ("-publish", "PUBLISH"), ("-evalsha -eval", "scripts"), ("-zadd", "scripts")],
)
def test_a_right_that_is_missing_is_named(own_server: Server, denied: str, check: str) -> None:
    rights = ["on", f">{SECRET}", "~*", "&*", "+@all", *denied.split()]
    own_server.cli("ACL", "SETUSER", "limited", *rights)
    environment = {"RELOCK_USERNAME": "limited", "RELOCK_PASSWORD": SECRET}
    code, found = doctor(f"redis://127.0.0.1:{own_server.port}", **environment)
    assert code == 1
    assert verdicts(found["masters"][0])[check] == "wrong"


def test_keys_of_semaphores_are_tried_as_those_of_locks(own_server: Server) -> None:
    """A user without rights to these keys learns which scripts fail: all that take one of the keys."""
    keys = [f"~lock:{{*}}{tail}" for tail in (":queue", ":waiters", ":token")]
    keys += ["~lock:master", "~lock:{relock*}"]  # a pattern ends where the key does: no key of a semaphore matches
    own_server.cli("ACL", "SETUSER", "limited", "on", f">{SECRET}", *keys, "&*", "+@all")
    environment = {"RELOCK_USERNAME": "limited", "RELOCK_PASSWORD": SECRET}
    code, found = doctor(f"redis://127.0.0.1:{own_server.port}", **environment)
    (said,) = [finding["says"] for finding in found["masters"][0]["findings"] if finding["check"] == "scripts"]
    failed = said.partition(" failed: ")[0].split(", ")
    assert code == 1
    others = {"permits", "leases", "limit", "latch"}
    assert set(failed) == {
        name for name in script_names() if not others.isdisjoint(key.name for key in load(name).keys)
    }


def test_a_refused_publish_is_named_once(own_server: Server) -> None:
    """The scripts work without PUBLISH, so missing wake-ups are no second problem."""
    own_server.cli("ACL", "SETUSER", "limited", "on", f">{SECRET}", "~*", "&*", "+@all", "-publish")
    environment = {"RELOCK_USERNAME": "limited", "RELOCK_PASSWORD": SECRET}
    _, found = doctor(f"redis://127.0.0.1:{own_server.port}", **environment)
    said = verdicts(found["masters"][0])
    assert (said["PUBLISH"], said["scripts"]) == ("wrong", "ok")
    assert "Pub/Sub" not in said
