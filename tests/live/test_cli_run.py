"""`relock run`: real processes, real signals, real servers."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.masters import Masters
from support.servers import Server, die_with_parent
from support.until import until

from relock import Client
from relock.cli._signals import Interrupted
from relock.cli._supervise import Limits
from relock.cli.run import Report, Runner

WITHIN = 90.0
# They sleep in short steps, and do not pause: a signal that comes just before the pause would not end it.
PATIENT_CHILD = "import time; print('ready', flush=True); time.sleep(3600)"
# Their handlers write without Python's buffers: a handler that runs within a print must not print.
OBEDIENT_CHILD = """
import os, signal, sys, time
def end(signum, frame):
    os.write(1, b'got %d\\n' % signum)
    os._exit(3)
for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(signum, end)
os.write(1, b'ready\\n')
while True:
    time.sleep(0.05)
"""
COUNTING_CHILD = """
import os, signal, sys, time
def end(signum, frame):
    os.write(1, b'end\\n')
    os._exit(3)
signal.signal(signal.SIGINT, lambda signum, frame: os.write(1, b'interrupted\\n'))
signal.signal(signal.SIGTERM, end)
os.write(1, b'ready\\n')
while True:
    time.sleep(0.05)
"""
DEAF_CHILD = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
while True:
    time.sleep(0.05)
"""

Popen = subprocess.Popen[str]
Start = Callable[..., Popen]


def begin() -> None:
    """Set, in the new process, the signals of a foreground process. One in the background ignores SIGINT."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `relock ...` with the URL of a server in the environment."""
    started: list[Popen] = []

    def start(url: str, *words: str, stderr: int = subprocess.PIPE) -> Popen:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RELOCK_NODES": url}
        process = subprocess.Popen(
            [sys.executable, "-m", "relock", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
            preexec_fn=begin,  # noqa: PLW1509
            start_new_session=True,  # without a terminal, only relock gets the signals of the tests
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", code, *arguments)


def line(process: Popen) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def child_of(process: Popen) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def has_ended(pid: int) -> bool:
    """Return whether the process has ended; perhaps its new parent has not reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_two_commands_exclude_each_other_and_the_second_waits(
    start: Start, server: Server, client: Client, name: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first = start(server.url, "run", name, "--", "sh", "-c", f"echo in; cat {gate}; echo out")
    assert line(first) == "in"
    # Longer than the look whether the lock can be kept, because the hold is handed over with a short lease.
    second = start(server.url, "run", name, "--", "sh", "-c", "sleep 0.5; echo in")
    until(lambda: len(client.info(name).queue) == 1, within=WITHIN, what="the second one is queued")
    assert second.poll() is None
    gate.write_text("go\n")
    assert first.communicate(timeout=WITHIN)[0] == "go\nout\n"
    assert second.communicate(timeout=WITHIN)[0] == "in\n"
    assert (first.returncode, second.returncode) == (0, 0)


@pytest.mark.parametrize("masters_count", [3])
def test_a_wait_for_new_masters_says_how_long_it_takes(
    start: Start, start_server: Callable[..., Masters], name: str
) -> None:
    """Waits with the default ttl take half a minute, in which nothing else is printed."""
    urls = " ".join(start_server().url)
    first = start(urls, "run", name, "--ttl", "3", "--", "true")
    told = first.communicate(timeout=WITHIN)[1]
    assert first.returncode == 0
    assert re.search(r"has no vote for 3\.[01] s", told)
    assert "may have forgotten leases" in told

    def said_next() -> str:
        said: str = start(urls, "run", name, "--ttl", "3", "--", "true").communicate(timeout=WITHIN)[1]
        return said

    # The third master may have been asked later than the other two, which are a quorum, and has its vote later then.
    until(lambda: "has no vote" not in said_next(), within=WITHIN, what="the next command has nothing to wait for")


def test_the_guard_of_the_programs_beside_it_can_be_had(start: Start, own_server: Server, name: str) -> None:
    process = start(own_server.url, "run", name, "--ttl", "3", "--restart-guard", "3", "--", "true")
    told = process.communicate(timeout=WITHIN)[1]
    assert process.returncode == 0
    assert re.search(r"has no vote for 3\.[01] s", told)


@pytest.mark.parametrize("masters_count", [3])
def test_a_lease_that_would_outlast_the_guard_is_refused(start: Start, server: Masters, name: str) -> None:
    process = start(" ".join(server.url), "run", name, "--ttl", "60", "--restart-guard", "30", "--", "true")
    told = process.communicate(timeout=WITHIN)[1]
    assert process.returncode == 2
    assert "at most the restart_guard of 30 s" in told


def test_a_terminal_shows_what_a_command_waits_for(start: Start, server: Server, client: Client, name: str) -> None:
    terminal, stderr = pty.openpty()
    with client.lock(name):
        process = start(server.url, "run", name, "--", "echo", "ran", stderr=stderr)
        os.close(stderr)
        with open(terminal, "rb", buffering=0) as shown:
            told = shown.readline().decode()
    assert process.communicate(timeout=WITHIN)[0] == "ran\n"
    assert told.strip() == (
        f"relock: waits for the lock {name!r}: process {os.getpid()} on {socket.gethostname()} has it, "
        "0 wait before this command"
    )


@pytest.mark.parametrize("option", [["--no-wait"], ["--wait", "0"], ["--wait", "0.2"]])
def test_a_command_that_does_not_get_the_lock_has_an_exit_code_of_its_own(
    start: Start, server: Server, client: Client, name: str, option: list[str]
) -> None:
    with client.lock(name):
        process = start(server.url, "run", name, *option, "--json", "--", "echo", "ran")
        out, err = process.communicate(timeout=WITHIN)
        assert client.info(name).queue == ()
    assert process.returncode == 75
    assert out == ""
    me = re.escape(f"process {os.getpid()} on {socket.gethostname()}")
    assert re.search(rf"another owner has the lock '.*': {me}, for [0-9.]+ s$", err, re.MULTILINE)
    report = json.loads(err.splitlines()[-1])
    assert (report["outcome"], report["exit_code"], report["token"]) == ("not available", 75, None)


def test_the_note_of_a_command_is_told_while_it_runs_and_to_another_one_that_gives_up(
    start: Start, server: Server, client: Client, name: str
) -> None:
    first = start(server.url, "run", name, "--note", "nightly https://ci/7", "--", "sleep", "600")
    until(lambda: client.info(name).note == "nightly https://ci/7", within=WITHIN, what="the note is told")
    second = start(server.url, "run", name, "--no-wait", "--", "true")
    _, err = second.communicate(timeout=WITHIN)
    assert (second.returncode, ": nightly https://ci/7, for " in err) == (75, True)
    first.terminate()
    first.communicate(timeout=WITHIN)
    assert client.info(name).note is None


def test_a_note_that_is_too_long_is_refused(start: Start, server: Server, name: str) -> None:
    process = start(server.url, "run", name, "--note", 201 * "x", "--", "echo", "ran")
    out, err = process.communicate(timeout=WITHIN)
    assert (process.returncode, out) == (78, "")
    assert "it must be a str of 1 to 200 bytes in UTF-8" in err


def test_a_command_that_ends_at_once_is_not_run_again_too_soon(
    start: Start, server: Server, client: Client, name: str
) -> None:
    def run() -> tuple[int, str, str]:
        process = start(server.url, "run", name, "--no-wait", "--at-least", "600", "--", "echo", "ran")
        out, err = process.communicate(timeout=WITHIN)
        return process.returncode, out, err

    assert run() == (0, "ran\n", "")
    code, out, err = run()
    assert (code, out) == (75, "")
    assert re.search(rf"the lock '{re.escape(name)}' rests for [0-9a-z. ]+ more \(at_least\)", err)
    assert client.force_release(name)


def test_a_command_that_could_not_be_started_leaves_no_rest(
    start: Start, server: Server, client: Client, name: str, tmp_path: Path
) -> None:
    def run(*command: str) -> tuple[int, bool]:
        process = start(server.url, "run", name, "--at-least", "600", "--", *command)
        process.communicate(timeout=WITHIN)
        return process.returncode, client.info(name).resting

    script = tmp_path / "job"
    script.write_text("#!/nonexistent/interpreter\n")
    script.chmod(0o755)
    assert run(str(script)) == (127, False)
    assert run("sh", "-c", "exit 127") == (127, True), "the command has run, and has this exit code itself"
    assert client.force_release(name)


def test_a_signal_just_after_the_grant_leaves_no_rest(client: Client, name: str) -> None:
    signals = Mock(**{"collect.side_effect": Interrupted(signal.SIGTERM)})
    lock, runner = client.lock(name, at_least=600), Runner(client, Report(name), Limits.of(30.0, 5.0), 600.0)
    with pytest.raises(Interrupted):
        runner._take(lock, None, signals)
    assert not client.info(name).held


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["/nonexistent/command"], 127),
        (["no-such-command-anywhere"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_the_exit_code_is_that_of_the_command(
    *, start: Start, server: Server, client: Client, name: str, command: list[str], code: int
) -> None:
    process = start(server.url, "run", name, "--", *command)
    _, err = process.communicate(timeout=WITHIN)
    assert process.returncode == code
    assert "Traceback" not in err
    assert not client.info(name).held


def test_the_command_finds_its_token(start: Start, server: Server, client: Client, name: str) -> None:
    process = start(server.url, "run", name, "--", "sh", "-c", "echo $RELOCK_TOKEN; relock=$(cat); :")
    token = int(line(process))
    process.communicate(timeout=WITHIN)
    assert token == client.info(name).token
    with client.lock(name) as later:
        assert later.token is not None
        assert later.token > token


def test_words_after_the_dashes_are_the_commands_own(start: Start, server: Server, name: str) -> None:
    process = start(server.url, "run", "--ttl", "5", name, "--", "echo", "--json", "--", "-x")
    assert process.communicate(timeout=WITHIN)[0] == "--json -- -x\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on_and_the_lock_is_released(
    start: Start, server: Server, client: Client, name: str, signum: signal.Signals
) -> None:
    process = start(server.url, "run", name, *python(OBEDIENT_CHILD))
    assert line(process) == "ready"
    process.send_signal(signum)
    out, err = process.communicate(timeout=WITHIN)
    assert out == f"got {signum.value}\n", err
    assert process.returncode == 3
    assert not client.info(name).held


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_wait_ends_with_a_signal_and_leaves_nothing_in_the_queue(
    *, start: Start, server: Server, client: Client, name: str, signum: signal.Signals, code: int
) -> None:
    with client.lock(name):
        process = start(server.url, "run", name, "--", "echo", "ran")
        until(lambda: len(client.info(name).queue) == 1, within=WITHIN, what="the caller is queued")
        process.send_signal(signum)
        out, err = process.communicate(timeout=WITHIN)
        assert client.info(name).queue == ()
    assert process.returncode == code
    assert (out, "Traceback" in err) == ("", False)


def test_a_relock_that_is_killed_takes_the_command_with_it(start: Start, server: Server, name: str) -> None:
    process = start(server.url, "run", name, *python(DEAF_CHILD))
    assert line(process) == "ready"
    child = child_of(process)
    process.kill()
    until(lambda: has_ended(child), within=WITHIN, what="the command has ended")


def test_a_relock_that_is_killed_while_it_waits_leaves_no_process(
    start: Start, server: Server, client: Client, name: str
) -> None:
    with client.lock(name):
        process = start(server.url, "run", name, "--", "echo", "ran")
        until(lambda: len(client.info(name).queue) == 1, within=WITHIN, what="the caller is queued")
        child = child_of(process)
        process.kill()
        until(lambda: has_ended(child), within=WITHIN, what="the child has ended")
        assert line(process) == ""


def test_the_lock_is_renewed_while_the_command_runs(start: Start, server: Server, client: Client, name: str) -> None:
    process = start(server.url, "run", name, "--ttl", "6", *python(PATIENT_CHILD))
    assert line(process) == "ready"
    token = client.info(name).token
    began = server.cli("TIME")[0]
    until(lambda: server.cli("TIME")[0] > began + 9, within=WITHIN, what="a lease and a half have passed")
    info = client.info(name)
    assert (info.held, info.token) == (True, token)
    assert process.poll() is None


def test_a_lock_that_was_released_by_force_ends_the_command(
    start: Start, server: Server, client: Client, name: str
) -> None:
    process = start(server.url, "run", name, "--ttl", "4.5", "--json", *python(DEAF_CHILD))
    assert line(process) == "ready"
    child = child_of(process)
    assert client.force_release(name)
    _, err = process.communicate(timeout=WITHIN)
    assert process.returncode == 79
    assert has_ended(child)
    assert json.loads(err.splitlines()[-1])["outcome"] == "lost"


def test_a_lock_that_was_lost_unnoticed_is_reported_when_the_command_has_ended(
    start: Start, server: Server, client: Client, name: str
) -> None:
    process = start(server.url, "run", name, "--ttl", "3600", *python(OBEDIENT_CHILD))
    assert line(process) == "ready"
    assert client.force_release(name)
    process.terminate()
    _, err = process.communicate(timeout=WITHIN)
    assert process.returncode == 79
    assert "was lost" in err


@pytest.mark.parametrize(("child", "last"), [(OBEDIENT_CHILD, "SIGTERM"), (DEAF_CHILD, "SIGKILL")])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_command_whose_lock_cannot_be_renewed_is_ended_before_the_lease(
    *, start: Start, own_server: Server, name: str, child: str, last: str, how: str
) -> None:
    process = start(own_server.url, "run", name, "--ttl", "6", "--grace", "3", *python(child))
    assert line(process) == "ready"
    pid = child_of(process)
    with own_server.client() as redis_client:
        lease_ms = redis_client.pttl(f"lock:{{{name}}}")
    assert 0 < lease_ms <= 6000
    getattr(own_server, how)()
    # No renewal can succeed from here on, so the lease is over at most 6 s after this moment.
    seconds = until(lambda: has_ended(pid), within=WITHIN, what="the command has ended")
    if how == "stop":
        own_server.cont()
    _, err = process.communicate(timeout=WITHIN)
    assert process.returncode == 79
    assert last in err
    if last == "SIGTERM":  # the simulator shows that SIGKILL comes in time, too, to 50 ms
        assert seconds < 6.0


def test_the_end_of_the_command_is_noticed_without_polling(start: Start, server: Server, name: str) -> None:
    process = start(server.url, "run", name, *python(PATIENT_CHILD))
    assert line(process) == "ready"
    stat = Path(f"/proc/{process.pid}/task/{process.pid}/status")

    def switches() -> int:
        return int(next(text for text in stat.read_text().splitlines() if text.startswith("voluntary")).split()[1])

    until(lambda: Path(f"/proc/{process.pid}/wchan").read_text() != "0", within=WITHIN, what="the main thread sleeps")
    before = switches()
    began = server.cli("TIME")[0]
    until(lambda: server.cli("TIME")[0] > began + 1, within=WITHIN, what="a second has passed")
    assert switches() - before < 5
    os.kill(child_of(process), signal.SIGKILL)
    process.wait(WITHIN)
    assert process.returncode == 137


def test_a_relock_that_was_stopped_past_its_lease_kills_the_command(start: Start, server: Server, name: str) -> None:
    process = start(server.url, "run", name, "--ttl", "3", *python(DEAF_CHILD))
    assert line(process) == "ready"
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: not server.cli("EXISTS", f"lock:{{{name}}}"), within=WITHIN, what="the lease is over")
    os.kill(process.pid, signal.SIGCONT)
    process.communicate(timeout=WITHIN)
    assert process.returncode == 79


def test_ctrl_z_stops_nothing(start: Start, server: Server, client: Client, name: str) -> None:
    process = start(server.url, "run", name, *python(OBEDIENT_CHILD))
    assert line(process) == "ready"
    os.killpg(process.pid, signal.SIGTSTP)
    process.terminate()
    assert process.communicate(timeout=WITHIN)[0] == f"got {signal.SIGTERM.value}\n"


def test_ctrl_c_in_a_terminal_reaches_the_command_once(server: Server, client: Client, name: str) -> None:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "relock", "run", name, *python(COUNTING_CHILD)],
        stdin=terminal,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RELOCK_NODES": server.url},
        preexec_fn=partial(use_terminal, terminal),  # noqa: PLW1509
    )
    try:
        assert line(process) == "ready"
        os.write(controller, b"\x03")
        assert line(process) == "interrupted"
        process.terminate()  # after every signal that relock would have passed on
        assert process.communicate(timeout=WITHIN)[0] == "end\n"
        assert process.returncode == 3
    finally:
        process.kill()
        process.communicate()
        os.close(controller)
        os.close(terminal)


def use_terminal(terminal: int) -> None:
    """Begin, in a new process, a session of its own with this terminal."""
    die_with_parent()
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


# Output that nothing reads --------------------------------------------------------------------------------------------

# Holds the file for as long as it lives, by the kernel's lock, and tells whether another process holds it.
ALONE_CHILD = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = open(sys.argv[1], 'a')
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    os.write(1, b'beside another one\\n')
    os._exit(1)
os.write(1, b'alone\\n')
if sys.argv[2] == 'stay':
    while True:
        time.sleep(0.05)
"""


@pytest.fixture(params=["pipe", "terminal"])
def unread(request: pytest.FixtureRequest) -> Iterator[int]:
    """An output that takes no more bytes: a full pipe, or a terminal whose user has pressed Ctrl-S."""
    reader, writer = os.pipe() if request.param == "pipe" else pty.openpty()
    if request.param == "pipe":
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.set_blocking(writer, True)
    else:
        termios.tcflow(writer, termios.TCOOFF)
    yield writer
    os.close(reader)
    os.close(writer)


def test_a_lost_lock_ends_the_command_though_nobody_reads_what_is_said_of_it(
    start: Start, server: Server, client: Client, name: str, unread: int
) -> None:
    process = start(server.url, "run", name, "--ttl", "4.5", "--json", *python(DEAF_CHILD), stderr=unread)
    assert line(process) == "ready"
    child = child_of(process)
    assert client.force_release(name)
    until(lambda: has_ended(child), within=WITHIN, what="the command has ended")
    process.wait(WITHIN)
    assert process.returncode == 79


def test_two_commands_never_run_side_by_side_though_nobody_reads_what_is_said(
    start: Start, own_server: Server, name: str, unread: int, tmp_path: Path
) -> None:
    """The first command can't renew the lock, and its output is not read; then the server is back for the next."""
    words = "run", name, "--ttl", "3", *python(ALONE_CHILD, str(tmp_path / "held"))
    first = start(own_server.url, *words, "stay", stderr=unread)
    assert line(first) == "alone"
    child = child_of(first)
    with own_server.client() as redis_client:
        lease = redis_client.pttl(f"lock:{{{name}}}") / 1000
    own_server.stop()
    time.sleep(lease)
    own_server.cont()
    until(lambda: has_ended(child), within=WITHIN, what="the command has ended; `tests/sim` shows that it does in time")
    second = start(own_server.url, *words, "leave")
    assert second.communicate(timeout=WITHIN)[0] == "alone\n"
    first.wait(WITHIN)
    assert first.returncode == 79


def test_a_wait_that_is_in_vain_ends_though_nobody_reads_why(
    start: Start, server: Server, client: Client, name: str, unread: int
) -> None:
    with client.lock(name):
        process = start(server.url, "run", name, "--no-wait", "--json", "--", "true", stderr=unread)
        process.wait(WITHIN)
    assert process.returncode == 75


def test_without_patience_a_command_gives_up_at_once_while_no_master_answers(start: Start, name: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
        process = start(url, "run", name, "--patience", "0", "--", "echo", "ran")
        out, err = process.communicate(timeout=WITHIN)  # the default patience is as long
    assert (process.returncode, out) == (69, "")
    assert "refused" in err


def test_a_command_line_that_finds_no_server_ends_though_nobody_reads_why(
    start: Start, own_server: Server, name: str, unread: int
) -> None:
    own_server.kill()
    process = start(own_server.url, "run", name, "--no-wait", "--", "true", stderr=unread)
    process.wait(WITHIN)
    assert process.returncode == 69


def test_no_server_is_an_exit_code_of_its_own(start: Start, own_server: Server, name: str) -> None:
    own_server.kill()
    process = start(own_server.url, "run", name, "--no-wait", "--", "echo", "ran")
    out, err = process.communicate(timeout=WITHIN)
    assert process.returncode == 69
    assert out == ""
    assert "Connection refused" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("masters_count", [3])
def test_a_run_on_new_masters_waits_for_their_votes_and_says_why(
    start: Start, start_server: Callable[..., Masters], name: str
) -> None:
    masters = start_server()
    process = start(" ".join(masters.url), "run", name, "--ttl", "2", "--", "echo", "ran")
    out, err = process.communicate(timeout=WITHIN)
    assert (process.returncode, out) == (0, "ran\n")
    assert "no vote" in err


@pytest.mark.parametrize("masters_count", [3])
def test_one_run_with_a_long_ttl_makes_all_others_wait_for_votes(
    start: Start, start_server: Callable[..., Masters], name: str
) -> None:
    """The ttl is the guard unless another one is given, and the largest guard of all counts."""
    masters = start_server()
    for options in (["--ttl", "600", "--no-wait"], ["--ttl", "1", "--wait", "3"]):
        process = start(" ".join(masters.url), "run", name, *options, "--", "echo", "ran")
        out, err = process.communicate(timeout=WITHIN)
        assert (process.returncode, out) == (69, "")
        assert "vote" in err


@pytest.mark.parametrize(
    "options",
    [["--wait", "1", "--no-wait"], ["--wait", "nan"], ["--ttl", "0"], ["--ttl", "3", "--grace", "2"], ["--wait", "-1"]],
)
def test_options_that_cannot_be_right_are_usage_errors(
    start: Start, server: Server, name: str, options: list[str]
) -> None:
    process = start(server.url, "run", *options, name, "--", "true")
    process.communicate(timeout=WITHIN)
    assert process.returncode == 2
