"""The terminal of an agent in the page: output is only drawn, typing is enabled by a dialog and left by a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from served_run import serving

from agent_terminal import ECHO, agent_in_tmux
from garrison.records import signals
from garrison.records.names import Key
from garrison.system.terminal import TerminalSession
from garrison.system.tmux import TmuxTerminal
from garrison.system.tmux_server import supported_version
from support import wait_for
from web_support import READ, WRITE, load_tokens

pytestmark = pytest.mark.skipif(not supported_version(), reason="there is no tmux >= 3.2 on PATH")
COLORS = (r"printf '\033[38;5;208mamber\033[0m \033]0;TITLE\007\033]52;c;aGk=\007\033]8;;javascript:alert(1)\033\\link"
          r"\033]8;;\033\\'")
AUDIT = (Path(__file__).parent / "audit.js").read_text()


@contextmanager
def opened_terminal(home: Path, opened: Any, script: str, **options: Any) -> Iterator[tuple[Any, TerminalSession]]:
    """Yield the page with the terminal of an agent open."""
    with agent_in_tmux(home, script, keyboard=options.pop("keyboard", True)) as (_, session), serving(home) as url:
        token = load_tokens(home)[READ if options.pop("reader", False) else WRITE]
        page = opened(f"{url.partition('token=')[0]}token={token}&run=r1&node=a", **options)
        page.watch.allowed.append("status of 40[49]")  # where there is no terminal
        assert "xterm" not in page.evaluate("performance.getEntriesByType('resource').map(one => one.name).join()")
        page.locator("#detail").get_by_role("tab", name="Terminal").click()
        yield page, session


def shown(page: Any) -> str:
    return str(page.locator(".xterm-rows").inner_text()).replace("\u00a0", " ")


def test_a_hostile_screen_is_drawn_and_typed_into_on_request(tmp_path: Path, opened: Any) -> None:
    with opened_terminal(tmp_path, opened, f"{COLORS}; {ECHO}") as (page, session):
        panel = page.locator("#detail-terminal")
        expect(panel.locator(".xterm-rows")).to_contain_text("listening")
        amber = panel.locator(".xterm-rows span", has_text="amber").first
        assert amber.evaluate("one => getComputedStyle(one).color") == "rgb(255, 135, 0)", "its styles are applied"
        assert page.title() != "TITLE" and panel.locator(".xterm-rows a").count() == 0
        expect(panel).to_contain_text("run r1 · a · attempt 1 · incarnation 1, read-only.")
        panel.locator(".terminal-screen").focus()
        page.keyboard.type("n")  # still a key of the page: the table of nodes
        assert page.evaluate(AUDIT) == []

        panel.get_by_role("button", name="Type to the agent").click()
        page.get_by_role("dialog").get_by_role("button", name="Type to the agent").click()
        expect(panel.locator(".typing-mark")).to_contain_text("Your keys go to the agent. Ctrl+Shift+L leaves")
        page.keyboard.type("hé w")
        page.keyboard.press("Escape")
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Control+c")
        wait_for("all keys arrive", lambda: "hM-CM-) w^[^I^[[A^C" in TmuxTerminal(tmp_path).capture(session))
        page.keyboard.press("Control+Shift+L")
        expect(panel.locator(".typing-mark")).to_have_count(0)
        expect(panel.get_by_role("button", name="Type to the agent")).to_be_focused()
        posted = signals.list_pending(tmp_path, Key("runner", "a", "r1"))
        wait_for("it is recorded", lambda: len(signals.list_pending(tmp_path, Key("runner", "a", "r1"))) == 2)
        assert posted, "from the start"

        TmuxTerminal(tmp_path).close(session, grace=0)
        expect(panel).to_contain_text("The terminal has ended: the session of a has ended")
        panel.get_by_role("button", name="Open again").click()
        expect(panel).to_contain_text("its session has ended")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_reader_on_a_phone_sees_it_and_cannot_type(tmp_path: Path, opened: Any, scheme: Any) -> None:
    with opened_terminal(tmp_path, opened, ECHO, reader=True, width=360, height=740, color_scheme=scheme) as (page, _):
        panel = page.locator("#detail-terminal")
        expect(panel.locator(".xterm-rows")).to_contain_text("listening")
        assert panel.get_by_role("button", name="Type to the agent").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is not scrolled sideways"
        assert page.evaluate(AUDIT) == []


@pytest.mark.slow
def test_a_flood_leaves_the_tab_usable_and_small(tmp_path: Path, opened: Any) -> None:
    flood = r"yes \"$(printf '\033[31m%0400d\033]52;c;aGk=\007' 7)\" & sleep 2; echo; while :; do seq 1000000; done"
    with opened_terminal(tmp_path, opened, flood) as (page, _):
        panel = page.locator("#detail-terminal")
        expect(panel.locator(".xterm-rows")).to_contain_text("0")
        for _round in range(20):
            began = page.evaluate("performance.now()")
            page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
            assert page.evaluate("performance.now()") - began < 2000
        page.locator("#detail").get_by_role("tab", name="Log").click()
        expect(panel.locator(".xterm")).to_have_count(0)
        session = page.context.new_cdp_session(page)
        session.send("HeapProfiler.collectGarbage")
        session.send("Performance.enable")
        metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        assert metrics["JSHeapUsedSize"] < 60 << 20


@pytest.mark.slow
def test_a_node_without_a_keyboard_or_a_terminal_has_a_reason(tmp_path: Path, opened: Any) -> None:
    with opened_terminal(tmp_path, opened, ECHO, keyboard=False) as (page, _):
        panel = page.locator("#detail-terminal")
        expect(panel).to_contain_text("its command reads no keyboard")
        assert panel.get_by_role("button", name="Type to the agent").count() == 0
        page.goto(page.url.replace("node=a", "node=b"))
        page.locator("#detail").get_by_role("tab", name="Terminal").click()
        expect(panel).to_contain_text("orchestrator-b@r1 has no session yet")
