"""Figures are published only of a CPython as users have it."""

import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from bench import build, report


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
    assert build.how_optimised() == shown


def test_what_was_measured_on_another_build_is_not_published(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It may be written to a file of its own."""
    measured: list[Any] = []

    def measure(*words: Any) -> dict[str, Any]:
        measured.append(words)
        return {}

    monkeypatch.setattr(report, "results", measure)
    monkeypatch.setattr(report, "missing", list)
    monkeypatch.setattr(report, "how_optimised", lambda: None)
    monkeypatch.setattr(sys, "argv", ["report"])
    with pytest.raises(SystemExit):
        report.main()
    assert "--enable-optimizations" in capsys.readouterr().err
    assert measured == []
    monkeypatch.setattr(sys, "argv", ["report", "--output", str(tmp_path / "figures.json")])
    report.main()
    assert (tmp_path / "figures.json").read_text() == "{}\n"
