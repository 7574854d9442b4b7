"""The command line. Its packages, click and rich, come with the extra ``cli``; the library does without them."""

import importlib.util
import io
import sys

from relock.cli._exit_codes import ExitCode


def main() -> None:
    """Run the command line and exit; the entry point ``relock``."""
    missing = [name for name in ("click", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"relock: the command line needs {' and '.join(missing)}: pip install 'redis-relock[cli]'", file=sys.stderr
        )
        sys.exit(ExitCode.CONFIGURATION)

    from relock.cli._main import cli

    _print_what_cannot_be_encoded()
    cli(prog_name="relock")


def _print_what_cannot_be_encoded() -> None:
    """Have both outputs show a character that their encoding lacks as an escape: users choose the names of locks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a closed stream is None
            stream.reconfigure(errors="backslashreplace")
