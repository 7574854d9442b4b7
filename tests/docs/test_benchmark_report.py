"""Publication of halves of a report, of one run or at least of one code, and only of a CPython as users have it."""

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from bench import machine, page, report
from bench.names import EVENT, LOOP_HOP, RELOCK_TASKS, TASKS


def built(monkeypatch: pytest.MonkeyPatch, options: str, prefix: str) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": options}.get)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/etc/debian_version")


@pytest.mark.parametrize(
    ("options", "prefix", "shown"),
    [
        ("'--enable-optimizations' '--with-lto'", "/opt/python", "built with --enable-optimizations"),
        ("'--prefix=/usr'", "/usr", "of a Debian package"),
        ("'--enable-shared'", "/root/.pyenv/versions/3.11.7", None),
    ],
)
def test_a_build_shows_that_it_was_optimised(
    monkeypatch: pytest.MonkeyPatch, options: str, prefix: str, shown: str | None
) -> None:
    built(monkeypatch, options, prefix)
    assert machine.how_optimised() == shown


def test_what_was_measured_on_another_build_is_not_published(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A report of such a build may still be written to a file of its own, or shown in part."""
    measured: list[str] = []
    shown: list[dict[str, Any]] = []

    def measure(half: str, *_: Any) -> dict[str, Any]:
        measured.append(half)
        return {"seconds": 5}

    monkeypatch.setattr(report, "measure", measure)
    monkeypatch.setattr(report, "how_optimised", lambda: None)
    monkeypatch.setattr(report, "show", shown.append)
    with pytest.raises(SystemExit):
        report.main(["--publish"])
    assert "--enable-optimizations" in capsys.readouterr().err
    assert measured == []
    report.main(["--output", str(tmp_path / "figures.json")])
    assert json.loads((tmp_path / "figures.json").read_text()) == {"seconds": 5, "aio": {"seconds": 5}}
    report.main(["tasks", "--only", "pairs"])
    assert measured == ["threads", "tasks", "tasks"]
    assert shown[-1] == {"aio": {"seconds": 5}}


def test_threads_that_wait_for_a_permit_have_a_row_beside_those_that_wait_for_a_lock() -> None:
    cost = {"cpu_part": 0.001, "threads": 3, "subscriptions": 1, "connections": 2, "calls_per_second": 1.2}
    kinds = {EVENT: 40e6, "one lock": 46e6, "one permit": 47e6, "one read lock": 48e6}
    rounds = {kind: [{**cost, "memory_bytes": memory, "served_seconds": 0.25}] for kind, memory in kinds.items()}
    text = page.rendered({"waiting": {"threads": 1_000, "rounds": rounds}})
    assert "## 1,000 threads that wait" in text
    assert "| one lock | 6.0 | 0.10% | 3 | 1 | 2 | 1.2 |\n| one permit | 7.0 | 0.10% | 3 | 1 | 2 | 1.2 |" in text
    assert "all had the read lock within 0.25 s." in text


def test_a_floor_that_handed_nothing_over_is_no_measure() -> None:
    """A short run on a busy machine still has tables, with that goal missed."""
    cell = {"masters": 1, "placement": "split", "kind": TASKS, "workers": 2, "section_ms": 0.0}
    found = {"seconds": 60, "machine": dict.fromkeys(("cpus", "processor", "system", "load_before"), 1), "versions": {}}
    rates = {LOOP_HOP: {"handoffs_per_second": 0.0}, RELOCK_TASKS: {"handoffs_per_second": 9.0, "median_us": 5.0}}
    rows = [{**cell, "contestant": name, "rounds": [{**one, "stolen": 0.0}]} for name, one in rates.items()]
    text = page.rendered({"aio": {**found, "commit": "0123", "handoffs": rows}})
    assert "| nan (2 tasks), **missed** | 9/s / 0/s |" in text
    assert "| **relock, tasks** | 5, 9 |" in text


def test_parts_are_published_of_one_half(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        report.main(["--publish", "--only", "pairs"])
    assert "parts are published of one half" in capsys.readouterr().err


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A report that was published before."""
    result = tmp_path / "bench.json"
    result.write_text(json.dumps({**of_run(), "pairs": 1, "waiting": 1, "aio": {**of_run(), "pairs": 2}}))
    monkeypatch.setattr(page, "RESULT", result)
    monkeypatch.setattr(page, "write", lambda: None)


def of_run(**changes: Any) -> dict[str, Any]:
    return {"machine": {"cpus": 2, "load_before": 1.5}, "commit": "0123", "versions": {"Python": "3.11"}, **changes}


@pytest.mark.usefixtures("published")
def test_tasks_are_published_beside_what_is_there() -> None:
    report.publish({"aio": 3})
    assert page.load() == {**of_run(), "pairs": 1, "waiting": 1, "aio": 3}


@pytest.mark.usefixtures("published")
def test_a_part_is_published_beside_others_of_the_same_code() -> None:
    report.publish({**of_run(machine={"cpus": 2, "load_before": 0.1}), "pairs": 5}, are_parts=True)
    report.publish({"aio": {**of_run(), "pairs": 6}}, are_parts=True)
    assert page.load() == {**of_run(), "pairs": 5, "waiting": 1, "aio": {**of_run(), "pairs": 6}}


@pytest.mark.parametrize(
    "changes", [{"commit": "4567"}, {"versions": {"Python": "3.13"}}, {"machine": {"cpus": 4, "load_before": 1.5}}]
)
@pytest.mark.usefixtures("published")
def test_a_part_of_another_code_or_machine_is_not_published(changes: dict[str, Any]) -> None:
    before = page.load()
    with pytest.raises(SystemExit, match="not published"):
        report.publish({**of_run(**changes), "pairs": 5}, are_parts=True)
    assert page.load() == before
