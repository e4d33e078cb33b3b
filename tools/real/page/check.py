"""The page at / of real daemons in a headless Chromium: tools/real.sh page."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from typing import Any, Iterator

import numpy as np

import dws
from tests.integration.cluster import Cluster, Daemon
from tools.real.page.browser import BROKEN, CUT_OFF, DESK, PHONE, Browser
from tools.real.page.recorded import MARKUP, hostile, of_many, serve
from tools.real.report import Report

VERSIONS = 30
SMALL_PHONE = (320, 640)
MANY = 1000


class Check:
    """The cases, in the order in which they run, with one job."""

    def __init__(self, cluster: Cluster, browser: Browser, shots: str) -> None:
        self.cluster = cluster
        self.browser = browser
        self.shots = shots
        self.sender = cluster.start_sender(0)
        self.receiver = cluster.start_receiver("rollout-0", "--stale-after=1")

    def cases(self) -> Iterator[tuple[str, str]]:
        """The name of each case that has passed, and what it has seen."""
        yield "waiting", self._waiting()
        with self._job():
            yield "sender", self._shows(self.sender, "Ready", "Newest version", "sender")
            yield "receiver", self._shows(self.receiver, "Ready", "Engine has version", "receiver")
            yield "keyboard", self._keyboard()
            yield "one receiver in trouble", self._many(1)
            yield f"{MANY} receivers", self._many(MANY)
            yield "markup", self._markup()
        yield "trouble", self._trouble()
        yield "no answer", self._no_answer()

    def _waiting(self) -> str:
        self._open(self.sender)
        self._expect("verdict-title", "Not ready")
        reason: str = json.loads(self.sender.page("/status"))["reason"]
        self._expect("verdict-reason", reason)
        self._look_at("waiting")
        return reason

    @contextlib.contextmanager
    def _job(self) -> Iterator[None]:
        random = np.random.default_rng(7)
        with contextlib.closing(dws.Trainer(self.sender.socket, self.cluster.job_id)) as trainer, contextlib.closing(
            dws.Engine(self.receiver.socket)
        ) as engine:
            weights = trainer.register({name: random.standard_normal((900, 1000), np.float32) for name in "ab"})
            engine.attach({name: np.zeros_like(array) for name, array in weights.items()})
            for version in range(1, VERSIONS + 1):
                for array in weights.values():
                    flat = array.reshape(-1)
                    flat[random.random(flat.size) < 0.001 * (2 + version % 7)] += 1.0
                trainer.publish(version)
                trainer.wait(version)
            yield

    def _shows(self, daemon: Daemon, title: str, figure: str, name: str) -> str:
        self._open(daemon)
        self._expect("verdict-title", title)
        figures = self._figures()
        assert figures[figure] == str(VERSIONS), f"{figure} is {figures}, expected {VERSIONS}"
        plots = self.browser.value("[...document.querySelectorAll('.plot')].map(p => [p.querySelector('strong').textContent, "
                                   "p.querySelectorAll('rect').length, p.querySelector('b').textContent])")  # fmt: skip
        assert len(plots) == 4 and all(bars >= VERSIONS for _, bars, _ in plots), f"plots of {VERSIONS} versions: {plots}"
        self._look_at(name)
        return ", ".join(f"{key} {value}" for key, value in figures.items())

    def _keyboard(self) -> str:
        """Tab goes through everything that can be used, in the order of the page; the arrow keys read a plot."""
        self._open(self.sender)
        self.browser.look()
        order = []
        for _ in range(20):
            self.browser.press("Tab")
            order.append(self.browser.value("(() => { const e = document.activeElement; const box = e.getBoundingClientRect();"
                                            "return [e.getAttribute('aria-labelledby') || e.id || e.textContent, Math.round(box.top + scrollY),"
                                            "getComputedStyle(e).outlineStyle]; })()"))  # fmt: skip
            if order[-1][0] == "/metrics":
                break
        names = [name for name, _, _ in order]
        plots = ["plot-bytes", "plot-density", "plot-pause", "plot-capture"]
        assert names == ["hold", *plots, "Show 20 more", "/status", "/metrics"], f"the order of Tab is {names}"
        tops = [top for _, top, _ in order]
        assert tops == sorted(tops) and all(style != "none" for _, _, style in order), f"the focus jumps, or is not seen: {order}"
        self.browser.value("document.querySelector('.plot svg').focus()")
        for keys, shown in ((["Home"], 1), (["ArrowRight", "ArrowRight"], 3), (["ArrowLeft"], 2), (["Escape"], VERSIONS)):
            for key in keys:
                self.browser.press(key)
            said = self.browser.value("[...document.querySelectorAll('.plot')].map(p => p.querySelector('.readout').textContent)")
            assert all(text.startswith(f"version {shown}: ") for text in said), f"after {keys}: {said}, expected version {shown}"
        self.browser.value("document.getElementById('hold').focus()")
        self.browser.press("Enter")
        self._expect("hold", "Continue")
        self.browser.press("Enter")
        return " > ".join(names)

    def _many(self, receivers: int) -> str:
        status = of_many(json.loads(self.sender.page("/status")), max(4, receivers)) if receivers > 1 else self._one_in_trouble()
        with serve(self._url(self.sender), status) as recorded:
            self.browser.open(recorded.url)
            self.browser.wait("document.getElementById('verdict').dataset.level === 'warn'", "a problem")
            problems = self.browser.value("[...document.querySelectorAll('#problem-list b')].map(e => e.textContent)")
            first = self.browser.value("[...document.querySelectorAll('#tables tbody')][0].querySelector('th').textContent")
            assert problems and problems[0].removeprefix("receiver ") == first, f"{problems} before {first!r}"
            if receivers > 1:
                self._filter()
                assert self.browser.value("document.title.includes('broken')") is False
            self._look_at(f"receivers-{receivers}")
            return f"{len(problems)} named, the first {first[:20]!r}"

    def _one_in_trouble(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.sender.page("/status"))
        status["sender"]["receivers"][0].update(last_error=f"DATA_LOSS: {MARKUP}", nacks="3")
        return status

    def _filter(self) -> None:
        rows = "document.querySelector('#tables tbody').querySelectorAll('th').length"
        assert self.browser.value(rows) == 25, f"{self.browser.value(rows)} rows, expected 25"
        self.browser.value("document.querySelector('#tables button').click()")
        assert self.browser.value(rows) == 125, f"{self.browser.value(rows)} rows, expected 125"
        self.browser.value("(() => { const f = document.getElementById('filter-receivers'); f.focus(); f.value = 'RACK-07';"
                           "f.dispatchEvent(new Event('input')); })()")  # fmt: skip
        self.browser.wait(f"{rows} === 25")
        found = self.browser.value("[...document.querySelector('#tables tbody').querySelectorAll('th')].map(e => e.textContent)")
        assert all("rack-07" in name for name in found), found
        # The next status leaves the focus and what was typed.
        asked = self.browser.value("performance.getEntriesByType('resource').length")
        self.browser.wait(f"performance.getEntriesByType('resource').length > {asked}")
        assert self.browser.value("document.activeElement.id + document.activeElement.value") == "filter-receiversRACK-07"
        self.browser.value("(() => { const f = document.getElementById('filter-receivers'); f.value = ''; f.dispatchEvent(new Event('input')); })()")

    def _markup(self) -> str:
        for daemon in (self.sender, self.receiver):
            status = hostile(json.loads(daemon.page("/status")))
            status.update(ready=False, reason=MARKUP)
            with serve(self._url(daemon), status) as recorded:
                self.browser.open(recorded.url)
                self.browser.wait(f"document.getElementById('verdict-reason').textContent === {json.dumps(MARKUP)}")
                assert self.browser.value("document.querySelectorAll('img, main script').length") == 0, "a text became markup"
                self._quiet("markup")
        return "in each text of both statuses: shown as text"

    def _trouble(self) -> str:
        """The trainer and the engine have gone; then the sender is killed."""
        self.sender.kill()
        self._open(self.receiver)
        self.browser.wait("document.getElementById('verdict-reason').textContent.includes('no accepted sender')")
        self._expect("verdict-title", "Not ready")
        problems = self.browser.value("document.getElementById('problem-list').innerText")
        assert self.sender.address in problems and "DwsReceiverWithoutSender" in problems, problems
        self._look_at("trouble")
        return self._reason()

    def _no_answer(self) -> str:
        self._open(self.receiver)
        self.receiver.stop()
        self.browser.wait("document.getElementById('verdict-title').textContent === 'No answer'")
        self._look_at("no-answer", quiet=False)
        self.browser.complaints.clear()  # of the connection that was refused
        return self._reason()

    def _reason(self) -> str:
        return str(self.browser.value("document.getElementById('verdict-reason').textContent"))

    def _look_at(self, name: str, quiet: bool = True) -> None:
        """In both colours, on a desk and on phones."""
        for dark in (False, True):
            for size in (DESK, PHONE, SMALL_PHONE):
                self.browser.look(dark, size)
                cut = self.browser.value(CUT_OFF) + self.browser.value(BROKEN)
                assert not cut, f"{name} at {size[0]} px is cut off, or broken within a word: {cut}"
                self.browser.screenshot(os.path.join(self.shots, f"{name}-{size[0]}-{'dark' if dark else 'light'}.png"))
        self.browser.look()
        if quiet:
            self._quiet(name)

    def _quiet(self, name: str) -> None:
        assert not self.browser.complaints, f"{name}: the browser complains: {self.browser.complaints}"

    def _url(self, daemon: Daemon) -> str:
        return f"http://127.0.0.1:{daemon.ports['http']}/"

    def _open(self, daemon: Daemon) -> None:
        self.browser.look()
        self.browser.open(self._url(daemon))
        self.browser.wait("document.getElementById('asof').textContent !== ''", "a status")

    def _expect(self, element: str, words: str) -> None:
        self.browser.wait(f"document.getElementById('{element}').textContent === {json.dumps(words)}", f"{element}: {words!r}")

    def _figures(self) -> dict[str, str]:
        found: dict[str, str] = dict(self.browser.value(
            "[...document.querySelectorAll('#figures > div')].map(e => [e.querySelector('dt').textContent, e.querySelector('.value').textContent])"))
        return found


def run(options: argparse.Namespace, program: str) -> int:
    """The exit status."""
    report = Report("cases")
    with tempfile.TemporaryDirectory() as folder:
        shots = options.shots or folder
        os.makedirs(shots, exist_ok=True)
        with Cluster("page") as cluster, Browser(program) as browser:
            last = "start"
            try:
                for name, text in Check(cluster, browser, shots).cases():
                    last = name
                    report.ok(name, text)
            except (AssertionError, dws.DwsError) as error:
                report.failed(f"after {last}", f"{error}\n{cluster.logs(20)}")
    return report.end()
