"""Results of runs: a file with an entry for each, which `chaos.page` makes the tables of the documentation from.

A run writes its entry anew after every episode, so that its results stay if it is killed.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import asdict, define, field
from support import compact

from chaos.verdict import NUMBERS, SLACK_SECONDS, SUMS, Finding, Tally

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
TESTED = ("src", "lua")
SENTENCES = ("violations", "late", "errors")
LARGEST = ("longest", "bound")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit(root: Path = ROOT) -> str:
    """Return the last commit that changed the tested code, with a mark if there are changes since."""
    name = _git(root, "rev-list", "-1", "HEAD", "--", *TESTED)
    return f"{name}-dirty" if _git(root, "status", "--porcelain", "--", *TESTED) else name or "unknown"


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False).stdout.strip()


@define
class Run:
    """One run of the command: episodes of one seed, by the number of masters.

    Attributes:
        controls: for each lock with a guard taken out, the checks that found it broken.
    """

    seed: str
    totals: Mapping[int, Finding]
    controls: Mapping[str, Sequence[str]] = field(factory=dict)
    begun: str = field(factory=_now)
    commit: str = field(factory=commit)

    @property
    def is_good(self) -> bool:
        """Return whether nothing was broken but the controls."""
        return all(total.is_good for total in self.totals.values()) and all(self.controls.values())

    def as_json(self) -> Json:
        """Return the run as the file keeps it; times in seconds."""
        return {
            "commit": self.commit,
            "begun": self.begun,
            "seed": self.seed,
            "good": self.is_good,
            "slack": SLACK_SECONDS,
            "servers": sorted({server for total in self.totals.values() for server in total.servers}),
            "masters": {str(masters): _total(total) for masters, total in self.totals.items()},
            "controls": {name: list(checks) for name, checks in self.controls.items()},
        }


def _total(total: Finding) -> Json:
    return {
        **{name: round(getattr(total, name)) for name in NUMBERS},
        **{name: [str(one) for one in getattr(total, name)] for name in SENTENCES},
        "struck": total.struck,
        "losses": dict(sorted(total.losses.items())),
        "faults": {name: _tally(tally) for name, tally in sorted(total.faults.items())},
    }


def _tally(tally: Tally) -> Json:
    return {name: round(number, 3) if name in LARGEST else number for name, number in asdict(tally).items()}


def load(path: Path) -> list[Json]:
    """Return the entries of a file; none, if there is no such file."""
    runs: list[Json] = json.loads(path.read_text())["runs"] if path.exists() else []
    return runs


def save(run: Run, path: Path) -> None:
    """Write the run's entry to the file, in the place of its earlier one; all or nothing."""
    others = [one for one in load(path) if (one["seed"], one["begun"]) != (run.seed, run.begun)]
    path.parent.mkdir(parents=True, exist_ok=True)
    compact.write(path, {"runs": [*others, run.as_json()]})


def added(runs: Iterable[Json]) -> dict[int, Json]:
    """Return all runs together, by the number of masters: numbers and lists add up, and the longest times stay."""
    totals: dict[int, Json] = {}
    for run in runs:
        for masters, total in run["masters"].items():
            before = totals.get(int(masters))
            totals[int(masters)] = total if before is None else _sum(before, total)
    return dict(sorted(totals.items()))


def _sum(one: Any, other: Any, name: str = "") -> Any:
    if isinstance(one, dict):
        both = {**other, **one}
        return {key: _sum(one[key], other[key], key) if key in one and key in other else both[key] for key in both}
    return max(one, other) if name in LARGEST else one + other


def table(totals: Mapping[int, Finding]) -> str:
    """Return the faults by kind, as a table; times in seconds."""
    lines = [" ".join([f"{'masters: fault':52}", *(f"{head:>8}" for head in (*SUMS, *LARGEST))])]
    for masters, total in totals.items():
        for name, tally in sorted(total.faults.items()):
            counts = [f"{getattr(tally, one):8}" for one in SUMS]
            longest = f"{tally.longest:8.2f}" if tally.alone or tally.longest else f"{'-':>8}"
            lines.append(" ".join([f"{f'{masters}: {name}':52}", *counts, longest, f"{tally.bound:8.2f}"]))
    return "\n".join(lines)
