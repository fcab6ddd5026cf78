"""Serves the screen of a run to a browser: read-only, on this machine, to who has the address.

Loopback is not private: every user of the machine can connect to it. So everything lies below a
random path that is printed once and never stored, which, unlike a cookie, no other port of the same
host is ever sent. Each browser gets a process of its own (`served`), which is asked for nothing but
keys and sizes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp_jinja2
import jinja2
from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server

import gputop_train

#: Each is a process with a screen of its own.
MOST_VIEWS = 8
#: Larger than any browser's window is in cells, small enough to lay out.
MOST_COLUMNS, MOST_ROWS = 500, 200
#: Seconds a view has for ending by itself.
_GRACE_S = 3.0
_MAIN = (
    "import sys; sys.path[:1] = []; sys.path.append({root!r}); "
    "from gputop_train.tui.served import main; main()"
)
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ServeProblem(Exception):
    """It cannot be served; a sentence of why and one of what to do."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where it listens.

    Attributes:
        host: As a person types it in a browser.
        loopback: Whether no other machine can connect.
    """

    sock: socket.socket
    host: str
    port: int
    loopback: bool

    def url(self, key: str) -> str:
        """What is typed into a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/{key}/"


def listen(host: str, port: int | None) -> Address:
    """Take a port.

    Args:
        host: A name or an address of this machine.
        port: ``None`` = 8765, or any free one where that is taken; 0 = any free one.

    Raises:
        ServeProblem: There is no such host here, or the port is taken or forbidden.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as failure:
        raise ServeProblem(
            f"{host!r} is no address of this machine ({failure}). Leave --host out to serve this "
            "machine alone."
        ) from None
    family, address = found[0][0], str(found[0][4][0])
    for wanted in (8765, 0) if port is None else (port,):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, wanted))
            sock.listen(16)
        except OSError as failure:
            sock.close()
            if port is None and wanted:
                continue
            raise ServeProblem(
                f"Port {wanted} of {host} cannot be had: {failure.strerror or failure}. Name "
                "another with --port, or leave it out."
            ) from None
        local = ipaddress.ip_address(address.partition("%")[0]).is_loopback
        return Address(sock, host, sock.getsockname()[1], local)
    raise AssertionError("one of the ports was taken or refused")


def command(run_dir: Path, options: Sequence[str]) -> str:
    """The command that shows the run to one browser, as a shell reads it."""
    root = str(Path(gputop_train.__file__).parent.parent)
    words = [sys.executable, "-c", _MAIN.format(root=root), str(run_dir), *options]
    return f"exec {shlex.join(words)}"  # so that no shell stands between us and what we end


def serve(address: Address, command: str, title: str, key: str) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        address: From `listen`.
        command: What shows the run, from `command`.
        title: What the browser calls it.
        key: The random part of the address.
    """
    # A browser that sends nonsense must not fill the terminal with our stack.
    logging.getLogger("textual-serve").disabled = True
    server = _Server(address, command, title, key)
    web.run_app(
        server.application(),
        sock=address.sock,
        print=lambda *_: None,
        access_log=None,
        shutdown_timeout=_GRACE_S,
    )


def new_key() -> str:
    """A path nobody guesses."""
    return secrets.token_urlsafe(24)


class _View(AppService):
    """One browser's process."""

    async def set_terminal_size(self, width: int, height: int) -> None:
        """Pass a size on, if it is one."""
        if isinstance(width, int) and isinstance(height, int):
            await super().set_terminal_size(*_bounded(width, height))

    async def stop(self) -> None:
        """Have it end; a view that does not is ended."""
        process = self._process
        try:
            await asyncio.wait_for(super().stop(), _GRACE_S)
            if process is not None:
                await asyncio.wait_for(process.wait(), _GRACE_S)
        except asyncio.TimeoutError:
            if process is not None:
                process.kill()
                await process.wait()


def _bounded(width: int, height: int) -> tuple[int, int]:
    return max(1, min(MOST_COLUMNS, width)), max(1, min(MOST_ROWS, height))


class _Server(Server):
    """Textual's server below a secret path, without what it loads from elsewhere."""

    def __init__(self, address: Address, command: str, title: str, key: str) -> None:
        super().__init__(command, host=address.host, port=address.port, title=title)
        self._address = address
        self._key = key
        self._views: set[web.WebSocketResponse] = set()

    def application(self) -> web.Application:
        """What answers requests."""
        app = web.Application(middlewares=[self._admit])
        aiohttp_jinja2.setup(app, loader=jinja2.FileSystemLoader(Path(__file__).parent))
        app.add_routes(
            [
                web.get(f"/{self._key}/", self.handle_index),
                web.get(f"/{self._key}/ws", self.handle_websocket),
                web.static(f"/{self._key}/static", self.statics_path),
            ]
        )
        app.on_response_prepare.append(self._harden)
        app.on_shutdown.append(self._close)
        return app

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who has the key, under a name that is ours, from a page that is ours."""
        key = request.path.split("/", 2)[1]
        if not hmac.compare_digest(key.encode(), self._key.encode()):
            raise web.HTTPNotFound(text="Not found.\n")
        # Another name that leads here is a page of somebody else's that had it changed to this
        # address (DNS rebinding).
        if self._address.loopback and _host_of(f"//{request.host}") not in _LOOPBACK_NAMES:
            raise web.HTTPForbidden(text="Open it as localhost or 127.0.0.1.\n")
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{request.host}":
            raise web.HTTPForbidden(text="This is for its own page only.\n")
        return await handler(request)

    async def _harden(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(
            {
                "Server": "gputop-train",
                "Cache-Control": "no-store",
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
                "X-Frame-Options": "DENY",
                "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
                "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
                f"connect-src 'self' ws://{request.host}; base-uri 'none'; form-action 'none'; "
                "frame-ancestors 'none'",
            }
        )

    async def _close(self, _app: web.Application) -> None:
        for view in list(self._views):
            await view.close()

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page around the terminal."""
        # By the name it was asked for: ports are forwarded.
        below = f"//{request.host}/{self._key}"
        context = {
            "socket": f"ws:{below}/ws",
            "static": f"http:{below}/static",
            "title": self.title,
        }
        return aiohttp_jinja2.render_template("served.html", request, context)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """One browser, until it or its view goes."""
        if len(self._views) >= MOST_VIEWS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_VIEWS} views are open already.\n")
        browser = web.WebSocketResponse(heartbeat=15, max_msg_size=64 * 1024)
        self._views.add(browser)
        view: _View | None = None
        try:
            await browser.prepare(request)
            view = _View(
                self.command,
                write_bytes=browser.send_bytes,
                write_str=browser.send_str,
                close=_closing(browser),
                download_manager=self.download_manager,
            )
            await view.start(*_bounded(_cells(request, "width", 80), _cells(request, "height", 24)))
            # Whatever else is sent than the page sends ends the view.
            with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):
                await self._process_messages(browser, view)
        finally:
            self._views.discard(browser)
            if view is not None:
                await view.stop()
            await browser.close()
        return browser


def _closing(browser: web.WebSocketResponse) -> Callable[[], Awaitable[None]]:
    async def close() -> None:
        await browser.close()

    return close


def _cells(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else default


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


__all__: list[Any] = ["Address", "ServeProblem", "command", "listen", "new_key", "serve"]
