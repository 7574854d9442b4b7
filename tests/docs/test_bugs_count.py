"""The pages that tell how many safety checks the simulator takes away."""

from pathlib import Path

from sim.bugs import BUGS

ROOT = Path(__file__).resolve().parents[2]


def test_the_number_of_safety_checks_that_are_taken_away_is_told_right() -> None:
    for page in ("README.md", "docs/concepts/guarantees.md"):
        assert f"{len(BUGS)} safety checks" in " ".join((ROOT / page).read_text().split()), page
