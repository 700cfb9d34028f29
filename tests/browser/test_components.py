"""Rules of every panel: text stays text and legible, nothing is stated before it is known, and input and focus survive
an update."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from real_texts import gate
from served_run import WITHOUT_WORKER, serving

from garrison.records.pull_request import GivenReview, PullRequestReports, ReportedCheck, reports_file
from garrison.records.record import encode
from top_support import HomeBuilder, home_builder

HOSTILE = r"""async () => {
    const { html, render } = await import("/static/view.js");
    const text = "a\u202eb\x1b[31m<b>", place = document.createElement("div");
    const data = JSON.parse('{"type":"b","props":{"dangerouslySetInnerHTML":{"__html":"<i>x</i>"}},"__v":1}');
    render(html`<p title=${text} aria-label=${text} placeholder=${text} ...${data.props}>${text}${[text, 7]}${data}</p>
        <a href="javascript:alert(1)">1</a><a href="//evil.example">2</a><a href="/?run=r1">3</a>`, place);
    const [p, ...links] = place.children;
    return { texts: [p.title, p.ariaLabel, p.getAttribute("placeholder"), p.textContent], inside: p.children.length,
        links: links.map(link => link.getAttribute("href")) };
}"""
LEGIBLE = "a‹U+202E›b<b>"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HomeBuilder, Any, str]]:
    folder: Path = tmp_path_factory.mktemp("components")
    with home_builder(folder) as builder, serving(folder) as url:
        guardian = builder.run("r1", "a", "b")
        yield builder, guardian, url
        guardian.close()


def test_text_is_made_legible_and_stays_text_in_every_component(home: Any, opened: Any) -> None:
    page = opened(home[2], "/chat")
    found = page.evaluate(HOSTILE)
    assert found["texts"] == [LEGIBLE, LEGIBLE, LEGIBLE, f"{LEGIBLE}{LEGIBLE}7"]
    assert found["inside"] == 0, "neither markup nor an object of a server's answer becomes an element"
    assert found["links"] == [None, None, "/?run=r1"]


def test_nothing_is_stated_before_the_first_data(home: Any, opened: Any) -> None:
    page = opened(home[2])
    page.add_init_script(WITHOUT_WORKER)

    page.route(re.compile(r"/api/(events|home|crew|conversations|runs/)"), lambda route: None)  # no answer comes
    for path in ("/", "/?run=r1", "/?run=r1&view=time", "/chat"):
        page.goto(home[2].partition("/?")[0] + path)
        expect(page.locator(".skeleton").first).to_be_visible()
        text = page.locator("main").inner_text() + "".join(page.locator("#run-head").all_inner_texts())
        assert not re.search(r"\b(no|nothing|none|0|running|done|failed)\b", text, re.IGNORECASE), (path, text)
        assert "".join(page.locator(".panel-head .number").all_inner_texts()) == "", path
    page.unroute_all(behavior="ignoreErrors")
    page.goto(home[2].partition("/?")[0] + "/?run=r1")
    expect(page.locator("#costs")).to_contain_text("Nothing has been spent.")
    expect(page.locator("#costs .disk")).to_have_text(re.compile(r"^On disk: [\d.]+ kB of records$"))
    expect(page.locator(".skeleton:visible")).to_have_count(0)


def test_a_half_written_answer_its_focus_and_the_scroll_position_survive_updates(home: Any, opened: Any) -> None:
    builder, guardian, url = home
    guardian.append("gate", gate("b", "What colour?"), builder.now())
    for number in range(40):
        again = {"node": "a", "status": "active", "attempt": 2, "reason": f"round {number}"}
        guardian.append("node", again, builder.now())
    page = opened(url, "/?run=r1", height=600)
    page.watch.allowed.append("status of 4")  # what the gate decides: there is no repository
    field = page.get_by_label("Answer to b")
    field.fill("half an ans")
    field.evaluate("field => field.setSelectionRange(4, 6)")
    body = page.locator("#story .body")
    expect(body).to_contain_text("round 39")
    body.evaluate("body => { body.scrollTop = 60; window.card = document.activeElement.closest('.card'); }")
    guardian.append("gate", gate("a", "And which size?"), builder.now())
    expect(page.get_by_label("Answer to a")).to_be_visible()
    expect(field).to_be_focused()
    expect(field).to_have_value("half an ans")
    assert field.evaluate("field => [field.selectionStart, field.selectionEnd]") == [4, 6]
    assert page.evaluate("window.card.isConnected") and body.evaluate("body => body.scrollTop") > 0


def test_long_answers_of_a_gate_stay_in_its_card_and_a_click_locks_all(home: Any, opened: Any) -> None:
    builder, guardian, url = home
    labels = ["Yes", "word " * 16, "x" * 80, "猫" * 300]
    guardian.append("gate", gate("b", "Which rule applies?", *map(str.strip, labels)), builder.now())
    page = opened(url, "/?run=r1")
    page.watch.allowed.append("status of")  # what the gate decides: there is no repository
    card = page.locator(".card.w-gate", has_text="Which rule applies?")
    for width in (320, 390, 768, 1024, 1440, 2560):
        page.set_viewport_size({"width": width, "height": 800})
        expect(card.locator(".choice")).to_have_count(len(labels))
        outside = card.evaluate("""card => [...card.querySelectorAll("button")].filter(one =>
            one.getBoundingClientRect().right > card.getBoundingClientRect().right
            || one.scrollWidth > one.clientWidth + 1)
            .map(one => one.textContent.slice(0, 20))""")
        assert not outside, width
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
    page.route("**/gates/**", lambda route: None if route.request.method == "POST" else route.continue_())
    card.get_by_role("button", name="Yes").click()
    for choice in card.locator(".choice").all():
        expect(choice).to_be_disabled()
    page.unroute_all(behavior="ignoreErrors")


def test_the_pull_request_shows_what_it_waits_for_and_links_only_to_its_forge(home: Any, opened: Any) -> None:
    builder, guardian, url = home
    page = opened(url, "/?run=r1")
    guardian.append("pull_request", {"state": "waiting for review", "number": 7, "node": "a",
                                     "url": "https://forge.example/o/n/pull/7"}, builder.now())
    panel = page.locator("#pull-request")
    for number in (0, 7):  # minor records are shown with all events
        guardian.append("pull_request", {"state": "waiting for review", "number": number}, builder.now())
    expect(panel).to_contain_text("It waits for review of #7.")
    expect(panel.locator(".pill")).to_have_class(re.compile("s-asking"))
    link = panel.get_by_role("link", name="#7")
    assert [link.get_attribute(name) for name in ("href", "target", "rel")] == [
        "https://forge.example/o/n/pull/7", "_blank", "noopener noreferrer"]
    expect(page.locator("#list-timeline li", has_text="pull request")).to_have_count(1)
    expect(panel.locator(".reports")).to_have_count(0)
    checks = [ReportedCheck(f"unit {number}", "passed") for number in range(6)]
    reports = PullRequestReports(
        (*checks, ReportedCheck("lint", "failed", "https://forge.example/jobs/1"),
         ReportedCheck("<b>", "pending", "javascript:1")),
        (GivenReview("eve", "approved", is_outdated=True), GivenReview("ann", "changes requested")))
    reports_file(builder.home / "runs/r1").parent.mkdir()
    reports_file(builder.home / "runs/r1").write_bytes(encode(reports))
    expect(panel.get_by_role("list", name="Reviews").get_by_role("listitem")).to_have_text([
        re.compile(r"eve\s+approved, an older commit"), re.compile(r"ann\s+changes requested")])
    expect(panel.get_by_role("listitem").filter(has_text="failed").get_by_role("link", name="lint")).to_have_attribute(
        "rel", "noopener noreferrer")
    expect(panel.get_by_role("listitem").filter(has_text="pending")).to_contain_text("<b>")
    expect(panel.get_by_text("unit 3")).to_be_hidden()
    expect(panel).to_contain_text("was sent back once")
    panel.get_by_text("6 checks passed").click()
    expect(panel.get_by_text("unit 3")).to_be_visible()
    expect(panel.get_by_role("button", name="Check the forge now")).to_have_count(0)  # no guardian lives
    builder.incarnation("guardian", "crew", "r1")
    with page.expect_request(lambda request: request.method == "POST") as asked:
        page.watch.allowed.append("status of")
        panel.get_by_role("button", name="Check the forge now").click()
    assert asked.value.post_data_json == {"action": "sync"}
    for width in (390, 1024):
        page.set_viewport_size({"width": width, "height": 800})
        expect(panel).to_be_visible()
    guardian.append("pull_request", {"state": "closed", "url": "javascript:alert(1)//x/"}, builder.now())
    expect(panel.get_by_role("button", name="Open another")).to_be_visible()
    expect(panel.get_by_role("link")).to_have_text(["lint"])  # a script is not a link


def test_the_chosen_attempt_is_in_the_address(home: Any, opened: Any) -> None:
    builder, guardian, url = home
    for attempt in (1, 2):
        (builder.home / f"runs/r1/nodes/a/{attempt}").mkdir(parents=True, exist_ok=True)
        guardian.append("node", {"node": "a", "status": "active", "attempt": attempt}, builder.now())
    page = opened(url, "/?run=r1&node=a&attempt=1")
    chosen = page.get_by_label("Attempt", exact=True)
    expect(chosen).to_have_value("1")
    chosen.select_option("2")
    expect(page).to_have_url(re.compile("attempt=2"))
    page.reload()
    expect(chosen).to_have_value("2")
    page.get_by_role("button", name="Close").click()
    expect(page).not_to_have_url(re.compile("attempt="))
