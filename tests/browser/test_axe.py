"""Each view of the page, in light and dark, before axe-core: a checker of accessibility that is not ours.

It is fetched by npm into a cache, once, and used by these tests alone (axe-core, MPL-2.0).
"""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from served_run import WORK, serving

from agent_terminal import ECHO, agent_in_tmux
from garrison.records.run import RunFiles
from garrison.system.tmux_server import supported_version
from timeline_support import TimedHome, story
from top_support import HomeBuilder, build_busy_run, build_large_run, home_builder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
VERSION = "4.14.1"
CACHE = Path.home() / ".cache/garrison-tests/axe-core"
SCHEMES, WIDTHS = ("light", "dark"), (1440, 360)
FINDINGS = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
    .map(({ id, impact, nodes }) => [id, impact, nodes.map(one => one.html.slice(0, 160))])"""
VIEWS = ("/", "/?run=crew-1", "/?run=crew-1&view=time", "/?run=story-1&view=time", "/?run=r1", "/chat", "/?run=none",
         "/?run=crew-1&node=search_index", "/?run=crew-1&node=add_tests&tab=changes")
TABS = ("Log", "Transcript", "Terminal", "Task")


@pytest.fixture(scope="module")
def axe() -> str:
    name = f"axe-core-{VERSION}.tgz"
    if not (CACHE / name).is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(["npm", "pack", "--silent", f"axe-core@{VERSION}"], cwd=CACHE, check=True,
                           capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"axe-core cannot be fetched: {error}")
    with tarfile.open(CACHE / name) as archive:
        file = archive.extractfile("package/axe.min.js")
        return file.read().decode()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HomeBuilder, str]]:
    """A home with one of everything, an hour of history, and a run whose graph has a map."""
    folder: Path = tmp_path_factory.mktemp("axe")
    story(TimedHome(folder))
    with home_builder(folder) as builder:
        build_busy_run(builder)
        build_large_run(builder, 40)
        log = RunFiles(folder, "crew-1").attempt("add_tests", 1) / "agent.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("reading calc.py\n" * 200)
        with serving(folder) as url:
            yield builder, url


def judge(page: Any, axe: str, found: dict[str, Any], view: str) -> None:
    """Add what axe-core finds to `found`, once its skeletons have gone."""
    page.wait_for_function("![...document.querySelectorAll('.skeleton')].some(one => one.offsetParent)", timeout=WORK)
    page.evaluate(axe)
    for rule, impact, elements in page.evaluate(FINDINGS):
        found[f"{view}: {rule} ({impact})"] = elements


def drawn(page: Any) -> None:
    """Wait for the graph, beyond its deadline where the machine is busy."""
    nodes, longer = page.locator("svg .node").first, page.get_by_role("button", name="Try longer")
    expect(nodes.or_(longer)).to_be_visible(timeout=WORK)
    if longer.is_visible():
        longer.click()
    expect(nodes).to_be_visible(timeout=WORK)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_on_any_view(home: Any, opened: Any, axe: str, scheme: Any, width: int) -> None:
    _, url = home
    page = opened(url, width=width, height=900, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True)
    page.watch.allowed.append("status of 4")  # these homes have no repository, no session
    found: dict[str, Any] = {}
    for view in VIEWS:
        page.goto(url.partition("/?")[0] + view)
        if "r1" in view:
            drawn(page)
            judge(page, axe, found, f"{view} graph")
            page.get_by_role("tab", name="Table").click()
        elif "none" not in view and "chat" not in view:
            expect(page.locator("#link")).to_have_text("Live")
            if view == "/?run=crew-1":
                drawn(page)
        judge(page, axe, found, view)
    page.goto(url.partition("/?")[0] + "/?run=crew-1&node=add_tests")
    for tab in TABS:
        page.locator("#detail").get_by_role("tab", name=tab).click()
        judge(page, axe, found, f"tab {tab}")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    judge(page, axe, found, "keys")
    assert not found, found


@pytest.mark.skipif(not supported_version(), reason="there is no tmux >= 3.2 on PATH")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_on_a_terminal(tmp_path: Path, opened: Any, axe: str, scheme: Any) -> None:
    with agent_in_tmux(tmp_path, ECHO), serving(tmp_path) as url:
        page = opened(f"{url}&run=r1&node=a", color_scheme=scheme, reduced_motion="reduce", bypass_csp=True)
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
