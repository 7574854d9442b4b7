"""`relock top --serve` in a real browser, which is steered by Chromium's own protocol."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.servers import Server, die_with_parent, free_port

from relock import Client

WITHIN = 60.0
FRAME = b"looked at"  # in the line above the table
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)

pytestmark = [pytest.mark.long, pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium on the PATH")]


class Page:
    """Page of a browser.

    Attributes:
        received: what has come to the page by WebSocket.
        refused: the addresses that the page did not get, with the reasons.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._calls = 0
        self._asked: dict[str, str] = {}
        self.received = b""
        self.refused: dict[str, str] = {}

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the browser; return its result, and note the events before it."""
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": params})
        while (told := await self._socket.receive_json()).get("id") != self._calls:
            self._note(told.get("method"), told.get("params"))
        return told.get("result", {})  # else an error: the page is being changed, say

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Network.webSocketFrameReceived":
            is_binary, data = told["response"]["opcode"] == 2, told["response"]["payloadData"]
            self.received += b64decode(data) if is_binary else data.encode()
        elif event == "Network.requestWillBeSent":
            self._asked[told["requestId"]] = told["request"]["url"]
        elif event == "Network.loadingFailed":
            self.refused[self._asked[told["requestId"]]] = told.get("blockedReason", told["errorText"])

    async def until(self, expression: str) -> None:
        """Wait until a condition in JavaScript holds."""
        while not (await self.call("Runtime.evaluate", expression=expression)).get("result", {}).get("value"):
            await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        """Press a key of one letter, and let it go."""
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)


@asynccontextmanager
async def page() -> AsyncIterator[Page]:
    """Open an empty page in a browser of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--window-size=1000,500"]
        browser = subprocess.Popen(
            [CHROMIUM, *words, f"--user-data-dir={folder}", "about:blank"],
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
        told = Path(folder, "DevToolsActivePort")
        while not told.exists() or not told.read_text():
            assert browser.poll() is None, "the browser runs"
            await asyncio.sleep(0.05)
        port = told.read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as listed:
                pages = json.loads(await listed.text())
            address = next(one["webSocketDebuggerUrl"] for one in pages if one["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                one = Page(socket)
                await one.call("Network.enable")
                yield one
        browser.terminate()
        browser.wait(WITHIN)


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[str]:
    """Serve the app; yield the address, and end it by SIGTERM."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    process = subprocess.Popen(
        [sys.executable, "-m", "relock", "top", "--serve", str(port), "--node", server.url],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )
    assert process.stderr is not None
    assert await asyncio.to_thread(process.stderr.readline) == f"relock: serving {address} until Ctrl-C\n"
    yield address
    process.terminate()
    assert await asyncio.to_thread(process.wait, WITHIN) == 128 + signal.SIGTERM
    process.stderr.close()


async def test_the_table_is_drawn_and_keys_reach_the_app(server: Server, client: Client) -> None:
    async with asyncio.timeout(WITHIN), served(server) as address, page() as shown:
        with client.lock("orders:42"):
            await shown.call("Page.navigate", url=address)
            await shown.until("document.body?.classList.contains('-first-byte')")
            while FRAME not in shown.received or b"orders:42" not in shown.received:
                await shown.until("true")  # reads what has come
            await shown.until("document.querySelectorAll('.textual-terminal canvas').length > 0")
        await shown.call("Runtime.evaluate", expression="document.querySelector('textarea').focus()")
        await shown.press("q")
        await shown.until("document.body.classList.contains('-closed')")
        elsewhere = {url: why for url, why in shown.refused.items() if not url.startswith(address)}
        assert {*elsewhere.values()} == {"csp"}, "the page asks for a font, and its policy keeps the browser from that"
