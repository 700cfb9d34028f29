"""The page of a run, on one real run: what it shows, its use by keyboard, and how it reconnects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from served_run import HOSTILE, WITHOUT_WORKER, WORK, Served, served_place

from support import git, wait_for


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_place(tmp_path_factory.mktemp("web")) as made:
        made.begin()
        yield made


def drawn(page: Page) -> Any:
    """Return the nodes of the graph, once they are there."""
    expect(page.locator("svg .node").first).to_be_visible()
    return page.locator("svg .node")


def timeline(page: Page) -> list[str]:
    """Return the ids of the timeline, as the page has it."""
    return page.locator("#list-timeline > li").evaluate_all("lines => lines.map(line => line.dataset.key)")


def test_a_task_without_an_agent_is_refused_and_a_command_cannot_be_changed(crew: Served, opened: Any) -> None:
    page = opened(crew.url)
    form = page.get_by_role("dialog")
    page.goto(f"{crew.home}/?run=r1")
    page.get_by_role("button", name="Add task").click()
    form.get_by_label("The task in words").fill("echo more")
    form.get_by_label("Starts").select_option("slow")
    page.watch.allowed.append("status of 409")
    form.get_by_role("button", name="Add").click()
    expect(page.locator(".toast")).to_contain_text("echo_more has no agent: pass --agent")
    page.goto(f"{crew.home}/?run=r1&node=land")
    expect(page.locator("#detail .pill")).to_contain_text("waiting")
    expect(page.get_by_role("button", name="Change", exact=True)).to_have_count(0)  # a command does it
    page.get_by_role("tab", name="Task", exact=True).click()
    expect(page.locator("#detail-task")).to_contain_text("touch land.txt")  # before it has started


def test_a_preview_has_its_own_origin_which_reaches_nothing_of_the_page(
        crew: Served, opened: Any, chromium: Any) -> None:
    page = opened(crew.url, "/?run=r1&node=slow")
    page.locator("#detail").get_by_role("button", name="Preview").click()
    page.get_by_role("dialog").get_by_role("button", name="Preview").click()
    link = page.locator("#detail a[href*='.localhost:']")
    expect(link).to_be_visible()
    other = chromium.new_context()
    try:
        shown = other.new_page()
        shown.goto(link.get_attribute("href"))
        expect(shown.get_by_role("heading")).to_contain_text("Directory listing")
        answers = shown.evaluate("""async page => [
            await fetch(`${page}/api/runs`).then(() => "read", () => "refused"),
            await fetch("/").then(answer => answer.status),
            sessionStorage.length, document.cookie]""", crew.home)
        assert answers == ["refused", 200, 0, ""]
    finally:
        other.close()


@pytest.mark.smoke
def test_the_page_shows_working_waiting_and_failed_nodes(crew: Served, opened: Any) -> None:
    page = opened(crew.url)
    assert "token" not in page.url
    drawn(page)
    states = {"slow": "working", "fast": "landed", "bad": "failed", "ask": "asking", "land": "waiting"}
    for node, state in states.items():
        expect(page.locator(f'svg .node[data-node="{node}"]')).to_have_class(re.compile(rf"\bs-{state}\b"))
    expect(page.locator('[data-testid="agent-rail"] .active')).to_have_attribute("data-agent", "orchestrator-slow")
    expect(page.locator('[data-testid="agent-rail"] .active .doing')).to_have_text("begun")
    expect(page.locator('[data-testid="agent-rail"] .active .far')).to_have_text("nothing changed yet")
    expect(page.locator("#rail-crew")).not_to_contain_text("pid")
    page.get_by_role("tab", name="Machine").click()
    expect(page.locator('#rail .process[data-key="orchestrator-slow"]')).to_contain_text("pid")
    page.get_by_role("tab", name="Agents").click()
    cards = page.locator("#waits .card")
    expect(cards).to_have_count(2)
    expect(cards.nth(0)).to_contain_text("Land the rounding rule?")
    expect(cards.nth(0).get_by_role("button", name="Yes, land it")).to_be_visible()
    expect(cards.nth(1)).to_contain_text("(exit 3)")
    expect(page).to_have_title("(2) r1 · garrison")
    assert "2%3C%2Ftext" in page.locator("#favicon").get_attribute("href")
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.locator("#queue")).to_contain_text("fast")
    signs = dict(page.locator("svg .node").evaluate_all(
        "nodes => nodes.map(node => [node.dataset.node, node.querySelector('.sign').textContent])"))
    assert len({signs["slow"][0], signs["fast"], signs["bad"], signs["ask"], signs["land"]}) == 5, "not by colour alone"
    names = page.locator("svg .node").evaluate_all("nodes => nodes.map(node => node.getAttribute('aria-label'))")
    assert any("failed" in name and "(exit 3)" in name for name in names)


def test_a_node_without_an_agent_is_passed_once_a_later_node_has_started(crew: Served, opened: Any) -> None:
    """Forks and joins have no status of their own; a way back into a loop proves nothing."""
    page = opened(crew.url)
    ways = {"start": ["fan"], "fan": ["a", "b"], "a": ["join"], "b": ["join"], "join": ["both"], "both": ["fan", "c"],
            "c": ["end"]}
    nodes = {"start": {"shape": "Mdiamond"}, "fan": {}, "a": {"place": "working"}, "b": {"place": "waiting"},
             "join": {}, "both": {}, "c": {"place": "waiting"}, "end": {"shape": "Msquare"}}
    state = {"status": "running", "gates": [], "next": ways,
             "nodes": {name: {"node": name, "shape": "", **node} for name, node in nodes.items()}}
    look = """async state => {
        const { shown } = await import("/static/state.js");
        return ["fan", "join", "both"].map(name => shown(state, state.nodes[name]));
    }"""
    assert page.evaluate(look, state) == ["passed", "waiting", "waiting"]
    state["nodes"]["c"]["place"] = "working"
    assert page.evaluate(look, state) == ["passed", "passed", "passed"]
    state["nodes"]["c"]["place"] = state["nodes"]["a"]["place"] = "waiting"
    assert page.evaluate(look, state) == ["waiting", "waiting", "waiting"]


def test_a_node_in_detail_with_its_log_that_follows(crew: Served, opened: Any) -> None:
    page = opened(crew.url, "/?run=r1&node=bad")
    detail = page.locator("#detail")
    expect(detail.locator(".attempts")).to_contain_text("it is red")
    expect(detail.locator("ol.why li").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(detail).to_be_hidden()
    page.locator('svg .node[data-node="slow"]').click()
    page.get_by_role("tab", name="Log").click()
    expect(detail.locator(".log")).to_contain_text("begun")
    page.get_by_role("tab", name="Task").click()
    expect(detail).to_contain_text("git commit -qm m")


def test_by_keyboard_alone(crew: Served, opened: Any) -> None:
    page = opened(crew.url)
    drawn(page)
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to what waits for you")
    page.keyboard.press("g")
    expect(page.locator(":focus")).to_have_attribute("data-node", "start")
    walked = {"start"}
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
        walked.add(page.evaluate("document.activeElement.dataset.node"))
    assert len(walked) >= 3 and None not in walked
    here = page.evaluate("document.activeElement.dataset.node")
    page.keyboard.press("Enter")
    expect(page.locator("#detail-title")).to_be_focused()
    expect(page.locator("#detail-title")).to_have_text(here)
    page.keyboard.press("Escape")
    expect(page.locator(f'svg .node[data-node="{here}"]')).to_be_focused()
    page.keyboard.press("t")
    lines = page.locator("#list-timeline button")
    expect(lines.first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(lines.nth(1)).to_be_focused()
    expect(page.locator('#list-timeline button[tabindex="0"]')).to_have_count(1)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("go to what waits for you")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Stop", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Stop this run gracefully?")
    expect(page.get_by_role("button", name="Not now")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("w")
    assert page.evaluate("document.activeElement.closest('section').id") == "waits"


def test_every_control_has_a_name_and_every_text_enough_contrast(crew: Served, opened: Any) -> None:
    page = opened(crew.url, "/?run=r1&node=bad", reduced_motion="reduce")
    drawn(page)
    expect(page.locator("#detail .attempts")).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate((Path(__file__).parent / "audit.js").read_text()) == [], scheme


def test_a_phone_shows_it_without_scrolling_sideways(crew: Served, opened: Any) -> None:
    page = opened(crew.url, width=360, height=740)
    for path in ("/?run=r1", "/?run=r1&node=fast", "/chat"):
        page.goto(crew.home + path)
        expect(page.locator('[data-testid="agent-rail"]')).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 360, path
        cut = page.locator("button:visible, a:visible").evaluate_all(
            "all => all.filter(one => !one.closest('.skip, svg, .agents') && one.getBoundingClientRect().right > 361)"
            ".map(one => one.outerHTML)")
        assert cut == [], path


def test_output_of_agents_and_graphs_stays_text(crew: Served, opened: Any) -> None:
    """Labels, goals, logs as the run has them; markup in branches, reasons, questions and transcripts, which no run can
    have, is put into the answers of the server."""
    hostile = [HOSTILE, "<script>alert(2)</script>", '"><svg onload=alert(3)>', "javascript:alert(4)", "</title><b>x"]

    def poisoned(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: poisoned(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [poisoned(one, key) for one in value]
        texts = ("text", "reason", "branch", "question", "label", "doing", "goal", "detail", "why", "type", "source",
                 "tail", "prompt", "command", "how", "phase", "agent", "hint")
        return value + "".join(hostile) if isinstance(value, str) and key in texts else value

    page = opened(crew.url, "/chat")
    page.add_init_script(WITHOUT_WORKER)
    entry = {"id": "e1", "node": "fast", "branch": "garrison/r1/x", "state": "queued", "position": 1, "since": "",
             "priority": 0, "detail": "", "tests": 0, "attempt": 1}
    queue = {"paused": True, "reason": "p", "entries": [entry]}
    shown = poisoned({**crew.get("/api/runs/r1"), "hint": "h", "queue": queue})
    shown["dot"] = shown["dot"].replace("Audit", "Audit&lt;" + "".join(hostile).replace('"', '\\"'))
    blocks = [{"role": "assistant", "kind": kind, "name": HOSTILE, "text": "".join(hostile), "at": "", "error": False}
              for kind in ("text", "thinking", "tool_use", "tool_result", "result", "note", "__proto__")]
    begin = f"retry: 60000\nevent: snapshot\nid: {shown['id']}\ndata: {json.dumps(shown)}\n\n"
    page.route("**/api/events?*", lambda route: route.fulfill(content_type="text/event-stream", body=begin))
    page.route("**/nodes/*", lambda route: route.fulfill(json=poisoned(route.fetch().json())))
    page.route("**/transcript?*", lambda route: route.fulfill(json={"blocks": blocks, "next": 1, "more": False}))
    page.goto(crew.home + "/?run=r1&node=fast")
    drawn(page)
    expect(page.locator("#detail ol.why li").first).to_be_visible()
    for tab in ("Task", "Log", "Transcript"):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(f"#detail-{tab.lower()}")).to_contain_text(HOSTILE)
    expect(page.locator(".log")).not_to_contain_text("javascript")
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Signals").click()
    expect(page.locator("#waits")).to_contain_text(HOSTILE)
    assert page.evaluate("""[...document.querySelectorAll("main *, aside *")].filter(one =>
        /^(img|script|iframe|object|a|style|use|image|foreignObject)$/i.test(one.localName)
        || [...one.attributes].some(each => /^(on|xlink|href)/i.test(each.name))).map(one => one.outerHTML)""") == []


NATURAL = "größe 日本 שלום \u06c1\u200c\u06c1 👩\u200d💻 \t<b>\n"
LEGIBLE = {
    NATURAL: NATURAL, "x" * 9: "x" * 9, "z" + "\u0300" * 50: "z" + "\u0300" * 4,
    "\x1b[1;31mred\x1b[0m \x1b]8;;javascript:x\x07link\x1b]8;;\x1b\\ \x9b2Jgone": "red link gone",
    "evil\u202egnp.exe\u2066": "evil‹U+202E›gnp.exe‹U+2066›", "ad\u200dmin\u200b": "ad‹U+200D›min‹U+200B›",
    "\0\x07\x1b": "‹U+0000›‹U+0007›‹U+001B›", "9%\r99%\r\nend\u2028": "9%\n99%\nend\n", "\U000e0041": "‹U+E0041›",
}
NAMES = {"garrison/r1/a": "garrison/r1/a", "größe/оплата": "größe/оплата", "feature/p\u0430y": "feature/p‹U+0430›y",
         "\u0441\u043e\u0440": "‹U+0441›‹U+043E›‹U+0440›"}


def test_texts_are_made_legible(crew: Served, opened: Any) -> None:
    page = opened(crew.url)
    both = r"""async ([texts, names]) => {
        const { legible, legibleName, unfinished } = await import("/static/legible.js");
        const start = performance.now();
        legible(`${"A".repeat(1e6)}\u202e\x1b[31m${"\u0301\u200b".repeat(1e5)}`);
        return [texts.map(legible), names.map(legibleName), texts.map(legible).map(legible),
            ["a\x1b[3", "a\r", "a\x1b]0;t", "a\x1b[3m"].map(unfinished), performance.now() - start];
    }"""
    shown, names, twice, rest, spent = page.evaluate(both, [list(LEGIBLE), list(NAMES)])
    assert shown == list(LEGIBLE.values()) == twice and names == list(NAMES.values())
    assert rest == ["\x1b[3", "\r", "\x1b]0;t", ""]
    graph = 'digraph { a [label="x\x1b[\\"31m\u202ey\x1b["]; b [label="\\\\"]; a -> b }'
    drawn_as = page.evaluate('text => import("/static/legible.js").then(found => found.legibleGraph(text))', graph)
    assert drawn_as == graph.replace("\x1b[", "").replace("\u202e", "‹U+202E›"), "its grammar is kept"
    assert page.evaluate('import("/static/legible.js").then(found => found.legible("\\ud800half"))') == "\ufffdhalf"
    assert spent < 5000, "of a megabyte"


def test_the_page_misses_nothing_while_the_server_is_dead(crew: Served, opened: Any) -> None:
    page, alone = opened(crew.url), opened(crew.url)
    for each in (page, alone):
        each.watch.allowed.append(
            "ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET")
    asked: list[dict[str, str]] = []
    alone.on("request", lambda request: "/api/events" in request.url and asked.append(request.all_headers()))
    alone.add_init_script(WITHOUT_WORKER)
    alone.reload()
    drawn(page)
    drawn(alone)
    expect(page.locator("#link")).to_have_text("Live")
    before, place = timeline(page), page.locator("#link").bounding_box()
    crew.kill()
    expect(page.locator("#link")).to_have_text("Reconnecting…")
    assert page.locator("#link").bounding_box() == place, "nothing moves"
    life = crew.place.identity("orchestrator-slow")["incarnation"]
    crew.place.kill("orchestrator-slow", incarnation=life)
    crew.place.wait_until_held("slow")
    crew.restart()
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.locator('svg .node[data-node="slow"] .sign')).to_contain_text("↻1")
    expect(alone.locator('svg .node[data-node="slow"] .sign')).to_contain_text("↻1")
    wait_for("the pages have the server's timeline", lambda: timeline(page)[::-1] == timeline(alone)[::-1] == [
        line["id"] for line in crew.get("/api/runs/r1")["timeline"] if not line["minor"]])
    assert len(timeline(page)) > len(before) and len(set(timeline(page))) == len(timeline(page))
    assert {"death", "respawn"} <= {line["kind"] for line in crew.get("/api/runs/r1")["timeline"]}
    expect(page.locator("#list-timeline")).to_contain_text("died")
    page.goto(f"{crew.home}/?run=r1&node=slow")
    expect(page.locator("#detail .attempts")).to_contain_text("Its agent was restarted after it died at")
    expect(page.locator("#detail .why").first).to_contain_text("its agent continues attempt 1 where it left off")
    for words in ("incarnation", "runner-slow", "orchestrator-slow", "merge entry"):
        expect(page.locator("#detail")).not_to_contain_text(words, use_inner_text=True)
    page.get_by_text("Records of its processes").click()
    expect(page.locator("#detail details .why")).to_contain_text("agent: incarnation 1 died in attempt 1")
    assert any(headers.get("last-event-id") for headers in asked), "the browser sent its last event"


def test_a_gate_is_answered_from_the_page(crew: Served, opened: Any) -> None:
    page = opened(crew.url)
    drawn(page)
    page.keyboard.press("w")
    expect(page.locator("#waits .card .name").first).to_be_focused()  # w and Enter must answer nothing
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Yes, land it")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#waits .card")).to_have_count(1, timeout=WORK)
    expect(page.locator('svg .node[data-node="land"]')).to_have_class(re.compile("s-landed"), timeout=WORK)
    crew.place.release("slow")
    expect(page.locator('svg .node[data-node="slow"]')).to_have_class(re.compile("s-landed"), timeout=WORK)
    expect(page.locator("#announcements")).not_to_be_empty()
    expect(page.locator("#run-head .far")).to_have_text("3 of 4")


def test_a_task_is_started_and_run_again(crew: Served, opened: Any) -> None:
    page = opened(crew.url, "/")
    page.get_by_role("button", name="New task").click()
    form = page.get_by_role("dialog")
    form.get_by_label("The task in words").fill("-- write 'x' down")
    form.get_by_label("Command that does it").fill("echo x > x.txt; git add -A; git commit -qm x")
    form.get_by_label("Gate").fill("true")
    form.get_by_label("Budget in US dollars").fill("none of it")
    form.get_by_role("button", name="Start").click()
    form.get_by_role("button", name="Change it").click()  # the form keeps what was filled in
    form.get_by_label("Budget in US dollars").fill("")
    form.get_by_role("button", name="Start").click()
    expect(form.locator("pre")).to_contain_text("'--command=echo x > x.txt")
    page.wait_for_url("**/?run=write-x-down-1*", timeout=WORK)
    expect(page.locator(".run-id .pill")).to_contain_text("done", timeout=WORK)
    assert (crew.place.repo / "x.txt").exists() or crew.place.git("show", "main:x.txt").strip() == "x"
    page.get_by_role("button", name="Run again").click()
    page.wait_for_url("**/?run=write-x-down-2*", timeout=WORK)


def test_a_goal_is_planned_after_a_question_approved_and_done(crew: Served, opened: Any) -> None:
    """Before approval there is no run; the planner's answer stays text."""
    crew.place.plan({"questions": ["Which colour?"]}, {"tasks": [
        {"name": "one", "title": HOSTILE, "prompt": "write one", "files": ["one.txt"]},
        {"name": "two", "title": "Two", "prompt": "write two", "files": ["two.txt"], "command": "touch /tmp/x"}]})
    page = opened(crew.url, "/")
    page.get_by_role("button", name="New task").click()
    form = page.get_by_role("dialog")
    form.get_by_label("A goal").check()
    form.get_by_label("The goal in words").fill("one and two")
    form.get_by_label("Agent").select_option("writer")
    form.get_by_label("Gate").fill("true")
    form.get_by_role("button", name="Start").click()
    form.get_by_label("Which colour?").fill("teal", timeout=WORK)
    form.get_by_role("button", name="Answer").click()
    expect(form.locator("tbody tr")).to_have_count(3, timeout=WORK)
    expect(form.locator("tbody")).to_contain_text(HOSTILE)
    expect(form.locator(".trouble-line")).to_contain_text("'touch /tmp/x' is not among commands of [plan]")
    form.get_by_role("tab", name="Graph").click()
    expect(form.locator(".plan-graph g.node")).to_have_count(5)
    text = form.locator("textarea.dot")
    as_it_was = text.input_value()
    text.fill(as_it_was.replace("two -> check_goal", "two -> nowhere"))
    expect(form.locator("#plan-graph .trouble-line").first).to_contain_text("nowhere")
    expect(form.get_by_role("button", name="Use this graph")).to_be_disabled()
    text.fill(as_it_was.replace("start -> two", "one -> two").replace("label=Two", 'label="The second"'))
    expect(form.locator(".plan-graph")).to_contain_text("The second")
    form.get_by_role("button", name="Use this graph").click()
    expect(form.locator("tbody tr", has_text="The second")).to_contain_text("one", timeout=WORK)
    assert not list((crew.place.home / "runs").glob("one-and-two*"))
    form.get_by_role("button", name="Start").click()
    page.wait_for_url("**/?run=one-and-two-*", timeout=WORK)
    expect(page.locator(".run-id .pill")).to_contain_text("done", timeout=WORK)


def test_a_plan_from_a_terminal_runs_as_one_task_and_a_lesson_is_kept(crew: Served, opened: Any) -> None:
    place = crew.place
    place.plan({"tasks": [{"name": "solo", "title": "Solo", "prompt": "write one", "files": ["solo.txt"]}]})
    planned = place.command("plan", "write one", "--agent", "writer", "--target-dir", place.repo)
    assert planned.returncode == 3, planned.stderr
    with (place.home / "config.toml").open("a") as config:
        config.write('[launch]\nagent = "writer"\ngate = "true"\n')
    page = opened(crew.url, "/")
    plans = page.locator("#plans")
    expect(plans).to_contain_text("waits for approval", timeout=WORK)
    plans.get_by_role("button", name="Continue").click()
    page.get_by_role("dialog").get_by_role("button", name="Run without the check").click(timeout=WORK)
    page.wait_for_url("**/?run=write-one-*", timeout=WORK)
    expect(page.locator(".run-id .pill")).to_contain_text("done", timeout=WORK)
    assert not place.command("status", page.url.partition("run=")[2].partition("&")[0]).stdout.count("check_goal")

    graph = place.root / "forgetful.dot"
    graph.write_text("digraph f { land=node; start [shape=Mdiamond]; exit [shape=Msquare]; start -> note -> exit; "
                     'note [command="test $GARRISON_ATTEMPT -lt 3 || touch ok; echo x>>x", acceptance="test -f ok"]; }')
    place.finish(place.launch(graph, "forgetful", gate="true"))
    page.goto(f"{crew.home}/")
    expect(page.get_by_role("button", name="Show what kept sending work back")).to_be_visible(timeout=WORK)
    expect(plans).to_have_count(0)
    page.get_by_role("button", name="Show what kept sending work back").click()
    page.locator("#lessons").get_by_role("button", name="Keep in AGENTS.md").click(timeout=WORK)
    expect(page.locator("#lessons")).to_contain_text("kept", timeout=WORK)
    assert "run `test -f ok`" in git(place.repo, "show", "main:AGENTS.md")
    page.locator("#lessons").get_by_role("button", name="Drop").click()
    expect(page.locator("#lessons")).to_contain_text("No refusal has come twice", timeout=WORK)
    assert git(place.repo, "show", "main:AGENTS.md") == ""


@pytest.mark.slow
def test_candidates_are_compared_side_by_side_and_the_chosen_one_lands(crew: Served, opened: Any) -> None:
    graph = crew.place.root / "best.dot"
    graph.write_text("digraph best { land=node; start [shape=Mdiamond]; exit [shape=Msquare]; start -> fix -> exit; "
                     'fix [command="echo $GARRISON_NODE > who.txt", best_of=2]; }')
    crew.place.launch(graph, "best", gate="true")
    page = opened(crew.url, "/?run=best")
    page.get_by_role("button", name="Compare side by side").click(timeout=WORK)
    dialog = page.get_by_role("dialog")
    for letter in "ab":
        expect(dialog.get_by_role("region", name=f"fix__{letter}")).to_contain_text(f"fix__{letter}")
        expect(dialog.get_by_role("region", name=f"fix__{letter}").locator(".files")).to_contain_text("who.txt")
    dialog.get_by_role("button", name="Close", exact=True).click()
    page.locator("#waits").get_by_role("button", name="fix__b", exact=True).click()
    expect(page.locator(".run-id .pill")).to_contain_text("done", timeout=WORK)
    assert git(crew.place.repo, "show", "main:who.txt") == "fix__b"
    page.goto(f"{crew.home}/")
    page.get_by_role("button", name="Show what kept sending work back").click()
    expect(page.locator("#lessons")).to_contain_text("No refusal has come twice", timeout=WORK)
