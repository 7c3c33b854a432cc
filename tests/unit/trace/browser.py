"""A headless Chromium, driven through its debugging protocol over a pipe, without packages."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from running import ran

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 120.0
# The browser uses its file descriptors 3 and 4, which may be in use in this process.
_TO_3_AND_4 = """
import fcntl, os, sys
moved = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(moved[0], 3), os.dup2(moved[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


@functools.cache
def program() -> str | None:
    """Return the browser of this machine, or None.

    A stub that only says how to install a browser does not count.
    """
    for name in PROGRAMS:
        found = shutil.which(name)
        if found is None:
            continue
        done = ran([found, "--version"])
        if done.returncode == 0 and "snap" not in done.stdout + done.stderr:
            return found
    return None


class Browser:
    """One tab. Keeps every request and every error message."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._number = 0
        self._unread = b""
        self.page = folder / "page.html"
        """The file that is open, a copy of the one that `open` was called with."""
        there, self._out = os.pipe()
        self._in, here = os.pipe()
        command = [
            str(program()), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={folder}",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TO_3_AND_4, str(there), str(here), *command],
            pass_fds=(there, here),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(there)
        os.close(here)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = None
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol; return the answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, page: Path) -> None:
        """Open a copy of a file, and wait until its charts are drawn.

        All copies have the same address, because the browser keeps the compiled scripts of an
        address. Compiling those of the charts takes more than a second.
        """
        shutil.copyfile(page, self.page)
        self.call("Page.navigate", url=self.page.as_uri())
        until = time.monotonic() + PATIENCE_S
        while self.evaluate("document.documentElement?.dataset.ready") is None:
            assert time.monotonic() < until, ("the page is not ready", self.complaints)
            time.sleep(0.05)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> list[str]:
        """Return the visible text of every element that matches a CSS selector."""
        found: list[str] = self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)"
        )
        return found

    def press(self, key: str) -> None:
        """Press a key, and type it if it is a letter."""
        letter = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **letter)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        """Type into the focused element."""
        self.call("Input.insertText", text=text)

    def size(self, width: int, height: int) -> None:
        """Set the window's inner size in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def media(self, media: str = "screen", scheme: str = "light") -> None:
        """Emulate screen or print, light or dark."""
        self.call(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Save the visible part, or the whole page, as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left = until - time.monotonic()
            ready, _, _ = select.select([self._in], [], [], max(left, 0))
            assert ready, "the browser does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has ended"
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method", ""), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(f"{values['entry']['level']}: {values['entry']['text']}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"{values['type']}: {values['args']}")
