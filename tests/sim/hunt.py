"""The hunt for a seed that finds a planted bug: ``python -m sim.hunt "no restart guard"``, in ``tests``."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from sim.bugs import BUGS, Bug

REPOSITORY = Path(__file__).parents[2]
FIRST, END = 1000, 9000


def plant(bug: Bug, folder: Path) -> None:
    """Make a copy of the shipped files with the bug in it."""
    for part in ("src", "lua"):
        shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / bug.file
    text = path.read_text()
    assert text.count(bug.text) == 1, f"{bug.file} has changed: this bug can't be planted any more"
    path.write_text(text.replace(bug.text, bug.instead))


def hunt(folder: Path, seeds: str, *options: str, is_shown: bool = False) -> "subprocess.CompletedProcess[str]":
    """Play seeds over what is in `folder`, until one finds something; `options` are more of the command's."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "sim", "--seeds", seeds, "--first", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(REPOSITORY / "tests")])},
        capture_output=not is_shown,
        text=True,
        check=False,
    )


@click.command()
@click.argument("what", type=click.Choice([bug.what for bug in BUGS]), metavar="WHAT")
@click.option("--seeds", default=f"{FIRST}-{END}", show_default=True, help="Which runs to play.")
def main(what: str, seeds: str) -> None:
    """Plant the bug WHAT of sim/bugs.py, and play seeds until one finds it.

    The exit code is 1 if one does, as that of the simulator.
    """
    bug = next(bug for bug in BUGS if bug.what == what)
    with tempfile.TemporaryDirectory() as folder:
        plant(bug, Path(folder))
        sys.exit(hunt(Path(folder), seeds, is_shown=True).returncode)


if __name__ == "__main__":
    main()
