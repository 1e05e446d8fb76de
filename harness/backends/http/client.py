"""Sends requests to an HTTP server, within limits of time and size.

The standard library's client takes no proxy from the environment, and follows no
redirect. Each request has a connection of its own, which is closed to abort the request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import ip_address
from socket import SHUT_RDWR, SOCK_STREAM, gaierror, getaddrinfo, socket
from threading import Lock, Timer
from typing import Any
from urllib.parse import urlsplit

from lockstep.harness.backends.http.completions import encode
from lockstep.harness.core.errors import Broken, UsageError, clean, format_error

MOST_BYTES = 1 << 22
"""The maximum size of an answer. An answer of 256 tokens has 100 kB at most servers."""

BUSY = (429, 503)
"""The status of an answer that asks to send the request again later."""

SHORTEST_PAUSE = 0.05
"""The time (in seconds) until a busy server gets the request again; then, twice as
long."""


@dataclass(frozen=True)
class Address:
    """The address of a server. Only this address is used, so that a name cannot change
    its meaning after it was checked.

    Attributes:
        url: the address for messages.
        ip: the numeric address.
    """

    url: str
    ip: str
    port: int


def parse_url(url: str) -> tuple[str, int]:
    """Returns the host and the port of "http://HOST:PORT". Raises UsageError for another
    URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise UsageError(f"--backend {url}: {error}") from None
    whole = f"http://{parts.netloc}"
    if not host or "@" in whole or url.rstrip("/") != whole or not url.isprintable():
        raise UsageError(f"--backend {url}: write it as http://HOST:PORT")
    return host, port


def find_address(url: str, allowed: str | None = None) -> Address:
    """Finds the address of a server.

    Args:
        url: "http://HOST:PORT".
        allowed: the host that may be another machine.

    Raises:
        UsageError: the URL is invalid, or the host is another machine.
    """
    host, port = parse_url(url)
    try:
        answers = getaddrinfo(host, port, type=SOCK_STREAM)
    except (gaierror, UnicodeError) as error:
        raise UsageError(f"--backend {url}: {host} has no address: {error}") from None
    addresses = dict.fromkeys(str(address[0]) for *_, address in answers)
    others = [ip for ip in addresses if not ip_address(ip).is_loopback]
    if others and host != (allowed or "").lower():
        raise UsageError(
            f"--backend {url}: {host} is another machine ({', '.join(others[:3])}); to"
            f" send it requests, add --allow-host {host}"
        )
    return Address(url.rstrip("/"), next(iter(addresses)), port)


class HttpServer:
    """The transport to an HTTP server.

    Args:
        address: the server.
        seconds: the time limit of a whole answer, with the pauses of a busy server.
        rate: the maximum number of requests a second; None for no limit.
    """

    def __init__(
        self, address: Address, seconds: float, rate: float | None = None
    ) -> None:
        self.address, self.seconds = address, seconds
        self.interval = 1 / rate if rate else 0.0
        self.lock, self.next = Lock(), 0.0

    def wait_for_turn(self) -> None:
        with self.lock:
            now = time.monotonic()
            turn = max(now, self.next)
            self.next = turn + self.interval
        time.sleep(turn - now)

    def get(self, path: str) -> bytes:
        return HttpCall(self, "GET", path).read()

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        return HttpCall(self, "POST", path, encode(body)).read()

    def start(self, path: str, body: Mapping[str, Any]) -> HttpCall:
        return HttpCall(self, "POST", path, encode(body))


class HttpCall:
    """A request; `cut` ends it at any time."""

    def __init__(
        self, server: HttpServer, method: str, path: str, body: bytes | None = None
    ) -> None:
        self.server, self.request = server, (method, path, body)
        self.name = f"{method} {server.address.url}{path}"
        self.socket: socket | None = None
        self.is_cut = self.is_late = False

    def cut(self) -> None:
        self.is_cut = True
        if self.socket is not None:
            with suppress(OSError):  # it is not connected any more
                self.socket.shutdown(SHUT_RDWR)

    def expire(self) -> None:
        self.is_late = True
        self.cut()

    def read(self) -> bytes:
        """Returns the whole answer."""
        timer = Timer(self.server.seconds, self.expire)
        timer.daemon = True
        timer.start()
        try:
            with self.answering() as response:
                body = response.read(MOST_BYTES + 1)
                if self.is_late:  # the end of a body without a length
                    raise TimeoutError
                if len(body) > MOST_BYTES:
                    raise self.break_off(f"has more than {MOST_BYTES >> 20} MiB")
                return body
        finally:
            timer.cancel()

    def run(self, emit: Callable[[bytes], None]) -> None:
        """Calls `emit` with the data of each server-sent event."""
        with self.answering() as response:
            size = 0
            while line := response.readline(MOST_BYTES + 1):
                size += len(line)
                if size > MOST_BYTES:
                    raise self.break_off(f"has more than {MOST_BYTES >> 20} MiB")
                name, _, data = line.strip().partition(b":")
                if name == b"data" and data.strip() != b"[DONE]":
                    emit(data.strip())

    @contextmanager
    def answering(self) -> Iterator[HTTPResponse]:
        """Sends the request, and closes the connection at the end.

        Raises:
            ValueError: the server refuses the request.
            Broken: the server gives no valid answer.
        """
        pause, end = SHORTEST_PAUSE, time.monotonic() + self.server.seconds
        try:
            while True:
                with self.send() as response:
                    is_last = time.monotonic() + pause > end or self.is_cut
                    if response.status not in BUSY or is_last:
                        self.check_status(response)
                        yield response
                        return
                time.sleep(pause)
                pause *= 2
        except (OSError, HTTPException) as error:
            if self.is_late or isinstance(error, TimeoutError):
                limit = f"{self.server.seconds:g} s"
                message = f"{self.name}: there was no whole answer within {limit}"
                raise Broken("hang", message) from None
            message = f"{self.name}: the connection broke: {format_error(error)}"
            raise Broken("crash", message) from error

    def send(self) -> HTTPResponse:
        """Sends the request with a new connection, which ends with the answer."""
        self.server.wait_for_turn()
        address = self.server.address
        with closing(
            HTTPConnection(address.ip, address.port, timeout=self.server.seconds)
        ) as connection:
            connection.connect()
            self.socket = connection.sock
            if self.is_cut:
                raise TimeoutError
            method, path, body = self.request
            host = address.url.removeprefix("http://")
            headers = {"Host": host, "Connection": "close"}
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request(method, path, body, headers)
            return connection.getresponse()

    def check_status(self, response: HTTPResponse) -> None:
        status = response.status
        if 200 <= status < 300:
            return
        text = clean(response.read(2000).decode(errors="replace"), 120)
        if 400 <= status < 500 and status not in BUSY:
            raise ValueError(f"{self.name}: status {status}: {text}")
        if 300 <= status < 400:
            raise self.break_off("is a redirect, which is not followed")
        raise self.break_off(f"has status {status}: {text}")

    def break_off(self, problem: str) -> Broken:
        return Broken("malformed", f"{self.name}: the answer {problem}")
