"""The chat in a real browser: the active agent follows the server's events in their order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from garrison.delegation.conversation import Conversation
from garrison.delegation.models import ChatEntry
from support import DEADLINE

ACTIVE = """() => {
  window.seen = [];
  const note = () => {
    const active = document.querySelectorAll("[data-testid=agent-rail] .active");
    const now = [...active].map(one => one.dataset.agent).join("+");
    if (now !== window.seen.at(-1)) window.seen.push(now);
  };
  const rail = document.querySelector("[data-testid=agent-rail]");
  new MutationObserver(note).observe(rail, { subtree: true, attributes: true });
}"""
"""Record the active agents of the rail whenever they change."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chat")


@pytest.fixture(scope="module")
def butler(home: Path) -> Iterator[str]:
    """Yield the address of a served home with a scripted butler."""
    script = Path(__file__).parent / "scripted_butler.py"
    process = subprocess.Popen([sys.executable, "-P", str(script), str(home)],
                               stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        assert process.wait(DEADLINE) == 0
        process.stdout.close()


def ask(page: Page, message: str) -> None:
    page.fill('[data-testid="chat-input"]', message)
    page.click('[data-testid="send-button"]')


def test_the_rail_shows_butler_then_triage_then_butler(butler: str, opened: Any) -> None:
    page = opened(butler, "/chat")
    rail = page.locator('[data-testid="agent-rail"]')
    expect(rail.locator('[data-testid="agent-triage"]')).to_be_visible()
    names = rail.locator("[data-agent]").evaluate_all("all => all.map(one => one.dataset.agent)")
    assert names == ["butler", "triage", "scheduler", "communicator", "navigator", "preference_learner"]
    page.evaluate(ACTIVE)
    ask(page, "What needs me?")
    expect(page.locator('[data-testid="message-complete"]')).to_contain_text("One agent died and came back.")
    expect(rail.locator('[data-agent="butler"]')).to_have_class("agent active s-working")
    assert page.evaluate("window.seen") == ["butler", "triage", "butler"]
    expect(page.locator(".bubble.crew")).to_contain_text("<img src=x onerror=alert(1)> I look.")


def test_an_answer_continues_without_its_page_and_can_be_stopped(butler: str, opened: Any) -> None:
    page = opened(butler, "/chat?conversation=slow")
    ask(page, "Be slow")
    expect(page.locator(".bubble.crew")).to_be_visible()
    page.reload()
    expect(page.locator(".bubble.crew")).to_contain_text("I look.")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator('[data-testid="message-complete"]')).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_a_proposal_waits_for_one_of_two_buttons(butler: str, home: Path, opened: Any) -> None:
    """Also on a page that is opened later. Neither answer needs a model, and each removes the buttons."""
    page = opened(butler, "/chat?conversation=stopping")
    choice, bubbles = page.locator('[data-testid="proposal"]'), page.locator(".bubble .words")
    ask(page, "Stop r1")
    expect(choice.get_by_role("button")).to_have_text(["No, change nothing", "Yes, run it"])
    assert "garrison stop r1" in bubbles.last.inner_text()
    page.reload()
    choice.get_by_role("button", name="No").click()
    expect(bubbles.last).to_have_text("Nothing was changed.")
    expect(choice).to_have_count(0)
    ask(page, "Stop r1")
    choice.get_by_role("button", name="Yes").click()
    expect(bubbles.last).to_contain_text("garrison stop r1: r1 is stopped")
    expect(choice).to_have_count(0)
    assert (home / "ran").read_text() == "stopping: stop r1\n"


def test_a_button_agrees_only_to_the_proposal_that_its_page_shows(butler: str, home: Path, opened: Any) -> None:
    """Another page of the same conversation has answered, and there is another proposal."""
    page, other = (opened(butler, "/chat?conversation=two") for _ in range(2))
    page.watch.allowed.append("409|400|Refused|status of 4")
    ask(page, "Stop r1")
    expect(page.locator('[data-testid="proposal"]')).to_be_visible()
    other.reload()
    ask(other, "Stop r1 and r2")
    expect(other.locator('[data-testid="proposal"]')).to_be_visible()
    page.get_by_role("button", name="Yes").click()
    expect(page.locator(".bubble.bad")).to_contain_text("the butler's proposal has changed")
    assert "two: " not in ((home / "ran").read_text() if (home / "ran").exists() else "")


def test_events_that_arrive_together_are_shown_one_by_one(butler: str, opened: Any) -> None:
    page = opened(butler, "/chat")
    page.route("**/api/chat", lambda route: route.fulfill(content_type="text/event-stream", body="""
        data: {"type":"agent_start","agent":"butler"}
        data: {"type":"agent_delegate","from":"butler","to":"triage"}
        data: {"type":"text","content":"Checking","agent":"triage"}
        data: {"type":"agent_complete","agent":"triage"}
        data: {"type":"agent_resume","agent":"butler"}
        data: {"type":"done"}
    """.replace("\n        ", "\n\n")))
    expect(page.locator('[data-testid="agent-triage"]')).to_be_visible()
    page.evaluate(ACTIVE)
    ask(page, "Check urgent emails")
    expect(page.locator('[data-testid="message-complete"]')).to_be_visible()
    assert page.evaluate("window.seen") == ["butler", "triage", "butler"]


MARKDOWN = """# One *word*
Some **bold** and `code <b>` and [words](javascript:alert(1))
and more.

- first
- second
  goes on
3. third

> said
```python
def <script>alert(2)</script>
**not bold**
```
| node | state \\| word |
|---|:---:|
| `a` | [open](/?run=r1) |
---
[x](http://evil.example/?<img src=x onerror=alert(3)>) <a href="http://evil.example">e</a> ![p](http://evil.example/i)
"""


def test_markdown_becomes_elements_and_never_markup(butler: str, opened: Any) -> None:
    page = opened(butler, "/chat")
    expect(page.locator('[data-testid="agent-triage"]')).to_be_visible()
    found = page.evaluate("""async text => {
        const { Markdown } = await import("/static/markdown.js");
        const { html, render } = await import("/static/view.js");
        const markdownView = () => {
            const place = document.createElement("li");
            const show = text => render(html`<${Markdown} text=${text} />`, place);
            show("");
            return { view: place.firstElementChild, show };
        };
        const { view, show } = markdownView();
        show(text);
        document.querySelector(".talk").append(view.parentElement);
        const whole = view.innerHTML, first = view.firstElementChild;
        const grown = markdownView();
        for (let at = 0; at <= text.length; at += 1) grown.show(text.slice(0, at));
        show(text + "more");
        const start = performance.now();
        for (const hostile of ["*", "_", "`", "[", "# ", "- ", " ", "> ", "**a", "[a](", "\u0301", "```\\n", "1. \\n"])
            markdownView().show(hostile.repeat(50_000) + "x");
        return { names: [...view.querySelectorAll("*")].map(one => one.localName),
            whole: whole === grown.view.innerHTML, kept: first === view.firstElementChild,
            spent: performance.now() - start,
            attributes: [...new Set([...view.querySelectorAll("*")].flatMap(one => one.getAttributeNames()))].sort(),
            table: [...view.querySelectorAll("tr")].map(row => [...row.children].map(cell => cell.textContent)),
            links: [...view.querySelectorAll("a")].map(link => link.getAttribute("href")),
            code: view.querySelector("pre").textContent, items: view.querySelectorAll("li").length };
    }""", MARKDOWN)
    assert set(found["names"]) == {"p", "strong", "em", "code", "ul", "ol", "li", "blockquote", "pre", "hr", "div",
                                   "table", "thead", "tbody", "tr", "th", "td", "a"}
    assert found["attributes"] == ["aria-label", "aria-level", "class", "href", "role", "scope", "start", "tabindex"]
    assert found["table"] == [["node", "state | word"], ["a", "open"]] and found["links"] == ["/?run=r1"]
    assert found["whole"] and found["kept"], "a growing text is drawn as the whole one"
    assert found["code"] == "def <script>alert(2)</script>\n**not bold**" and found["items"] == 3
    assert found["spent"] < 30_000, "of hostile megabytes"


def test_the_rail_changes_with_the_event_and_marks_the_hand_over(butler: str, opened: Any) -> None:
    page = opened(butler, "/chat")
    seen = page.evaluate("""async () => {
        const { ChatRail } = await import("/static/chat_rail.js");
        const { createRef, html, render } = await import("/static/view.js");
        const crew = [["butler", "Butler"], ["triage", "Triage"]];
        const place = document.createElement("div"), ref = createRef();
        render(html`<${ChatRail} handle=${ref}
            crew=${crew.map(([agent, title]) => ({ agent, title, what: "" }))} />`, place);
        const now = () => [...place.querySelectorAll(".active")].map(one => one.dataset.agent).join("+");
        const marks = () => [...place.querySelectorAll(".hand-over")].map(one => one.dataset.from ?? "");
        const states = [];
        for (const event of [
            { type: "agent_start", agent: "butler" }, { type: "agent_delegate", from: "butler", to: "triage" },
            { type: "agent_start", agent: "triage" }, { type: "agent_complete", agent: "triage" },
            { type: "agent_resume", agent: "butler" }]) {
            await new Promise(resolve => setTimeout(resolve, 200));
            ref.current.moved(event);
            await new Promise(resolve => setTimeout(resolve));
            states.push([now(), marks()]);
        }
        return { states };
    }""")
    assert seen["states"] == [["butler", ["", ""]], ["triage", ["", "butler"]], ["triage", ["", "butler"]],
                              ["butler", ["", "butler"]], ["butler", ["triage", "butler"]]]
    rail = page.locator('[data-testid="agent-rail"]')
    expect(rail.locator(".icon")).to_have_count(6)
    assert rail.bounding_box()["width"] <= 110


def test_old_messages_are_paged_searched_copied_and_downloaded(
        butler: str, home: Path, opened: Any, tmp_path: Path) -> None:
    talk = Conversation(home / "conversations", "long")
    for number in range(250):
        talk.add(ChatEntry(role="assistant" if number % 2 else "user", content=f"said <i>{number}</i>.",
                           at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)))
    page = opened(butler, "/chat?conversation=long", permissions=["clipboard-read", "clipboard-write"])
    bubbles, shown = page.locator(".bubble"), page.locator("#talk .pager .number")
    search = page.get_by_label("Search in this conversation")
    expect(bubbles).to_have_count(100)
    expect(bubbles.last).to_contain_text("said <i>249</i>.")
    expect(page.locator("#talk")).to_contain_text("150 earlier messages")
    expect(page.locator("#talk .zone")).to_contain_text("UTC")
    page.get_by_role("button", name="Older").click()
    expect(shown).to_have_text("51–150 of 250")
    expect(bubbles.first).to_contain_text("said <i>50</i>.")
    page.get_by_role("button", name="Oldest").click()
    expect(bubbles.first).to_contain_text("said <i>0</i>.")
    page.get_by_role("button", name="Copy this page").click()
    expect(page.locator("#toast")).to_have_text("Copied.")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("## You, 2026-01-01T00:00:00Z\n\nsaid <i>0</i>.\n\n## Butler, ") and "<i>99<" in copied
    search.fill("SAID 123")
    expect(bubbles).to_have_count(1)
    expect(bubbles).to_contain_text("said <i>123</i>.")
    search.fill("no such words")
    expect(page.locator("#talk")).to_contain_text("Nothing matches.")
    search.fill("")
    expect(shown).to_have_text("live")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download all of it").click()
    assert waiting.value.suggested_filename == "chat-long.md"
    waiting.value.save_as(tmp_path / "all")
    assert (tmp_path / "all").read_text().count("\n\nsaid <i>") == 250
    search.fill("SAID 5")
    expect(shown).to_have_text("1–43 of 43")
    ask(page, "What needs me?")
    expect(page.locator('[data-testid="message-complete"]')).to_contain_text("One agent died and came back.")
    expect(shown).to_have_text("live")
    expect(search).to_have_value("")
    expect(bubbles.nth(99)).to_contain_text("said <i>249</i>.")
