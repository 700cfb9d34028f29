"""The page in a real Chromium: real server, real runs, real keys. Skipped where no Chromium is installed.

Each page is watched: a line in the console, a violation of the content security policy, a dialog or a request to
another server fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import real_texts
from playwright.sync_api import expect, sync_playwright

from chromium import CHROMIUM, FLAGS
from top_support import HomeBuilder

PATIENCE = 60_000
"""Milliseconds until something that should be on a page is missing. A page follows an event within a tenth of a second;
on a slow, loaded machine, a graph of two hundred nodes took more than twenty seconds. `served_run.WORK` is for what
needs the work of a run."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the text of the test's pages to the report of a failure."""
    report = yield
    opener = getattr(item, "funcargs", {}).get("opened")
    if report.when == "call" and report.failed and opener is not None:
        for page in [page for context, _ in opener.made for page in context.pages]:
            with suppress(Exception):  # a browser that died shows nothing
                focus, text = page.evaluate("[document.activeElement?.outerHTML, document.body.innerText]")
                report.sections.append((f"page {page.url}", f"focus: {str(focus)[:200]}\n{text[:3000]}"))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if CHROMIUM is None and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no chromium here; `scripts/test` installs it where it may"))


@dataclass
class Watch:
    """Record what a page must not do."""

    home: str
    seen: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    """Patterns of what a test provokes itself."""

    def on(self, page: Any) -> None:
        page.on("console", lambda line: line.type in ("error", "warning") and self.seen.append(f"console: {line.text}"))
        page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.seen.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: self.seen.append(f"popup: {popup.url}"))
        page.on("request", lambda request: self._request(request.url))

    def _request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != self.home:
            self.seen.append(f"request to {url}")

    def check(self) -> None:
        bad = [line for line in self.seen if not any(re.search(each, line) for each in self.allowed)]
        assert not bad, bad


@pytest.fixture(scope="module", autouse=True)
def real_labels() -> Iterator[None]:
    """Give nodes the labels of real projects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HomeBuilder, "labels", real_texts.LABELS)
        yield


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Yield one browser for a file's pages: its event loop must not run under tests that need their own."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


Opener = Callable[..., Any]


@pytest.fixture
def opened(chromium: Any) -> Iterator[Opener]:
    """Yield a function that opens a page in a browser profile of its own."""
    made: list[tuple[Any, Watch]] = []

    def opener(url: str, path: str = "", *, width: int = 1440, height: int = 900, **options: Any) -> Any:
        parts = urlsplit(url)
        home = f"{parts.scheme}://{parts.netloc}"
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(PATIENCE)
        watch = Watch(home)
        context.on("page", watch.on)  # also other tabs
        page = context.new_page()
        page.watch = watch
        made.append((context, watch))
        page.goto(url)
        if path:
            page.goto(home + path)
        return page

    opener.made = made  # type: ignore[attr-defined]  # for the report of a failure
    yield opener
    for context, _ in made:
        with suppress(Exception):  # a browser that died has failed the test
            context.close()
    for _, watch in made:
        watch.check()
