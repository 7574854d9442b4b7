"""``relock demo``: the product at work, with no set-up, and a verdict that was counted."""

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
from attrs import asdict
from rich.console import Console

from relock import Client
from relock.cli._demo.crew import Crew, Overtime
from relock.cli._demo.history import Finding, History, lost_updates, verdict
from relock.cli._demo.ledger import Ledger
from relock.cli._demo.server import started
from relock.cli._demo.show import Stage
from relock.cli._demo.worker import TTL_SECONDS
from relock.cli._exit_codes import ExitCode
from relock.cli._nodes import json_option

SECONDS_MAX = 18.0  # with what ending everything takes, below 20
PROCESSES, THREADS, UPDATES = 3, 3, 40
ATTEMPTS_WITHOUT = 3
NAME = "relock-demo"


@click.command()
@click.option("--node", metavar="URL", help="A master of your own; the demo uses one name there, and releases it.")
@click.option("--plain", is_flag=True, help="Plain lines, also in a terminal.")
@json_option
def demo(*, node: str | None, plain: bool, as_json: bool) -> None:
    """Show relock at work: who loses updates without a lock, and who does not with it.

    Several processes with several threads each update one file that has no locking of its own: first without the
    lock, then with it. One holder and one waiter are killed meanwhile. It starts a server by itself, takes less than
    20 seconds, and ends with a verdict; the exit code is 1 if that is bad.
    """
    console = Console(stderr=as_json)
    with Stage(console, plain=plain or as_json) as stage, _server(node, stage) as url:
        findings = _perform(stage, url, time.monotonic() + SECONDS_MAX)
    if as_json:
        click.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}))
    else:
        stage.verdict(findings)
    good = bool(findings) and all(finding.good for finding in findings)
    raise SystemExit(ExitCode.OK if good else ExitCode.WRONG)


@contextlib.contextmanager
def _server(node: str | None, stage: Stage) -> Iterator[str]:
    if node is not None:
        yield node
        return
    with started() as url:
        stage.say(f"A server runs at {url}, for as long as this takes.")
        yield url


def _perform(stage: Stage, url: str, deadline: float) -> list[Finding]:
    """Both phases; the findings on them."""
    with tempfile.TemporaryDirectory(prefix="relock-ledger-") as folder:
        try:
            without = _without_lock(stage, Path(folder), deadline)
            under = _with_lock(stage, Path(folder) / "with", url, deadline)
        except Overtime:
            return [Finding("time", f"more than {SECONDS_MAX:.0f} s", False)]
    return verdict(without, under, expected=PROCESSES * THREADS * UPDATES)


def _without_lock(stage: Stage, folder: Path, deadline: float) -> History:
    """The workers without a lock, again if chance would have it that nothing was lost."""
    stage.say(f"Without a lock: {PROCESSES} processes with {THREADS} threads each update a ledger, {UPDATES} times.")
    history = History()
    for attempt in range(ATTEMPTS_WITHOUT):
        ledger = Ledger(folder / f"without-{attempt}")
        with Crew(ledger.path, "none", NAME, deadline) as crew:
            for _ in range(PROCESSES):
                crew.start("work", threads=THREADS, updates=UPDATES)
            crew.until(crew.is_finished)
        history = crew.history
        history.entries = ledger.entries()
        if lost_updates(history):
            break
    stage.say(f"  {lost_updates(history)} of {len(history.updates)} updates are lost.")
    return history


def _with_lock(stage: Stage, path: Path, url: str, deadline: float) -> History:
    """The same workers under the lock, with a waiter and a holder killed among them."""
    with Client(url, ttl=TTL_SECONDS, client_name="demo-director") as client, Crew(path, url, NAME, deadline) as crew:
        stage.watch(client, NAME, lambda: len(crew.history.updates))
        stage.say("With the lock, the same code: the demo takes it, a process queues, the workers queue behind that.")
        _kill_a_waiter(stage, client, crew)
        _kill_a_holder(stage, crew)
        crew.until(crew.is_finished)
        crew.history.entries = Ledger(path).entries()
        stage.say(f"  {lost_updates(crew.history)} of {len(crew.history.updates)} updates are lost.")
        return crew.history


def _kill_a_waiter(stage: Stage, client: Client, crew: Crew) -> None:
    """Kills the head of the queue, then releases: the one behind it must not wait for the dead."""
    lock = client.lock(NAME)
    if not lock.acquire(timeout=5):
        raise Overtime
    victim = crew.start("wait")
    crew.until(lambda: len(client.info(NAME).queue) == 1)
    for _ in range(PROCESSES):
        crew.start("work", threads=THREADS, updates=UPDATES)
    crew.until(lambda: len(client.info(NAME).queue) == 1 + PROCESSES * THREADS)
    crew.start("hold")
    crew.until(lambda: len(client.info(NAME).queue) == 2 + PROCESSES * THREADS)
    crew.kill(victim)
    stage.say("The first in the queue is killed (SIGKILL), and the lock is released.")
    released_at = time.monotonic()
    lock.release()
    crew.until(lambda: crew.first_entered_after(released_at))
    crew.history.handover_after = (crew.first_entered_after(released_at) or 0.0) - released_at
    stage.say(f"  The next one had it {1000 * crew.history.handover_after:.1f} ms later.")


def _kill_a_holder(stage: Stage, crew: Crew) -> None:
    """Kills whoever took the lock to keep it: the queue must go on when the lease ends."""
    crew.until(lambda: crew.holding)
    killed_at = crew.kill(crew.holder)
    stage.say(f"A holder is killed in its critical section; its lease of {TTL_SECONDS} s has to end.")
    crew.until(lambda: crew.first_entered_after(killed_at))
    crew.history.heir_after = (crew.first_entered_after(killed_at) or 0.0) - killed_at
    stage.say(f"  The next one had the lock {crew.history.heir_after:.2f} s after that, and the workers go on.")
