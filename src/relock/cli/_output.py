"""Output of the commands: plain text that can't take over a terminal, JSON, and errors of one line."""

import atexit
import contextlib
import json
import shutil
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING, Any

import click

from relock._errors import (
    AcquireTimeoutError,
    ConfigurationError,
    LockLostError,
    QuorumError,
    RelockError,
    RelockWarning,
)
from relock.cli._exit_codes import ExitCode
from relock.cli._scribe import Scribe

_CODES: tuple[tuple[type[RelockError], ExitCode], ...] = (
    (AcquireTimeoutError, ExitCode.NOT_AVAILABLE),
    (LockLostError, ExitCode.LOST),
    (QuorumError, ExitCode.UNREACHABLE),
    (ConfigurationError, ExitCode.CONFIGURATION),
)
_ON_THE_COMMAND_LINE = ("name", "ttl", "prefix", "owner")
_scribes: list[Scribe] = []  # the scribe writes to stderr once no other thread may wait for that


if TYPE_CHECKING:
    ParamType = click.ParamType[float]
else:
    ParamType = click.ParamType  # older versions of click have no generic `ParamType`


class CommandFailed(click.ClickException):
    """End of a command with one line on stderr and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance, and says so

    def show(self, file: Any = None) -> None:  # noqa: ARG002 - click's signature
        """Print the line."""
        say(self.message)


def failed(error: RelockError) -> CommandFailed:
    """Return an error of the library as the command line reports it."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.WRONG)
    if isinstance(error, ConfigurationError) and error.option in _ON_THE_COMMAND_LINE:
        code = ExitCode.USAGE
    return CommandFailed(str(error), code)


def never_wait_for_stderr() -> None:
    """Write to stderr without waiting for its reader from now on, except for a second at the end of the process.

    This starts a thread, so call it after a fork.
    """
    with contextlib.suppress(AttributeError, OSError):  # without stderr, or with one that is no file, no thread waits
        scribe = Scribe(sys.stderr.fileno())
        atexit.register(scribe.flush)
        _scribes[:] = [scribe]


def _print_to_stderr(line: str) -> None:
    if _scribes:
        _scribes[0].write(f"{line}\n".encode(sys.stderr.encoding, "backslashreplace"))
        return
    with contextlib.suppress(OSError):  # a stderr that is closed, or has lost its reader, is no failure
        click.echo(line, err=True)


def say(message: str) -> None:
    """Print one line for people on stderr. In ``run``, stdout belongs to the command."""
    _print_to_stderr(f"relock: {printable(message)}")


def printable(text: str) -> str:
    """Return `text` on one line and without control characters: other users choose the names of locks."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)


def screen_width() -> int | None:
    """Return the cells of a line of the terminal at stdout; None if stdout is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(text: str, width: int | None, indent: int) -> str:
    """Return `text` with its lines folded at so many cells, and what is folded indented; with None as it is."""
    if width is None:
        return text
    lines = (textwrap.wrap(line, max(width, 2 * indent), subsequent_indent=" " * indent) for line in text.split("\n"))
    return "\n".join("\n".join(folded) for folded in lines)


def span(seconds: float) -> str:
    """Return a time in words, in its two largest units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    for unit, least, smaller, size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= least:
            return f"{seconds // least:.0f} {unit} {seconds % least // size:.0f} {smaller}"
    return ""


def print_json(value: Any, *, err: bool = False) -> None:
    """Print one JSON document on one line."""
    if err:
        _print_to_stderr(json.dumps(value))
    else:
        click.echo(json.dumps(value))


def show_warnings() -> None:
    """Print each warning of the library as one line on stderr; the library itself gives each text only once."""
    show_others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, RelockWarning):
            say(f"warning: {message}")
        else:
            show_others(message, category, *where, **more)

    warnings.showwarning = show
    warnings.simplefilter("always", RelockWarning)


class Seconds(ParamType):
    """Type of an option: a finite number of seconds within bounds. Click's own type accepts NaN."""

    name = "seconds"

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail with an error that says what would be right."""
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        if not self._low <= seconds <= self._high:  # a comparison in this form refuses NaN, too
            self.fail(f"{value!r} is not from {self._low:g} to {self._high:g} seconds", param, ctx)
        return seconds
