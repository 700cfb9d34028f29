"""Each view of the page, with real texts, before axe-core: a checker of accessibility that is not ours.

`npm ci` installs it (axe-core, MPL-2.0; the version is in package.json); without, these tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from real_texts import build_real_texts
from served_run import WORK, serving

from agent_terminal import ECHO, agent_in_tmux
from garrison.system.tmux_server import supported_version
from timeline_support import TimedHome, story
from top_support import HomeBuilder, build_large_run, home_builder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
AXE = Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"
SCHEMES, WIDTHS = ("light", "dark"), (1440, 1024, 390)
FINDINGS = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
    .map(({ id, impact, nodes }) => [id, impact, nodes.map(one => one.html.slice(0, 160))])"""
VIEWS = ("/", "/?run=texts-1", "/?run=story-1&view=time", "/?run=done-1", "/?run=r1", "/chat", "/?run=none",
         "/?run=texts-1&node=docs", "/?run=texts-1&node=audit&tab=changes")
TABS = ("Log", "Transcript", "Terminal", "Task", "Why")
THUMB = """() => [...document.querySelectorAll("a[href], button, select, input, summary, [role=tab]")]
    .filter(one => one.checkVisibility({ visibilityProperty: true }) && !one.closest(".skip, .ways, table.diff"))
    .filter(one => one.type !== "checkbox" && one.getBoundingClientRect().width)
    .filter(one => one.getBoundingClientRect().height < 43.5)
    .map(one => `${one.className} ${one.textContent.trim().slice(0, 30)} ${one.getBoundingClientRect().height}`)"""


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed; `npm ci` installs it")
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HomeBuilder, str]]:
    """Yield a home with real texts, an hour of history, and a run that is shown in groups."""
    folder: Path = tmp_path_factory.mktemp("axe")
    story(TimedHome(folder))
    with home_builder(folder) as builder:
        build_real_texts(builder)
        build_large_run(builder, 160)
        with serving(folder) as url:
            yield builder, url


def judge(page: Any, axe: str, found: dict[str, Any], view: str) -> None:
    """Add what axe-core finds to `found`, in light and dark, once its skeletons have gone."""
    expect(page.locator(".skeleton:visible")).to_have_count(0, timeout=WORK)
    page.evaluate(axe)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for rule, impact, elements in page.evaluate(FINDINGS):
            found[f"{view} {scheme}: {rule} ({impact})"] = elements
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found[f"{view}: wider than the page"] = []
    if page.viewport_size["width"] < 700 and (small := page.evaluate(THUMB)):
        found[f"{view}: too small for a thumb"] = small


def drawn(page: Any) -> None:
    """Wait for the graph, beyond its deadline where the machine is busy."""
    nodes, longer = page.locator("svg .node").first, page.get_by_role("button", name="Try longer")
    expect(nodes.or_(longer)).to_be_visible(timeout=WORK)
    if longer.is_visible():
        longer.click()
    expect(nodes).to_be_visible(timeout=WORK)


@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_on_any_view(home: Any, opened: Any, axe: str, width: int) -> None:
    _, url = home
    page = opened(url, width=width, height=900, reduced_motion="reduce", bypass_csp=True)
    page.watch.allowed.append("status of 4")  # these homes have no repository, no session
    found: dict[str, Any] = {}
    for view in VIEWS:
        page.goto(url.partition("/?")[0] + view)
        if "none" not in view and "chat" not in view:
            expect(page.locator("#link")).to_have_text("Live")
        if view in ("/?run=texts-1", "/?run=done-1"):
            drawn(page)
        judge(page, axe, found, view)
        if view in ("/?run=r1", "/?run=texts-1"):
            page.get_by_role("tab", name="Table").click()
            judge(page, axe, found, f"{view} table")
            page.evaluate("localStorage.clear()")
    for tab in TABS:
        page.locator("#detail").get_by_role("tab", name=tab).click()
        judge(page, axe, found, f"tab {tab}")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    judge(page, axe, found, "keys")
    assert not found, found


@pytest.mark.skipif(not supported_version(), reason="there is no tmux >= 3.2 on PATH")
def test_axe_finds_nothing_on_a_terminal(tmp_path: Path, opened: Any, axe: str) -> None:
    with agent_in_tmux(tmp_path, ECHO), serving(tmp_path) as url:
        page = opened(f"{url}&run=r1&node=a", reduced_motion="reduce", bypass_csp=True)
        page.watch.allowed.append("status of 4")
        page.locator("#detail").get_by_role("tab", name="Terminal").click()
        panel = page.locator("#detail-terminal")
        expect(panel.locator(".xterm-rows")).to_contain_text("listening")
        found: dict[str, Any] = {}
        judge(page, axe, found, "read-only")
        panel.get_by_role("button", name="Type to the agent").click()
        judge(page, axe, found, "dialog")
        page.get_by_role("dialog").get_by_role("button", name="Type to the agent").click()
        expect(panel.locator(".typing-mark")).to_be_visible()
        judge(page, axe, found, "typing")
        page.keyboard.press("Control+Shift+L")
        assert not found, found
