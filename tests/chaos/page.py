"""The tables of ``docs/results/nemesis.md``, from ``docs/results/chaos.json``: ``python -m chaos.page`` in ``tests``.

They are in the page itself, between two marks, so that they can be read without a build; a test compares.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from chaos.results import ROOT, Json, added, load
from chaos.verdict import MIXED

RESULT = ROOT / "docs" / "results" / "chaos.json"
PAGE = ROOT / "docs" / "results" / "nemesis.md"
BEGIN = "<!-- What follows is made from results/chaos.json. -->"
END = "<!-- This was made from results/chaos.json. -->"
COMMIT_DIGITS = 10
SECONDS_PER_HOUR = 3600

TOTALS = {
    "acquisitions": "acquisitions",
    "contended": "of these, waited for another holder",
    "struck": "faults that struck",
    "rings": "deadlocks that surely stood",
    "deadlock_errors": "callers that got a `DeadlockError`",
    "downgrades": "downgrades from writer to reader",
    "passages": "waits that passed a latch",
    "late_refused": "writes after D, refused by the fenced store",
    "late_harmless": "writes after D, with nobody newer yet",
    "violations": "**violations**",
    "late": "waits beyond their bounds",
    "errors": "other errors",
}


def rendered(runs: Sequence[Json]) -> str:
    """Return the tables of all runs."""
    totals = added(runs)
    parts = [_totals(totals), *(_faults(masters, total) for masters, total in totals.items()), _controls(runs)]
    return "\n\n".join([*parts, _runs(runs)])


def _totals(totals: Mapping[int, Json]) -> str:
    rows = [["hours of episodes", *(f"{total['seconds'] / SECONDS_PER_HOUR:.2f}" for total in totals.values())]]
    known = [name for name in TOTALS if any(name in total for total in totals.values())]  # older runs have fewer
    rows += [[TOTALS[name], *(_count(total.get(name, 0)) for total in totals.values())] for name in known]
    return _table(["", *(_masters(masters) for masters in totals)], rows)


def _masters(masters: int) -> str:
    return "one master" if masters == 1 else f"{masters} masters"


def _count(number: int | list[str]) -> str:
    return f"{len(number) if isinstance(number, list) else number:,}"


def _faults(masters: int, total: Json) -> str:
    names = sorted(total["faults"], key=lambda name: (name == MIXED, name))
    rows = [[name, *_fault(total["faults"][name], is_counted_by_kind=name == MIXED)] for name in names]
    head = [f"fault, {_masters(masters)}", "struck", "holds", "waits", "renewals", "next grant after", "bound"]
    return _table(head, rows)


def _fault(tally: Json, *, is_counted_by_kind: bool) -> list[str]:
    met = [f"{tally['struck']:,}"]
    met += ["-" if is_counted_by_kind else f"{tally[name]:,}" for name in ("holds", "waits", "renewals")]
    is_measured = tally["alone"] or tally["longest"]
    return [*met, f"{tally['longest']:.2f} s" if is_measured else "-", f"{tally['bound']:.2f} s"]


def _controls(runs: Iterable[Json]) -> str:
    found: dict[str, list[int]] = {}
    for run in runs:
        for name, checks in run["controls"].items():
            found.setdefault(name, []).append(bool(checks))
    rows = [[name, f"{sum(times)} of {len(times)} times"] for name, times in sorted(found.items())]
    return _table(["safety check taken out", "reported as broken"], rows)


def _runs(runs: Iterable[Json]) -> str:
    rows = [
        [run["begun"][:10], f"`{_short(run['commit'])}`", run["seed"], ", ".join(run["servers"]),
         _count(sum(total["acquisitions"] for total in run["masters"].values())),
         _count(sum(len(total["violations"]) for total in run["masters"].values()))]
        for run in runs
    ]  # fmt: skip
    return _table(["run", "commit", "seed", "servers", "acquisitions", "violations"], rows)


def _short(commit: str) -> str:
    name, dash, mark = commit.partition("-")
    return f"{name[:COMMIT_DIGITS]}{dash}{mark}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page_with(page: str, tables: str) -> str:
    """Return the page's text, with these tables in it."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.partition(END)[2]}"


def write(result: Path = RESULT, page: Path = PAGE) -> None:
    """Put the tables into the page."""
    page.write_text(page_with(page.read_text(), rendered(load(result))))


if __name__ == "__main__":
    write()
