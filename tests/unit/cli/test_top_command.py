"""The command `relock top` without a table: its documents for scripts, and what it refuses. Nothing connects."""

import asyncio
import socket
import sys
from itertools import islice
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from support.screens import MadeUpMasters

from relock import QuorumError
from relock.cli._main import cli
from relock.cli._top.sampler import SURVEY_SECONDS, Sampler
from relock.cli._top.serve import TopServer
from relock.cli.top import _documents


def top(*words: str) -> Result:
    env = {"RELOCK_NODES": "redis://127.0.0.1:1", "RELOCK_USERNAME": None, "RELOCK_PASSWORD": None}
    return CliRunner().invoke(cli, ["top", *words], prog_name="relock", env=env)


@pytest.mark.parametrize(
    ("words", "module", "package"),
    [((), "app", "textual"), (("--serve", "1"), "serve", "textual_serve"), (("--serve", "1"), "serve", "aiohttp")],
)
def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], module: str, package: str
) -> None:
    monkeypatch.delitem(sys.modules, f"relock.cli._top.{module}", raising=False)
    for name in (package, *(name for name in sys.modules if name.startswith(f"{package}."))):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails as that of a missing one
    done = top(*words)
    said = f"relock: top needs {package.replace('_', '-')}: pip install 'redis-relock[top]'\n"
    assert (done.exit_code, done.stdout, done.stderr) == (78, "", said)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "top needs a terminal; --json does not"),
        (("--serve", "x"), "--serve takes a port, as 8787, or 127.0.0.1:8787, not 'x'"),
        (("--serve", "65536"), "not '65536'"),
        (("--serve", "8787", "--json"), "--json and --serve exclude each other"),
        (("--interval", "0.01"), "not from 0.1 to 3600 seconds"),
    ],
)
def test_what_it_refuses(words: tuple[str, ...], says: str) -> None:
    done = top(*words)
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = top("--serve", str(port))
    assert done.exit_code == 2
    assert f"--serve {port}: " in done.stderr
    assert "in use" in done.stderr


async def test_the_end_of_the_server_ends_its_pages() -> None:
    server = TopServer(["true"], "127.0.0.1", 1)
    page: asyncio.Task[Any] = asyncio.create_task(asyncio.Event().wait())
    server._pages.add(page)
    await server.on_shutdown(web.Application())
    assert page.cancelled()


def test_with_an_interval_there_is_a_document_for_each_round_also_in_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    masters = MadeUpMasters()
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        masters.now += SURVEY_SECONDS
        masters.problem = QuorumError("no answer") if len(slept) == 1 else None

    monkeypatch.setattr("time.sleep", sleep)
    documents = list(islice(_documents(Sampler(masters, lambda: masters.now), 7.0, "ttl"), 3))
    assert [document["error"] for document in documents] == [None, "no answer", None]
    assert [len(document["locks"]) for document in documents] == [5, 5, 5]
    assert (documents[2]["locks"][0]["name"], slept) == ("catalogue", [7.0, 7.0])
    masters.problem = QuorumError("no answer")
    with pytest.raises(QuorumError):
        next(_documents(Sampler(masters, lambda: masters.now), None, "ttl"))
    masters.problem = None
    assert len(list(_documents(Sampler(masters, lambda: masters.now), None, "ttl"))) == 1
