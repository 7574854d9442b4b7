"""The server of ``relock top --serve``, with textual-serve: each page that is opened gets a process with the app."""

import asyncio
import shlex
from collections.abc import Sequence

from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server

from relock.cli._output import say
from relock.cli._signals import end_by_signals


class TopServer(Server):
    """Server of the app, for pages that it has served itself.

    Args:
        words: the words of the command that each page runs.
        host: the address to listen on, as browsers write it.
        port: the port, likewise.
    """

    def __init__(self, words: Sequence[str], host: str, port: int) -> None:
        super().__init__(f"exec {shlex.join(words)}", host=host, port=port, title="relock top")
        self._origins = {self.public_url, f"http://localhost:{port}"}
        self._pages = set[asyncio.Task[web.WebSocketResponse]]()

    async def play(self) -> int:
        """Serve until a signal comes; return the exit code.

        Raises:
            OSError: nothing can listen there.
        """
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        end_by_signals(lambda code: None if ended.done() else ended.set_result(code))
        app = await self._make_app()
        app.on_response_prepare.append(self._keep_to_ourselves)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host.strip("[]"), self.port).start()
            say(f"serving {self.public_url} until Ctrl-C")
            return await ended
        finally:
            await runner.cleanup()

    async def _keep_to_ourselves(self, _request: web.Request, response: web.StreamResponse) -> None:
        """Forbid style sheets of other sites: the page of textual-serve asks for one, and waits for the answer."""
        response.headers["Content-Security-Policy"] = f"style-src 'unsafe-inline' 'self' {' '.join(self._origins)}"

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: nobody listens yet."""

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run the app for a page. A browser lets pages of other sites connect, too: these are refused.

        Raises:
            web.HTTPForbidden: the page is from elsewhere.
        """
        if request.headers.get("Origin", self.public_url) not in self._origins:
            raise web.HTTPForbidden(text="only for pages of this server")
        page = asyncio.create_task(super().handle_websocket(request))
        self._pages.add(page)
        page.add_done_callback(self._pages.discard)
        return await page

    async def _process_messages(self, websocket: web.WebSocketResponse, app_service: AppService) -> None:
        try:
            await super()._process_messages(websocket, app_service)
        finally:
            await app_service.stop()
            if app_service._process is not None:  # the event loop must not end before it has noticed this process's end
                await app_service._process.wait()

    async def on_shutdown(self, app: web.Application) -> None:  # noqa: ARG002 - the name of textual-serve
        """End the processes of all pages. Their connections would otherwise keep the server for 20 seconds."""
        for page in self._pages:
            page.cancel()
        await asyncio.gather(*self._pages, return_exceptions=True)
