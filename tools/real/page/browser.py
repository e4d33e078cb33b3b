"""A headless Chromium, driven over a pipe by its debugging protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any, Callable, Optional

NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_SECONDS = 60.0
PHONE = (390, 844)
DESK = (1280, 900)
# A style that asks for it would have text cut off: the check finds elements whose content is wider or higher than they are.
CUT_OFF = """[...document.querySelectorAll("body *")].filter((e) => {
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  if (e.closest("svg, thead, [hidden], noscript") || box.width === 0) return false;
  const hides = style.overflowX !== "visible" && e.scrollWidth > e.clientWidth + 1;
  const spills = e.tagName === "TD" && e.scrollWidth > e.clientWidth + 1;
  return hides || spills || box.right > innerWidth + 1 || box.left < -1;
}).map((e) => e.tagName + "#" + e.id + "." + e.className + ": " + e.textContent.slice(0, 60))"""

# Short words that do not fit on one line.
BROKEN = """[...document.querySelectorAll("td.state .text, td.n .text, .value, .count")].filter((e) =>
  !/ /.test(e.textContent) && new Set([...e.getClientRects()].map((box) => box.top)).size > 1).map((e) => e.textContent)"""


def find() -> Optional[str]:
    """Its program; None: it is not installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser. A context manager: its end stops the browser. Threads: one."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="dws-page-", dir="/tmp")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self._folder}", "--no-first-run",
                   "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
                   "--hide-scrollbars", "--force-device-scale-factor=1", "about:blank"]  # fmt: skip
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # which it refuses to root
        self._process = subprocess.Popen(
            # It reads commands from descriptor 3 and answers on 4.
            ["/bin/sh", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "sh", *command],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._id = 0
        self._session: Optional[str] = None  # of the page, once it is attached
        self._rest = b""
        self.complaints: list[str] = []  # errors of scripts, violations of the policy, failed requests
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *unused: Any) -> None:
        os.close(self._write)  # which ends it
        try:
            self._process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        shutil.rmtree(self._folder, ignore_errors=True)

    def look(self, dark: bool = False, size: tuple[int, int] = DESK) -> None:
        """How the page is shown from now on."""
        width, height = size
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Evaluates an expression of JavaScript. Returns its value as JSON has it."""
        reply = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise AssertionError(f"{expression}: {reply['exceptionDetails']['exception'].get('description')}")
        return reply["result"].get("value")

    def wait(self, expression: str, why: str = "") -> None:
        """Until the expression is true."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self.value(expression):
            assert time.monotonic() < deadline, f"{why or expression}: not after {ANSWER_SECONDS:g} s: {self.value('document.body && document.body.innerText')}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "Escape": 27}
        for kind in ("rawKeyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "rawKeyDown" else {}
            self._call("Input.dispatchKeyEvent", type="keyDown" if text else kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def screenshot(self, path: str, whole: bool = True) -> None:
        image = self._call("Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": self._clip()} if whole else {}))
        with open(path, "wb") as file:
            file.write(base64.b64decode(image["data"]))

    def _clip(self) -> dict[str, Any]:
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def _call(self, method: str, **parameters: Any) -> Any:
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return self._until(lambda reply: reply.get("id") == self._id, method)

    def _until(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> Any:
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            while b"\0" in self._rest:
                line, self._rest = self._rest.split(b"\0", 1)
                message = json.loads(line)
                self._note(message)
                if wanted(message):
                    assert "error" not in message, f"{what}: {message['error']}"
                    return message["result"]
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"the browser did not answer {what} in {ANSWER_SECONDS:g} s")
            got = os.read(self._read, 1 << 20)
            assert got, f"the browser has ended; it was asked {what}"
            self._rest += got

    def _note(self, message: dict[str, Any]) -> None:
        """Keeps what the browser complains about."""
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif message.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(one.get("value", one.get("description"))) for one in parameters["args"]))
