"""What a run leaves behind: a file that runs are added up in, and a table for people."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, define

from chaos.verdict import SLACK_SECONDS, SUMS, Finding, Tally

Json = dict[str, Any]


@define
class Run:
    """One run of the command: episodes of one seed, by the number of masters."""

    seed: str
    episodes: int
    totals: Mapping[int, Finding]
    controls: Mapping[str, Sequence[str]]  # which checks found each lock broken that has a guard taken out

    @property
    def is_good(self) -> bool:
        """Whether nothing was broken but what was to be."""
        return all(total.is_good for total in self.totals.values()) and all(self.controls.values())

    def as_json(self) -> Json:
        """The run as the file keeps it."""
        header = {"commit": commit(), "seed": self.seed, "episodes": self.episodes, "good": self.is_good}
        return {
            "good": self.is_good,
            "runs": [header],
            "slack": SLACK_SECONDS,
            "masters": {str(masters): _numbers(total) for masters, total in self.totals.items()},
            "controls": {name: list(checks) for name, checks in self.controls.items()},
            "faults": {
                name: _rounded(tally) for total in self.totals.values() for name, tally in sorted(total.faults.items())
            },
        }


def _rounded(tally: Tally) -> Json:
    return {name: number if name in SUMS else round(number, 3) for name, number in asdict(tally).items()}


def _numbers(total: Finding) -> Json:
    return {
        "seconds": round(total.seconds),
        "acquisitions": total.acquisitions,
        "operations": total.operations,
        "faults_that_struck": total.struck,
        "late_writes_refused": total.late_refused,
        "late_writes_with_nobody_newer": total.late_harmless,
        "violations": [str(violation) for violation in total.violations],
        "waits_too_long": list(total.late),
        "errors": list(total.errors),
        "losses": dict(total.losses),
    }


def commit() -> str:
    """What is tested; with a mark where it is not exactly that."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def save(run: Run, path: Path) -> None:
    """Writes the run to the file; if there is one, they are added up."""
    result = run.as_json()
    if path.exists():
        result = added(json.loads(path.read_text()), result)
    path.write_text(json.dumps(result, indent=2) + "\n")


def added(one: Json, other: Json) -> Json:
    """Two results as one: numbers and lists add up, the longest times stay, and all is good where both are."""
    return {
        "good": one["good"] and other["good"],
        "runs": one["runs"] + other["runs"],
        "slack": max(one["slack"], other["slack"]),
        "masters": _added_by_name(one["masters"], other["masters"], _sum),
        "controls": {**one["controls"], **other["controls"]},
        "faults": dict(sorted(_added_by_name(one["faults"], other["faults"], _tally).items())),
    }


def _added_by_name(one: Json, other: Json, add: Any) -> Json:
    both = {**one, **other}
    return {name: add(one[name], other[name]) if name in one and name in other else both[name] for name in both}


def _sum(one: Json, other: Json) -> Json:
    losses = {reason: one["losses"].get(reason, 0) + other["losses"].get(reason, 0)
              for reason in {**one["losses"], **other["losses"]}}  # fmt: skip
    return {**{name: one[name] + other[name] for name in one if name != "losses"}, "losses": losses}


def _tally(one: Json, other: Json) -> Json:
    return {name: one[name] + other[name] if name in SUMS else max(one[name], other[name]) for name in one}


def table(totals: Mapping[int, Finding]) -> str:
    """The faults by kind, for people; times in seconds."""
    lines = [" ".join([f"{'masters: fault':52}", *(f"{head:>8}" for head in (*SUMS, "longest", "bound"))])]
    for total in totals.values():
        for name, tally in sorted(total.faults.items()):
            counts = [f"{getattr(tally, one):8}" for one in SUMS]
            longest = f"{tally.longest:8.2f}" if tally.alone or tally.longest else f"{'-':>8}"
            lines.append(" ".join([f"{name:52}", *counts, longest, f"{tally.bound:8.2f}"]))
    return "\n".join(lines)
