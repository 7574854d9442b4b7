"""The group of commands. A command is imported when it is used, so that it does not pay for the others' imports."""

import importlib
import logging
import signal
from typing import Any

import click

import relock
from relock._errors import RelockError
from relock.cli._exit_codes import EPILOG, of_signal
from relock.cli._output import failed, show_warnings

_COMMANDS = ("run", "status", "ls", "watch", "top", "history", "release", "doctor", "guard", "order", "bench", "demo")


class Commands(click.Group):
    """A group that imports its commands late, and reports the library's errors as one line and an exit code.

    Ctrl-C that no command handles gets an exit code of its own: click's is 1, which is an answer of some commands.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands that there are."""
        return [name for name in _COMMANDS if self.get_command(ctx, name) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's names
        """Return the command in the module of its name; None where this installation does not have it."""
        if cmd_name not in _COMMANDS:
            return None
        module = f"relock.cli.{cmd_name}"
        try:
            command = getattr(importlib.import_module(module), cmd_name)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            return None
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn an error of the library, and Ctrl-C, into an exit code."""
        try:
            return super().invoke(ctx)
        except RelockError as error:
            raise failed(error) from None
        except KeyboardInterrupt:
            click.echo(err=True)  # the terminal has printed ^C and no line end
            ctx.exit(of_signal(signal.SIGINT))


# `python -OO` would drop a docstring.
HELP = """Distributed locks on Redis and Valkey, from the shell.

The masters are named by --node or RELOCK_NODES (URLs, separated by blanks or commas). RELOCK_USERNAME and
RELOCK_PASSWORD apply to every URL that has no password of its own.
"""


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}, help=HELP)
@click.version_option(relock.__version__, prog_name="relock")
def cli() -> None:
    """Set up what all commands share."""
    logging.getLogger("relock").addHandler(logging.NullHandler())  # the commands print what matters
    show_warnings()
