"""gevent and eventlet in the place of threads: an error tells of them at the first use, before any wait."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from relock import Client, ConfigurationError, RelockWarning
from relock._runtime.machine import THREADS
from relock._runtime.net import green

NOWHERE = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"]
PATCHED = {
    "gevent": ("gevent.monkey", SimpleNamespace(saved={"threading": {"local": threading.local}})),
    "eventlet": ("eventlet.patcher", SimpleNamespace(already_patched={"socket": True, "thread": True})),
}


@pytest.fixture(params=["gevent", "eventlet"])
def patcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    module, state = PATCHED[request.param]
    monkeypatch.setitem(sys.modules, module, state)
    return str(request.param)


@pytest.mark.parametrize("masters", [1, 3])
def test_greenlets_that_came_after_the_import_are_an_error_at_the_first_use(
    patcher: str, masters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    with pytest.warns(RelockWarning, match=patcher):
        client = Client(NOWHERE[:masters])
    monkeypatch.setattr(green, "_OURS", (object, object))
    with pytest.raises(ConfigurationError, match=f"{patcher} has replaced.*since relock was imported"):
        client.lock("a").acquire(timeout=20)
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"relock-log"}
    client.close()


def test_no_thread_is_started_that_would_be_a_greenlet(patcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(green, "_OURS", (object, object))
    with pytest.raises(RuntimeError, match=patcher):
        THREADS.start(lambda: pytest.fail("a thread was started"), "relock-test")


def test_greenlets_that_came_before_the_import_are_a_warning(patcher: str) -> None:
    with pytest.warns(RelockWarning, match=f"{patcher} has replaced.*does not support"):
        Client(NOWHERE[0])


@pytest.mark.parametrize("saved", [{}, {"signal": {}}])
def test_gevent_that_has_replaced_nothing_is_no_matter(
    saved: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gevent.monkey", SimpleNamespace(saved=saved))
    Client(NOWHERE[0])
    assert green.replaced_threads() is None


def test_where_there_is_no_poll_the_import_says_what_takes_it_away() -> None:
    code = "import select; del select.poll; import relock"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: relock needs select.poll: Windows has none, and eventlet takes it away" in done.stderr
