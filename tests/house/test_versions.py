"""Versions: all files say the same of them."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
TOX = (ROOT / "tox.ini").read_text()


@pytest.fixture
def project() -> dict[str, Any]:
    declared: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return declared


def test_the_oldest_that_are_tested_are_the_oldest_that_are_declared(project: dict[str, Any]) -> None:
    declared = {name: Version(lowest) for name, lowest in (one.split(">=") for one in project["dependencies"])}
    tested = {name: Version(exact) for name, exact in re.findall(r"oldest: (\S+)==(\S+)", TOX)}
    assert tested == declared


def test_the_pythons_that_are_declared_are_the_matrix(project: dict[str, Any]) -> None:
    declared = [one.rpartition(" 3.")[2] for one in project["classifiers"] if " 3." in one]
    assert f"matrix = py3{{{','.join(declared)}}}-" in TOX
    assert project["requires-python"] == f">=3.{declared[0]}"
