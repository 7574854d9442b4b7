"""Lua compares text by the locale of the server, and most locales ignore a minus at first."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.replies import as_list
from support.servers import Server, find_servers

from relock._keys import lock_keys
from relock._scripts import load

LOCALE = "en_US.UTF-8"
SOURCES = Path("/usr/share/i18n/locales")
KEYS = lock_keys("lock", "a")
FAR_US = 4_000_000_000_000_000


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build that locale from the system's sources; return its folder."""
    if shutil.which("localedef") is None or not (SOURCES / "en_US").exists():
        pytest.skip("locales can't be made here")
    folder = tmp_path_factory.mktemp("locales")
    command = ["localedef", "--no-archive", "-i", "en_US", "-f", "UTF-8", str(folder / LOCALE)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def speaking(server_kind: str, locales: Path) -> Iterator[redis.Redis]:
    """Start a server that sorts text by the rules of that language."""
    server = Server(server_kind, find_servers()[server_kind])
    server.environment |= {"LC_ALL": LOCALE, "LOCPATH": os.fspath(locales)}
    try:
        with server.start().client() as client:
            if client.eval("return ('-1' <= '0') and 1 or 0", 0) == 1:
                pytest.skip("this server knows no locale")
            yield client
    finally:
        server.close()


def enqueue(client: redis.Redis, owner: str, ticket: int) -> list[object]:
    arguments: list[Any] = [owner, 1, 9_000, 1, ticket, 7_000, 30_000, FAR_US, "-", 0]
    source = load("enqueue").source.decode()
    found: list[object] = as_list(client.eval(source, 4, KEYS.lock, KEYS.queue, KEYS.waiters, KEYS.token, *arguments))
    return found


@pytest.mark.every_server
def test_tickets_are_told_apart_in_every_language(speaking: redis.Redis) -> None:
    seconds, micros = speaking.time()
    now_us, proposed = int(seconds) * 1_000_000 + int(micros), int(seconds) * 1_000_000 + 60_000_000
    speaking.hset(KEYS.lock, "they:1", "1")
    status, *_, ticket = enqueue(speaking, "you:1", -1)
    assert (status, ticket >= now_us) == (b"proposed", True)  # type: ignore[operator]
    assert enqueue(speaking, "you:1", -proposed)[-1] == proposed
    assert enqueue(speaking, "me:1", -proposed)[-1] == proposed + 1
    assert enqueue(speaking, "she:1", 0)[-1] == proposed + 2
    assert enqueue(speaking, "she:1", proposed - 5)[-1] == proposed - 5
    assert speaking.zrange(KEYS.queue, 0, -1) == [b"she:1", b"you:1", b"me:1"]
