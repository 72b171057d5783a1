"""Debian's chromium without a window, driven by chromium-driver over HTTP (the WebDriver protocol)."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
OFFLINE = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--disable-dev-shm-usage", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
]


class Browser:
    """One tab: open a page, look at it, point at things in it."""

    def __init__(self, address: str, session: str) -> None:
        self.address, self.session = address, session

    def ask(self, method: str, what: str, content: Any = None) -> Any:
        return request(method, f"{self.address}/session/{self.session}/{what}", content)

    def open(self, file: Path | str) -> None:
        """A file, or an address."""
        self.ask("POST", "url", {"url": file if isinstance(file, str) else file.resolve().as_uri()})

    def new_tab(self) -> str:
        """Open another tab, and return its handle; `turn_to` shows it."""
        return self.ask("POST", "window/new", {"type": "tab"})["handle"]

    def turn_to(self, handle: str) -> None:
        self.ask("POST", "window", {"handle": handle})

    def wait(self, script: str, *arguments: Any, seconds: float = 30) -> Any:
        """What a function body returns in the page, as soon as that is not nothing."""
        until = time.monotonic() + seconds
        while True:
            found = self.run(script, *arguments)
            if found or time.monotonic() > until:
                assert found, f"nothing came of: {script}"
                return found
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Press the mouse on the middle of the first element that a selector finds."""
        x, y = self.point_at(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.devtools("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Put a text where the cursor is."""
        self.devtools("Input.insertText", text=text)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body returns in the page."""
        return self.ask("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.ask("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width: int, height: int = 900, scale: float = 1) -> None:
        self.devtools(
            *("Emulation.setDeviceMetricsOverride",), width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def scheme(self, name: str) -> None:
        """`light` or `dark`."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def point_at(self, selector: str) -> tuple[float, float]:
        """Move the mouse to the middle of the first element that a selector finds."""
        x, y = self.run(
            "const found = document.querySelector(arguments[0]); found.scrollIntoView({block: 'center'});"
            "const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2];",
            selector,
        )
        self.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def press(self, key: str, modifiers: int = 0) -> None:
        """modifiers: 2 for Ctrl, 8 for Shift."""
        letter = {"text": key} if len(key) == 1 and not modifiers else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = {**letter, "modifiers": modifiers}
            self.devtools("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def complaints(self) -> list[str]:
        """What the console says, since it was asked last."""
        return [entry["message"] for entry in self.ask("POST", "se/log", {"type": "browser"})]

    def picture(self, file: Path) -> Path:
        """The whole page as a PNG."""
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))
        return file

    def paper(self, file: Path) -> Path:
        """The page as a PDF."""
        file.write_bytes(base64.b64decode(self.ask("POST", "print", {"background": True})))
        return file


@contextmanager
def chromium() -> Iterator[Browser]:
    """A new browser with a profile of its own."""
    assert CHROMIUM
    assert DRIVER
    with tempfile.TemporaryDirectory() as profile:
        driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert driver.stdout
            line = next(line for line in driver.stdout if "started successfully on port" in line)
            address = f"http://127.0.0.1:{line.split()[-1].rstrip('.')}"
            options = {"binary": CHROMIUM, "args": [*OFFLINE, f"--user-data-dir={profile}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            session = request("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            browser = Browser(address, session)
            yield browser
            request("DELETE", f"{address}/session/{session}")
        finally:
            driver.terminate()
            driver.wait()


def request(method: str, address: str, content: Any = None) -> Any:
    body = None if method in ("GET", "DELETE") else json.dumps(content or {}).encode()
    asked = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(asked, timeout=300) as answer:
        return json.loads(answer.read())["value"]
