"""The hunt for a planted bug: ``python -m sim.hunt "no restart guard"`` prints the first seed that finds it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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


def hunt(folder: Path, seeds: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Play seeds over what is in `folder`, until one finds something; `options` are more of the command's."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "sim", "--seeds", seeds, "--first", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(REPOSITORY / "tests")])},
        capture_output=True,
        text=True,
        check=False,
    )


def main(what: str, seeds: str = f"{FIRST}-{END}") -> None:
    """Look for a seed that finds one planted bug, and print what that run found."""
    bug = next(bug for bug in BUGS if bug.what == what)
    with tempfile.TemporaryDirectory() as folder:
        plant(bug, Path(folder))
        print(hunt(Path(folder), seeds).stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
