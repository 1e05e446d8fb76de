"""A page that is made again for whoever looks at it, on this machine alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from lockstep.harness.core.errors import UsageError

HOST = "127.0.0.1"
REFRESH_SECONDS = 10
"""How often a page that is open loads itself again, and is made anew at most."""


class Page:
    """A page that is kept for a while, so that many looks cost no more than one."""

    def __init__(self, make: Callable[[], str]) -> None:
        self.make, self.lock = make, Lock()
        self.content, self.made = b"", -float(REFRESH_SECONDS)

    def get(self) -> bytes:
        with self.lock:
            if time.monotonic() - self.made >= REFRESH_SECONDS / 2:
                self.content, self.made = self.make().encode(), time.monotonic()
            return self.content


class Server(ThreadingHTTPServer):
    """Answers GET / and nothing else."""

    daemon_threads = True

    def __init__(self, port: int, page: Page) -> None:
        super().__init__((HOST, port), Handler)
        self.page = page
        own = self.server_address[1]
        # Another page in the same browser may have its name resolved to this address.
        self.names = {f"{name}:{own}" for name in (HOST, "localhost")}


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 10
    server_version, sys_version = "lockstep", ""

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.names:
            return self.send_error(421)
        if self.path != "/":
            return self.send_error(404)
        try:
            content = self.server.page.get()
        except UsageError as error:  # the folder is gone, for example
            return self.send_error(503, explain=str(error))
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Refresh", str(REFRESH_SECONDS))
        self.end_headers()
        self.wfile.write(content)
        return None

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are nobody's business."""


def serve_page(port: int, make: Callable[[], str], tell: Callable[[str], object]) -> None:
    """Shows a page until Ctrl-C.

    Args:
        port: on this machine; 0 for any.
        make: makes the page.
        tell: is told the address.

    Raises:
        UsageError: the port is taken.
    """
    try:
        server = Server(port, Page(make))
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"--port {port}: {why}; choose another, or 0") from None
    with server:
        tell(f"http://{HOST}:{server.server_address[1]}/")
        server.serve_forever()
