"""The command line. It needs click and rich, which the extra ``cli`` installs; the library does without them."""

import importlib.util
import sys

from relock.cli._exit_codes import ExitCode


def main() -> None:
    """Runs the command line and exits; the entry point ``relock``."""
    missing = [name for name in ("click", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"relock: the command line needs {' and '.join(missing)}: pip install 'redis-relock[cli]'", file=sys.stderr
        )
        sys.exit(ExitCode.CONFIGURATION)

    from relock.cli._main import cli

    cli(prog_name="relock")
