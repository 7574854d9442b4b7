"""The help of every command, even without docstrings."""

import json
import subprocess
import sys
from typing import Any

PRINT = """
import json, click
from relock.cli._main import _COMMANDS, cli
context = click.Context(cli, **cli.context_settings)
commands = {name: cli.get_command(context, name) for name in _COMMANDS} | {"": cli}
print(json.dumps([__debug__, {name: (command.help, command.get_help(context)) for name, command in commands.items()}]))
"""


def test_the_help_needs_no_docstrings() -> None:
    is_whole, whole = printed()
    is_stripped, stripped = printed("-OO")
    assert (is_whole, is_stripped) == (True, False)
    assert stripped == whole
    for name, (help_text, _) in whole.items():
        assert help_text, name


def printed(*options: str) -> Any:
    """Return the help of each command from an interpreter of its own, because click keeps parts of earlier help."""
    done = subprocess.run([sys.executable, *options, "-c", PRINT], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
