"""Changes of a node on the page: hostile work is shown and reviewed, comments reach the next attempt, queues pause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from real_texts import ANSWERS, CHINESE, EMOJI, TITLE, TRACEBACK
from served_run import WORK, Served, served_place

from support import git, landed_subjects, wait_for

GRAPH = r"""
digraph web {
  flow=dag
  start [shape=Mdiamond]; exit [shape=Msquare]
  work [shape=box, approve=true, label="TITLE", acceptance="test -f calc.py && echo fine", command="python3 WORK"]
  bad [shape=box, label="EMOJI", command="test -f FIXED || { cat TRACE; exit 3; }; echo 1 > bad.txt"]
  ask [shape=hexagon, label="CHINESE"]
  start -> work -> exit; start -> bad -> ask; start -> ask
  ask -> exit [label="[Y] LONG"]; ask -> exit [label="[N] No"]
}
"""
FILE = "用分计算 🧮.py"
HOSTILE = '<script>alert(1)<script>\x1b[2J\u202egpj.py'
SCRIPT = r"""
import os, pathlib, re, shutil
path, attempt = pathlib.Path, os.environ["GARRISON_ATTEMPT"]
path("calc.py").write_text(path("calc.py").read_text() + "# attempt " + attempt + "\nevil = '\x1b]0;t\x07\u202e'\n")
path(NAME).write_text("x")
path(FILE).write_text("# " + NOTE * 20 + "\n")
path("long.js").write_text("var x = '" + "y" * 1_000_000 + "';\n")
path("data.bin").write_bytes(bytes(range(256)))
shutil.copy(os.environ["GARRISON_PROMPT_FILE"], "told.txt")
answers = re.search("write into `([^`]+)`", path("told.txt").read_text())
answers and path(answers[1]).write_text("## comment-1\nNot changed, because \x1b[2J it counts.\n")
for at in range(FILES):
    path(f"f{at}.txt").write_text("x\n")
"""


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """Yield a run whose work waits for approval; the parameter is a number of files that it adds."""
    with served_place(tmp_path) as made:
        work, trace, graph = (made.place.root / name for name in ("work.py", "trace", "web.dot"))
        meant = {"NAME": repr(HOSTILE), "FILES": str(getattr(request, "param", 0)), "FILE": repr(FILE),
                 "NOTE": repr(f"{CHINESE} {EMOJI} ")}
        work.write_text(re.sub(rf"\b(?:{'|'.join(meant)})\b", lambda found: meant[found[0]], SCRIPT))
        trace.write_text(TRACEBACK)
        texts = {"WORK": str(work), "FIXED": str(made.place.root / "fixed"), "TRACE": str(trace), "TITLE": TITLE,
                 "EMOJI": EMOJI, "CHINESE": CHINESE, "LONG": ANSWERS[2]}
        graph.write_text(re.sub(rf"\b(?:{'|'.join(texts)})\b", lambda found: texts[found[0]], GRAPH))
        made.launch(graph, "--max-rework", "1", gate="test -f calc.py")
        wait_for("the work waits for approval", lambda: made.get("/api/runs/r1")["gates"])
        yield made


def test_hostile_work_is_reviewed_and_a_failure_retried_on_the_page(run: Served, opened: Any) -> None:
    page = opened(run.url)
    failed = page.locator(".card.w-failed")
    expect(failed).to_contain_text(TRACEBACK.strip().splitlines()[-1], timeout=WORK)
    expect(failed).not_to_contain_text("^^^")
    card = page.locator("#waits .card", has_text="Land attempt 1 (")
    expect(card.locator(".outcomes")).to_contain_text("work waiting for approval · ")
    card.get_by_role("button", name="See changes").click()
    changes = page.locator("#detail-changes")
    calc = changes.locator(".file", has_text="calc.py")
    expect(calc.locator("tr.add", has_text="evil")).to_contain_text("‹U+001B›]0;t‹U+0007›‹U+202E›")
    expect(changes).to_contain_text("<script>alert(1)<script>‹U+001B›[2J‹U+202E›gpj.py")
    expect(changes.locator(".file", has_text="long.js")).to_contain_text("characters more")
    expect(changes.locator(".file", has_text="data.bin")).to_contain_text("data, not text: 256 bytes")
    expect(changes.locator(".check").first).to_contain_text("acceptance: passed, exit code 0")
    expect(changes.locator(".file", has_text=FILE)).to_contain_text(CHINESE)
    assert len(changes.inner_text()) < 20_000, "long lines are cut"
    calc.get_by_role("button", name="Whole file").click()
    expect(calc.locator("tr.hunk")).to_have_count(1)
    expect(calc.get_by_role("button", name="Whole file")).to_have_count(0)
    line = calc.locator("tr.add", has_text="# attempt 1")
    line.get_by_role("button").focus()
    page.keyboard.press("Enter")
    calc.locator("tr.add", has_text="evil").get_by_role("button").focus()
    page.keyboard.press("Shift+Enter")
    form = changes.get_by_label(re.compile(r"Comment on lines \d+ to \d+"))
    form.fill(f"no comments like this\n{CHINESE} {EMOJI}")
    form.press("Control+Enter")
    note = changes.get_by_label("Note, or reason for its next attempt")
    note.fill("count in cents")
    changes.get_by_label("Viewed data.bin").check()
    expect(changes.locator(".file", has_text="data.bin")).not_to_have_attribute("open", "")
    page.reload()
    expect(changes.locator("tr.comment")).to_contain_text("no comments like this")
    expect(note).to_have_value("count in cents")
    expect(changes).to_contain_text("6 changed files, 1 viewed")
    far = changes.evaluate("element => { element.scrollTop = 150; return element.scrollTop; }")
    page.get_by_role("tab", name="Log").click()
    expect(changes).to_be_hidden()
    page.get_by_role("tab", name="Changes").click()
    expect(note).to_have_value("count in cents")
    assert changes.evaluate("element => element.scrollTop") == far > 0, "the scroll position is kept"
    changes.get_by_role("button", name="Reject with 1 comment").click()
    expect(changes).to_contain_text("attempt 2 at ", timeout=WORK)
    expect(changes.locator("tr.comment")).to_have_count(0)
    prompt = changes.locator(".file", has_text="told.txt")
    prompt.locator("summary").click() if prompt.get_attribute("open") != "" else None
    expect(prompt).to_contain_text("count in cents")
    expect(prompt).to_contain_text(re.compile(r"comment-1, calc\.py, lines \d+ to \d+:"))
    expect(prompt).to_contain_text("no comments like this")
    said = changes.locator(".said li")
    expect(said).to_contain_text("✓ answered")
    expect(said).to_contain_text("Not changed, because ‹U+001B›[2J it counts.")
    changes.get_by_label("Compared with").select_option("1")
    expect(changes.locator(".file")).to_have_count(2)  # calc.py and told.txt: the others are as they were
    changes.get_by_label("Compared with").select_option("0")
    expect(changes.locator(".file")).to_have_count(6)
    page.goto(page.url.partition("/?")[0] + "/?run=r1&node=work&tab=changes&attempt=1&comment=1-1")
    expect(said).to_be_focused()
    expect(changes.locator("tr.recorded")).to_contain_text("no comments like this")

    page.goto(page.url.partition("/?")[0] + "/?run=r1")
    (run.place.root / "fixed").touch()
    failed.get_by_role("button", name="Retry").click()
    page.locator("dialog.ask").get_by_role("button", name="Retry").click()
    expect(page.locator("#toast")).to_contain_text("bad is retried", timeout=WORK)
    asked = page.locator("#waits .card", has_text=CHINESE)
    expect(asked).to_be_visible(timeout=WORK)  # the gate after it
    asked.get_by_role("button", name="No", exact=True).click()
    expect(page.locator("#toast")).to_contain_text("answer recorded", timeout=WORK)

    page.locator("#waits .card", has_text="Land attempt 2 (").get_by_role("button", name="See changes").click()
    changes.get_by_role("button", name="Two columns").click()
    expect(changes.locator("table.split").first).to_be_visible()
    changes.get_by_role("button", name="Approve").click()
    dialog = page.locator("dialog.ask")
    expect(dialog).to_contain_text("Approve attempt 2 of work?")
    expect(dialog.get_by_role("button", name="Not now")).to_be_focused()
    page.keyboard.press("Enter")  # by accident
    expect(dialog).to_have_count(0)
    assert run.place.nodes()["work"]["status"] == "impl_complete"
    changes.get_by_role("button", name="Approve").click()
    dialog.get_by_role("button", name="Approve").click()
    expect(page.locator('svg .node[data-node="work"]')).to_have_class(re.compile("s-landed"), timeout=WORK)
    assert "# attempt 2" in git(run.place.repo, "show", "main:calc.py")
    expect(page.locator("#run-head .pill")).to_contain_text("done", timeout=WORK)
    expect(page.locator("#waits .card")).to_have_count(0)
    assert sorted(landed_subjects(run.place.repo, run.place.start)) == [
        f"Merge garrison/r1/{node} into main" for node in ("bad", "work")]


@pytest.mark.slow
@pytest.mark.parametrize("run", [10_000], indirect=True)
def test_ten_thousand_files_are_paged_and_the_page_stays_responsive(run: Served, opened: Any) -> None:
    page = opened(run.url, "/?run=r1&node=work&tab=changes")
    changes = page.locator("#detail-changes")
    expect(changes.locator(".file")).to_have_count(200)
    expect(changes).to_contain_text("10006 files")
    longest = page.evaluate("""async () => {
        const longest = { ms: 0 };
        const note = list => list.getEntries().forEach(one => { longest.ms = Math.max(longest.ms, one.duration); });
        new PerformanceObserver(note).observe({ type: "longtask", buffered: true });
        await new Promise(resolve => setTimeout(resolve, 100));
        return longest.ms;
    }""")
    assert longest < 2000, longest
    changes.get_by_role("button", name=re.compile("More files")).click()
    expect(changes.locator(".file")).to_have_count(400)


BRANCH = "garrison/r1/integration"
QUEUES = r"""
digraph web {
  land=run; node_gate="test -f calc.py"
  start [shape=Mdiamond]; exit [shape=Msquare]
  work [shape=box, approve=true, label="TITLE",
        command="cp \"$GARRISON_PROMPT_FILE\" told.txt; echo $GARRISON_ATTEMPT > work.txt"]
  start -> work -> exit
}
"""

APPROVE = """async path => {
    const { act } = await import("/static/api.js");
    return act(path, { choice: "Approve" }).catch(problem => ({ message: problem.message }));
}"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Served]:
    """Yield a run whose only node waits for approval, with two queues."""
    with served_place(tmp_path) as made:
        (tmp_path / "web.dot").write_text(QUEUES.replace("TITLE", TITLE))
        made.launch(tmp_path / "web.dot", gate="test -f calc.py")
        wait_for("the work waits for approval", lambda: made.get("/api/runs/r1")["gates"])
        yield made


def test_work_is_reviewed_rejected_approved_and_its_queue_paused_on_the_page(held: Served, opened: Any) -> None:
    page = opened(held.url)
    card = page.locator("#waits .card")
    expect(card).to_contain_text("Land attempt 1 (")
    expect(page.locator("#queue .entries .kind").first).to_have_text("waiting for approval")
    expect(page.locator("#queue").get_by_role("button", name="Cancel: work")).to_be_visible()
    expect(page.locator("#queue").get_by_role("button", name="Release")).to_have_count(0)

    card.get_by_role("button", name="See changes").click()
    changes = page.locator("#detail-changes")
    expect(changes).to_contain_text("attempt 1 at ")
    expect(changes).to_contain_text("waiting for approval")
    expect(changes).to_contain_text("its command ended with exit code 0")
    expect(changes.locator(".file", has_text="work.txt").locator("tr.add")).to_contain_text("1")
    page.keyboard.press("Escape")  # it covers the card

    first = held.get("/api/runs/r1")["gates"][0]["gate"]
    card.get_by_label("Reason for its next attempt").fill(f"count from two: {ANSWERS[2]} {CHINESE}")
    card.get_by_role("button", name="Reject").click()
    expect(card).to_contain_text("Land attempt 2 (", timeout=WORK)
    card.get_by_role("button", name="See changes").click()
    expect(changes).to_contain_text("attempt 2 at ")
    page.keyboard.press("Escape")

    page.watch.allowed.append("status of 4")
    late = page.evaluate(APPROVE, f"runs/r1/gates/{first}")
    assert "attempt 1 of work cannot land any more: it is rejected" in late["message"], late
    assert held.place.nodes()["work"]["status"] == "impl_complete", "the second attempt was not approved for the first"

    queue = page.locator("#queue")
    paused = held.place.command("merge-queue", "pause", "--repo-root", held.place.repo, "--target", BRANCH)
    assert paused.returncode == 0, paused.stderr
    expect(queue).to_contain_text(f"Paused, {BRANCH}")  # the queue of the run's own branch
    queue.get_by_role("button", name="Resume the merge queue").click()
    expect(queue.locator("p.why")).to_be_hidden()
    queue.get_by_role("button", name="Pause the merge queue").click()
    expect(queue).to_contain_text(f"Paused, {BRANCH}")
    card.get_by_role("button", name="Approve").click()
    page.locator("dialog.ask").get_by_role("button", name="Approve").click()
    expect(queue.locator(".entries .kind").first).to_have_text("queued")
    queue.get_by_role("button", name="Resume the merge queue").click()
    expect(page.locator('svg .node[data-node="work"]')).to_have_class(re.compile("s-landed"), timeout=WORK)
    wait_for("the run ends", lambda: held.place.status() == "done")
    assert git(held.place.repo, "show", "main:work.txt") == "2"
    assert f"count from two: {ANSWERS[2]} {CHINESE}" in git(held.place.repo, "show", "main:told.txt")
