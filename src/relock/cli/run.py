"""``relock run``: a command that runs while the lock is held, and not longer."""

import contextlib
import sys
import time

import click
from attrs import asdict, define

from relock import (
    Client,
    Event,
    Lock,
    LockLostError,
    LongWait,
    MasterBack,
    MasterDown,
    MasterWithoutVote,
    ReleaseUnconfirmed,
    RelockError,
)
from relock._options import TTL_SECONDS_MAX, TTL_SECONDS_MIN
from relock._owner import described
from relock.cli._command import Command
from relock.cli._exit_codes import EPILOG, ExitCode, of_signal
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import CommandFailed, Seconds, never_wait_for_stderr, print_json, printable, say, span
from relock.cli._signals import Interrupted, Signals, ignore_terminal_stop
from relock.cli._states import in_words
from relock.cli._supervise import Limits, supervise

GRACE_SECONDS_MAX = 5.0
LONG_WAIT_SECONDS = 1.0  # after which a terminal shows what the command waits for


@define
class Report:
    """Report that ``--json`` prints at the end, on stderr: stdout belongs to the command."""

    name: str
    outcome: str = "error"
    exit_code: int = 0
    token: int | None = None
    waited_seconds: float = 0.0
    held_seconds: float = 0.0


class RunCommand(click.Command):
    """Command that takes what follows NAME and the first word of COMMAND for words of COMMAND, options too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the ``--`` before COMMAND where the caller has not, and parse."""
        options = [param for param in self.params if isinstance(param, click.Option) and not param.is_flag]
        takes_value = {name for option in options for name in option.opts}
        position, names = 0, 0
        while position < len(args) and args[position] != "--":
            word = args[position]
            names += word == "-" or not word.startswith("-")
            if names == 2:
                return super().parse_args(ctx, [*args[:position], "--", *args[position:]])
            position += 2 if word in takes_value else 1
        return super().parse_args(ctx, args)


# `python -OO` would drop a docstring.
HELP = """Run COMMAND while holding the lock NAME: relock run NAME -- COMMAND...

Options of relock stand before COMMAND. All that follows its first word belongs to COMMAND, also without the --.

Two commands with the same NAME exclude each other, on whatever machines they run. The lock is renewed while the
command runs, and released when it ends; its exit code is passed on (128+n if signal n ended it). It finds its
fencing token, which is greater than every earlier holder's, in RELOCK_TOKEN. With --json a report is
printed on stderr.

If the lock can't be renewed, the command gets SIGTERM a --grace before its lease ends, and SIGKILL just before
the end. If the lock is gone already (released by force, deleted), it gets SIGKILL at once, since another
owner may have it. The exit code is 79 then. Only the command itself is signalled, not what it has started in turn.

Signals that relock gets (TERM, HUP, USR1, USR2, INT, QUIT) are passed on, but for INT and QUIT in the
foreground of a terminal: Ctrl-C reaches the command anyway. If relock itself is killed, Linux kills the command.

Ctrl-Z is ignored, here and by commands that don't decide otherwise: a relock that is stopped can't renew the
lock. If it is stopped all the same (SIGSTOP) until the lease is over, the command is killed when relock goes on.
"""


@click.command(cls=RunCommand, epilog=EPILOG, help=HELP)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--ttl", type=Seconds(TTL_SECONDS_MIN, TTL_SECONDS_MAX), default=30.0, show_default=True,
              help="The lease, renewed at a third of it.")  # fmt: skip
@click.option("--restart-guard", type=Seconds(0.0, TTL_SECONDS_MAX),
              help="For how long a master that restarted grants nothing: as the programs beside it have it. "
                   "Default: none with one master, the ttl with several.")  # fmt: skip
@click.option("--wait", "wait_seconds", type=Seconds(0.0, TTL_SECONDS_MAX),
              help="How long to wait for the lock; without it, as long as it takes.")  # fmt: skip
@click.option("--at-least", type=Seconds(0.0, TTL_SECONDS_MAX), default=0.0,
              help="How long the lock stays taken from the grant on, even if COMMAND ends earlier.")  # fmt: skip
@click.option("--note", metavar="TEXT",
              help="What the masters keep with the lock for people that look at it: at most 200 bytes.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Look once, and give up if another owner has the lock or waits for it.")
@click.option("--patience", type=Seconds(0.0, TTL_SECONDS_MAX), default=30.0, show_default=True,
              help="How long to go on while too few masters answer.")  # fmt: skip
@click.option("--grace", type=Seconds(0.0, TTL_SECONDS_MAX), metavar="SECONDS",
              help="How long before the end of the lease the command gets SIGTERM if the lock can't be renewed; "
                   "at most half of the ttl. Default: a third of the ttl, at most 5.")  # fmt: skip
@node_options
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    *,
    name: str,
    command: tuple[str, ...],
    ttl: float,
    restart_guard: float | None,
    wait_seconds: float | None,
    at_least: float,
    note: str | None,
    no_wait: bool,
    patience: float,
    grace: float | None,
    where: Where,
    as_json: bool,
) -> None:
    """Run the command, and end with its exit code."""
    if no_wait and wait_seconds is not None:
        raise click.UsageError("--wait and --no-wait exclude each other")
    limits = Limits.of(ttl, min(ttl / 3, GRACE_SECONDS_MAX) if grace is None else grace)
    if limits.grace > ttl / 2:
        raise click.UsageError(f"--grace {limits.grace:g} is more than half of the ttl of {ttl:g} s")
    report = Report(name)
    long_wait = LONG_WAIT_SECONDS if sys.stderr.isatty() else None
    client = where.client(ttl=ttl, restart_guard=restart_guard, patience=patience, long_wait=long_wait, on_event=_tell)
    runner = Runner(client, report, limits, at_least, note)
    try:
        report.exit_code = runner.run(command, 0.0 if no_wait else wait_seconds)
    except CommandFailed as error:
        report.exit_code = error.exit_code
        say(error.message)
    finally:
        if as_json and report.outcome != "error":
            print_json(asdict(report), err=True)
    ctx.exit(report.exit_code)


@define
class Runner:
    """One run: the client, the child and the signals that belong together."""

    client: Client
    report: Report
    limits: Limits
    at_least: float
    note: str | None = None

    def run(self, words: tuple[str, ...], wait_seconds: float | None) -> int:
        """Run the command; return the exit code. Whatever happens, the child ends and the lock is no longer held."""
        ignore_terminal_stop()
        command = Command.prepare(words)  # the fork must come before the first thread
        signals = Signals()
        try:
            never_wait_for_stderr()
            signals.install()
            with self.client:
                lock = self.client.lock(
                    self.report.name, at_least=self.at_least, note=self.note, on_lost=lambda _loss: signals.wake()
                )
                self._take(lock, wait_seconds, signals)
                return self._hold(lock, command, signals)
        except Interrupted as interrupt:
            self.report.outcome = "interrupted"
            return of_signal(interrupt.signum)
        finally:
            command.cancel()

    def _take(self, lock: Lock, wait_seconds: float | None, signals: Signals) -> None:
        """Take the lock, or raise `CommandFailed` or `Interrupted`, with nothing left in the queue."""
        started_at = time.monotonic()
        try:
            taken = lock.acquire(timeout=-1 if wait_seconds is None else wait_seconds)
            signals.collect()
        except Interrupted:
            if lock.owned():  # the signal came after the grant; after an earlier one, the client undoes the acquire
                _leave_no_rest(lock)
                lock.release()
            raise
        self.report.waited_seconds = time.monotonic() - started_at
        if not taken:
            self.report.outcome = "not available"
            raise CommandFailed(self._refusal(), ExitCode.NOT_AVAILABLE)

    def _refusal(self) -> str:
        """Return why the lock was not granted; without the holder if too few masters answer, or it is free again."""
        name = self.report.name
        with contextlib.suppress(RelockError):
            info = self.client.info(name)
            if info.resting:
                return f"the lock {name!r} rests for {span(info.ttl)} more (at_least)"
            if info.held:
                held_for = "" if info.held_for is None else f", for {span(info.held_for)}"
                return f"another owner has the lock {name!r}: {in_words(info)}{held_for}"
        return f"another owner has the lock {name!r}"

    def _hold(self, lock: Lock, command: Command, signals: Signals) -> int:
        """Run the command to its end, and release the lock; return the exit code."""
        started_at = time.monotonic()
        token = lock.token
        lost = token is None
        if token is not None:
            self.report.token = token
            with contextlib.suppress(LockLostError):
                # A lock that was just handed over has a short lease until `ensure` asks for the full one.
                lock.ensure(self.limits.grace)
            command.go(token)
            lost = supervise(command, lock, signals, self.limits)
            if command.has_failed_to_start():
                _leave_no_rest(lock)
        try:
            lock.release()
        except LockLostError as error:
            lost = True
            say(f"{error}")
        self.report.held_seconds = time.monotonic() - started_at
        self.report.outcome = "lost" if lost else "done"
        return ExitCode.LOST if lost or command.exit_code is None else command.exit_code


def _leave_no_rest(lock: Lock) -> None:
    """Have the release leave no rest: the command has not run, so it may be run again at once."""
    hold = lock._hold()
    if hold is not None:
        hold.at_least = 0.0


def _tell(event: Event) -> None:
    """Print what the user should know while the command runs, a line each; on a thread of the library."""
    if isinstance(event, LongWait):
        holder = described(event.holder) if event.holder else "another library, nobody yet, or a rest"
        name = printable(event.lock or "")
        say(f"waits for the lock {name!r}: {holder} has it, {event.ahead} wait before this command")
    elif isinstance(event, MasterDown):
        say(f"{event.master} does not answer: {event.why}")
    elif isinstance(event, MasterBack):
        say(f"{event.master} answers again")
    elif isinstance(event, MasterWithoutVote):
        say(f"{event.master} has no vote for {event.seconds_left:.1f} s: {event.why}")
    elif isinstance(event, ReleaseUnconfirmed):
        say(f"the release of {printable(event.lock or '')!r} was not confirmed: it ends in {event.seconds_left:.1f} s")
