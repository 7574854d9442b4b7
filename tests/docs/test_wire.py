"""The wire has a version: what clients of different versions have in common can't change without a new one."""

import hashlib
import re
from pathlib import Path

from sim.bugs import BUGS

from relock._scripts import load, script_names

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("KEYS", "ARGV", "RETURNS", "PUBLISHES")


def digest() -> str:
    """Of what the scripts take, return and publish, without what is said of it."""
    lines = [
        " ".join((name, part, *_without_meaning(line)))
        for name in script_names()
        for part in PARTS
        for line in load(name).header[part]
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _without_meaning(line: str) -> list[str]:
    columns = re.split(r"\s{2,}", line.strip())
    return columns[:-1] or columns


def test_whoever_changes_what_scripts_take_or_say_looks_at_the_version() -> None:
    page = (ROOT / "docs" / "internals" / "wire.md").read_text()
    assert f"`{digest()}`" in page, f"new on the wire? Then it is a new version, and its digest is {digest()}"


def test_the_number_of_safety_checks_that_are_taken_away_is_told_right() -> None:
    for page in ("README.md", "docs/concepts/guarantees.md"):
        assert f"{len(BUGS)} safety checks" in " ".join((ROOT / page).read_text().split()), page
