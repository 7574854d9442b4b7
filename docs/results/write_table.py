"""Writes what the simulator's runs have come to, as ``simulator.json`` says, into the page of its results."""

import sys
from collections import Counter
from pathlib import Path

RESULTS = Path(__file__).resolve().with_name("simulator.json")
DOCS = RESULTS.parents[1]
PAGE = RESULTS.with_name("simulator.md")
BEGIN, END = "<!-- results: written by docs/results/write_table.py -->\n", "<!-- end of results -->\n"
sys.path[:0] = [str(DOCS.parent / folder) for folder in ("src", "tests")]

from sim import record  # noqa: E402


def table(runs: list[record.Run]) -> str:
    """The table, and which faults struck."""
    lines = [
        "| seeds | commit | grants | faults | violations | grants a second |",
        "|---|---|---|---|---|---|",
        *(_row(run) for run in runs),
        _total(runs),
    ]
    faults: Counter[str] = Counter()
    for run in runs:
        faults.update(run.faults)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(faults.items()))
    seeds = ", ".join(str(seed) for run in runs for seed in run.violations)
    found = [f"The seeds with violations, each of its commit: {seeds}.", ""] if seeds else []
    return "\n".join([*lines, "", *found, f"The faults that struck: {kinds}.", ""])


def _row(run: record.Run) -> str:
    sha, dirty, _ = run.commit.partition(record.DIRTY)
    counts = f"{run.grants:,} | {sum(run.faults.values()):,} | {len(run.violations):,} | {run.grants_per_second:,}"
    return f"| {run.first:,} to {run.last:,} | `{sha[:12]}{dirty}` | {counts} |"


def _total(runs: list[record.Run]) -> str:
    """The last row: runs of several commits play different code, so a seed may count for each."""
    played, grants = sum(run.last - run.first + 1 for run in runs), sum(run.grants for run in runs)
    faults, violations = sum(sum(run.faults.values()) for run in runs), sum(len(run.violations) for run in runs)
    return f"| {played:,} runs | | {grants:,} | {faults:,} | {violations:,} | |"


def page_with(text: str, content: str) -> str:
    """The page with this between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def main() -> None:
    """Writes the page anew."""
    PAGE.write_text(page_with(PAGE.read_text(), table(record.read(RESULTS))))


if __name__ == "__main__":
    main()
