"""A real browser without a window, driven through two pipes."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
COMMAND = next((path for name in NAMES if (path := shutil.which(name))), None)

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)
SECONDS = 60.0


class Browser:
    """One page, and what happened in it: `events`, in the order in which they came."""

    def __init__(self, to: int, come: int) -> None:
        self.to, self.come = to, come
        self.number, self.rest = 0, b""
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """The answer to a command."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.read()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def read(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.come], [], [], deadline - time.monotonic())
            assert ready, "the browser says nothing"
            self.rest += os.read(self.come, 1 << 16)
        line, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(line))

    def open(self, path: Path, width: int = 1280, theme: str = "light") -> None:
        """Opens a page, and waits until it is loaded."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1}
        metrics = {**size, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **metrics)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.ask("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not self.find("Page.loadEventFired"):
            self.events.append(self.read())

    def find(self, *methods: str) -> list[dict[str, Any]]:
        """The events with these names."""
        return [event for event in self.events if event.get("method") in methods]

    def evaluate(self, expression: str) -> Any:
        how = {"returnByValue": True, "awaitPromise": True}
        result = self.ask("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def click(self, selector: str) -> None:
        """The left button of the mouse, on the middle of the first element."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        where = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, **where)


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, which is ended behind."""
    assert COMMAND
    theirs_in, to = os.pipe()
    come, theirs_out = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]
    command = f'exec "$0" "$@" 3<&{high[0]} 4>&{high[1]}'
    process = subprocess.Popen(
        ["bash", "-c", command, COMMAND, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=high,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for fd in (theirs_in, theirs_out, *high):
        os.close(fd)
    try:
        yield Browser(to, come)
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(come)
