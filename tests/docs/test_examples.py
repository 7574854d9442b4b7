"""The documentation's examples are run as they stand, against a real server.

A page is one story: its blocks run in order and share their names. Only the server's address is replaced.
"""

import asyncio
import contextlib
import doctest
import inspect
import itertools
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import redis
from support.servers import Server
from sybil import Document
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser

import relock
from relock import AsyncClient, Client
from relock.testing import Lab, local_server, watch_order

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "```python" in page.read_text() and not {"_build", "_generated"} & set(page.parts)
)
ADDRESS = "localhost:6379"


@pytest.mark.parametrize("page", PAGES)
def test_examples_of(page: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ``python`` block of the page runs, and every ``>>>`` prints the result that the page shows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("relock"), "propagate", False)
    text = (ROOT / page).read_text().replace(ADDRESS, f"127.0.0.1:{server.port}")
    parsers = (PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS), SkipParser())
    document = Document(text, str(ROOT / page))
    for parser in parsers:
        for region in parser(document):
            document.add(region)
    examples = list(document.examples())
    assert examples
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for example in examples:
                example.evaluate()
            _run_tests(document.namespace)
    finally:
        _close_everything(document.namespace)


def _run_tests(namespace: dict[str, Any]) -> None:
    """Run the tests that a page defines, because defining one checks nothing."""
    fixtures: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "relock_lab": Lab,
        "relock_server": local_server,
        "relock_order": watch_order,
    }
    for name in [name for name in namespace if name.startswith("test_")]:
        with contextlib.ExitStack() as stack:
            wanted = inspect.signature(namespace[name]).parameters
            namespace[name](**{fixture: stack.enter_context(fixtures[fixture]()) for fixture in wanted})


def _close_everything(namespace: dict[str, object]) -> None:
    for value in list(namespace.values()):
        if isinstance(value, Client | redis.Redis):
            value.close()
        elif isinstance(value, AsyncClient):
            asyncio.run(value.close())


def _run(script: str, server: Server, *arguments: str) -> "subprocess.Popen[str]":
    environment = os.environ | {
        "REDIS_URL": server.url,
        "PYTHONPATH": str(Path(relock.__file__).parents[1]),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, str(ROOT / "docs" / "examples" / script), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_workers_of_the_tutorial_exclude_each_other(server: Server) -> None:
    workers = [_run("worker.py", server, name, "3", "0.05") for name in ("one", "two")]
    lines = []
    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.kill)
        for worker in workers:
            output, _ = worker.communicate(timeout=60)
            assert worker.returncode == 0, output
            lines += [line.split() for line in output.splitlines()]
    turns = sorted((int(token), float(begin), float(end)) for _, token, begin, end in lines)
    assert len(turns) == 6
    assert all(before[2] <= after[1] for before, after in itertools.pairwise(turns))


def test_the_children_of_the_forking_example_use_the_lock(server: Server) -> None:
    parent = _run("prefork.py", server)
    output, _ = parent.communicate(timeout=60)
    assert parent.returncode == 0, output
    assert output.splitlines() == ["the parent holds the lock", "child: not mine", "child: now it is mine", "done"]


@pytest.mark.parametrize("script", ["stoppable.py", "stoppable_task.py"])
def test_a_worker_that_is_told_to_stop_releases(server: Server, script: str) -> None:
    worker = _run(script, server)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "working\n"
        worker.terminate()
        output, _ = worker.communicate(timeout=30)
        assert output == "released\n"
        assert not server.cli("EXISTS", "lock:{nightly report}")
    finally:
        worker.kill()
