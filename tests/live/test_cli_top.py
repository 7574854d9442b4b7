"""`relock top` on real masters, in a terminal, in a page, and what it costs the masters."""

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import threading

import aiohttp
import pytest
from click.testing import CliRunner
from support.masters import Deployment, Masters, quorum_of
from support.servers import Server, die_with_parent, free_port
from support.spawn import spawn
from support.until import until

from relock import Client
from relock.cli._main import cli
from relock.cli._nodes import Where
from relock.cli._top import masters as top_masters
from relock.cli._top.sampler import Sampler

WITHIN = 90.0
FRAME = b"looked at"  # in the line above the table
LEAVES_SCREEN = b"\x1b[?1049l"


def relock(*words: str, nodes: str) -> "subprocess.CompletedProcess[str]":
    env = {"RELOCK_USERNAME": None, "RELOCK_PASSWORD": None, "RELOCK_NODES": nodes}
    done = CliRunner().invoke(cli, words, prog_name="relock", env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def environment(nodes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RELOCK_NODES": nodes, "TERM": "xterm"}


@pytest.mark.every_quorum
def test_ten_thousand_locks_cost_a_master_200_looks_a_second_and_no_write(server: Deployment) -> None:
    members = server.members if isinstance(server, Masters) else (server,)
    for member in members:
        with member.client() as direct:
            direct.mset({f"lock:{{{number}}}": "" for number in range(10_000)})
    urls = tuple(member.url for member in members)
    before = [(dirty(member), member.calls()) for member in members]
    now, masters = 0.0, top_masters.Masters(Where(urls, "lock"))
    sampler = Sampler(masters, lambda: now)
    for half in range(11):  # five seconds, with a survey at each end
        now = half / 2
        sampler.survey()
        known = sampler.round()
    masters.close()
    assert (known.problem, known.names, len(known.rows)) == (None, 10_000, 1_200)
    looks = []
    for member, (writes, calls) in zip(members, before, strict=True):
        added = {command: count - calls.get(command, 0) for command, count in member.calls().items()}
        looks.append(added.pop("evalsha", 0) + added.pop("eval", 0))
        assert 2 * 20 <= added.pop("scan") <= 2 * 24  # 500 keys each
        assert sum(added.values()) < 60, added
        assert "publish" not in added
        assert dirty(member) == writes
    assert max(looks) <= 1_210
    assert sum(number >= 1_200 for number in looks) >= quorum_of(len(members))


def dirty(server: Server) -> int:
    """Return how many changes of its data a server has counted."""
    with server.client() as direct:
        return int(direct.info("persistence")["rdb_changes_since_last_save"])


def test_json_is_one_document(server: Server, client: Client) -> None:
    waiter = threading.Thread(target=lambda: client.lock("a").acquire(timeout=WITHIN), daemon=True)
    client.latch("go", 3).arrive("x")
    with client.lock("a"), client.lock("a"), client.lock("b"), client.semaphore("s", 3):
        waiter.start()
        until(lambda: client.info("a").queue, within=WITHIN, what="somebody waits")
        done = relock("top", "--json", nodes=server.url)
        by_age = json.loads(relock("top", "--json", "--sort", "held", nodes=server.url).stdout)
    waiter.join(WITHIN)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    (master,) = found["masters"]
    assert (master["reachable"], master["vote_in_seconds"], found["names"], found["error"]) == (True, None, 4, None)
    assert master["version"] in server.version()
    assert master["clock_offset_seconds"][0] <= master["clock_offset_seconds"][1]
    assert [(one["name"], one["kind"]) for one in found["locks"]] == [
        *(("a", "lock"), ("b", "lock"), ("go", "latch"), ("s", "semaphore")),
    ]
    a, _, go, s = found["locks"]
    assert [{*one["owners"]} for one in (a, s)] == [{*one["holders"], *one["queue"]} for one in (a, s)]
    assert "owners" not in go
    assert (a["hold_count"], len(a["queue"]), s["permits"]) == (2, 1, 1)
    assert 0 <= a["first_waits_seconds"] <= a["held_for_seconds"] < WITHIN
    ages = [one["held_for_seconds"] for one in by_age["locks"][:2]]
    assert ages == sorted(ages, reverse=True)


def test_masters_that_are_away_are_one_line_and_an_exit_code(own_server: Server) -> None:
    own_server.kill()
    done = relock("top", "--json", nodes=own_server.url)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (69, "", 1)


def test_details_are_those_of_status(server: Server, client: Client, name: str) -> None:
    masters = top_masters.Masters(Where((server.url,), "lock"))
    with client.lock(name):
        text = masters.details(name, "lock")
        assert text.splitlines()[0] == relock("status", name, nodes=server.url).stdout.splitlines()[0]
        assert "queue       nobody waits" in text
    masters.close()


def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(server: Server) -> None:
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    before = termios.tcgetattr(terminal)
    process = spawn(
        [sys.executable, "-m", "relock", "top"], **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
        env=environment(server.url),
    )  # fmt: skip
    shown = read_until(controller, FRAME)
    process.send_signal(signal.SIGTERM)
    shown += read_until(controller, LEAVES_SCREEN)
    assert process.wait(WITHIN) == 128 + signal.SIGTERM
    assert termios.tcgetattr(terminal) == before
    assert b"Traceback" not in shown
    os.close(controller)
    os.close(terminal)


def read_until(terminal: int, text: bytes) -> bytes:
    shown = b""
    while text not in shown:
        shown += os.read(terminal, 4096)
    return shown


def begin() -> None:
    """Set, in the new process, the signals of a foreground process. One in the background ignores SIGINT."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def processes() -> dict[int, tuple[int, str]]:
    """Return the parent and the words of each process that runs."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True)
    fields = (line.split(maxsplit=3) for line in listed.stdout.splitlines())
    return {int(pid): (int(parent), "".join(words)) for pid, parent, state, *words in fields if state[0] != "Z"}


async def test_a_page_shows_it_and_ctrl_c_leaves_no_process(server: Server) -> None:
    port = free_port()
    command = [sys.executable, "-m", "relock", "top", "--serve", str(port), "--node", server.url]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(""),
        preexec_fn=begin,  # noqa: PLW1509
    )
    assert process.stderr is not None
    told = await asyncio.to_thread(process.stderr.readline)
    address = f"http://127.0.0.1:{port}"
    assert told == f"relock: serving {address} until Ctrl-C\n"
    with socket.socket() as beside:  # refused if the server listened on all addresses
        beside.bind(("127.0.0.2", port))
    async with aiohttp.ClientSession() as session:
        async with session.get(address) as page:
            assert (page.status, "relock top" in await page.text()) == (200, True)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{address}/ws", origin="http://elsewhere.example")
        assert refused.value.status == 403
        async with session.ws_connect(
            f"{address}/ws?width=80&height=24", origin=f"http://localhost:{port}"
        ) as page_socket:
            shown = b""
            while FRAME not in shown:
                shown += await page_socket.receive_bytes()
            page_process, words = next((pid, words) for pid, (up, words) in processes().items() if up == process.pid)
            assert server.url not in words
            process.send_signal(signal.SIGINT)
            async for _ in page_socket:
                pass
    assert await asyncio.to_thread(process.wait, WITHIN) == 128 + signal.SIGINT
    until(lambda: page_process not in processes(), within=WITHIN, what="the page's process has ended")
    assert process.stderr.read() == ""
    process.stderr.close()
