"""Headless Chromium, driven over a pipe by the DevTools protocol (chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from tests.support import PATIENCE

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")


class Browser:
    """One page of a browser. `complaints` are its console's warnings and errors, and exceptions."""

    def __init__(self, width: int = 1280, height: int = 900, scripts: bool = True, dark: bool = False) -> None:
        assert PROGRAM, "there is no chromium"
        self.complaints: list[str] = []
        self._loaded = False
        self._received, self._count = b"", 0
        with contextlib.ExitStack() as stack:
            profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            theirs, self._out = os.pipe()
            self._in, answers = os.pipe()
            stack.callback(os.close, self._out)
            stack.callback(os.close, self._in)
            try:
                # the protocol's descriptors are 3 and 4, whatever ours are
                script = f'exec "$0" "$@" 3<&{theirs} 4>&{answers}'
                command = ["bash", "-c", script, PROGRAM, *_FLAGS, f"--user-data-dir={profile}"]
                self._process = subprocess.Popen(
                    command, pass_fds=(theirs, answers), stderr=subprocess.DEVNULL, start_new_session=True
                )
            finally:
                os.close(theirs)
                os.close(answers)
            stack.callback(self._end)
            target = self._send("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "DOM"):
                self.send(f"{domain}.enable")
            self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            self.send("Emulation.setEmulatedMedia", features=[scheme])
            size = {"width": width, "height": height, "deviceScaleFactor": 1}
            self.send("Emulation.setDeviceMetricsOverride", mobile=width < 600, **size)
            self._close = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()

    def open(self, url: str) -> str:
        """Loads a page and returns the document as it is then."""
        self._loaded = False
        self.send("Page.navigate", url=url)
        deadline = time.monotonic() + PATIENCE
        while not self._loaded:
            self._receive(deadline)
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        return str(self.send("DOM.getOuterHTML", nodeId=root)["outerHTML"])

    def size(self) -> tuple[float, float]:
        """Width and height of the document in CSS pixels."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return size["width"], size["height"]

    def photograph(self, picture: Path, height: float | None = None) -> None:
        """The whole page, or as much of its top, as a PNG."""
        width, whole = self.size()
        clip = {"x": 0, "y": 0, "width": width, "height": min(height or whole, whole), "scale": 1}
        data = self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        picture.write_bytes(base64.b64decode(data))

    def send(self, method: str, **parameters: Any) -> Any:
        """Sends a command to the page and returns the answer. Raises RuntimeError with the browser's message."""
        return self._send(method, self._session, **parameters)

    def _send(self, method: str, session: str = "", **parameters: Any) -> Any:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while (answer := self._receive(deadline)).get("id") != self._count:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self._received += part
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, parameters: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("warning", "error"):
            self.complaints.append(parameters["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"]["text"])
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("warning", "error", "assert"):
            self.complaints.append(str(parameters["args"]))

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
