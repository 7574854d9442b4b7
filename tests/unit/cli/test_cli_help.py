"""The help of every command, also without docstrings."""

import json
import subprocess
import sys

import click

from relock.cli._main import _COMMANDS, cli

PRINT = """
import json, click
from relock.cli._main import _COMMANDS, cli
assert not __debug__
context = click.Context(cli, **cli.context_settings)
commands = {name: cli.get_command(context, name) for name in _COMMANDS} | {"": cli}
print(json.dumps({name: command.get_help(context) for name, command in commands.items()}))
"""


def test_the_help_needs_no_docstrings() -> None:
    done = subprocess.run([sys.executable, "-OO", "-c", PRINT], capture_output=True, text=True, check=True)
    context = click.Context(cli, **cli.context_settings)
    commands = {name: cli.get_command(context, name) or cli for name in _COMMANDS} | {"": cli}
    whole = {name: command.get_help(context) for name, command in commands.items()}
    assert json.loads(done.stdout) == whole
    for name, command in commands.items():
        assert command.help, name
