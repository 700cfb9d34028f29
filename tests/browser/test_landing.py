"""The page while work waits to land: review of a node, approval and rejection, and the two queues of one run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from real_texts import ANSWERS, CHINESE, TITLE
from served_run import WORK, Served

from support import Place, checkout_in, git, wait_for

BRANCH = "garrison/r1/integration"
GRAPH = r"""
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
def run(template: Path, tmp_path: Path) -> Iterator[Served]:
    """A run whose only node waits for approval, with two queues."""
    shutil.copytree(template, checkout_in(tmp_path), symlinks=True)
    made = Served(Place(tmp_path))
    (tmp_path / "web.dot").write_text(GRAPH.replace("TITLE", TITLE))
    try:
        made.place.launch(tmp_path / "web.dot", "r1", gate="test -f calc.py")
        wait_for("a run to serve", made.place.journal)
        made.serve()
        wait_for("the work waits for approval", lambda: made.asked("/api/runs/r1")["gates"])
        yield made
    finally:
        left = made.end()
    assert not left, left


def test_work_is_reviewed_rejected_approved_and_its_queue_paused_on_the_page(run: Served, opened: Any) -> None:
    page = opened(run.url)
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

    first = run.asked("/api/runs/r1")["gates"][0]["gate"]
    card.get_by_label("Reason for its next attempt").fill(f"count from two: {ANSWERS[2]} {CHINESE}")
    card.get_by_role("button", name="Reject").click()
    expect(card).to_contain_text("Land attempt 2 (", timeout=WORK)
    card.get_by_role("button", name="See changes").click()
    expect(changes).to_contain_text("attempt 2 at ")
    page.keyboard.press("Escape")

    page.watch.allowed.append("status of 4")
    late = page.evaluate(APPROVE, f"runs/r1/gates/{first}")
    assert "attempt 1 of work cannot land any more: it is rejected" in late["message"], late
    assert run.place.nodes()["work"]["status"] == "impl_complete", "the second attempt was not approved for the first"

    queue = page.locator("#queue")
    paused = run.place.command("merge-queue", "pause", "--repo-root", run.place.repo, "--target", BRANCH)
    assert paused.returncode == 0, paused.stderr
    expect(queue).to_contain_text(f"Paused, {BRANCH}")  # of the two, that of the run's own branch
    queue.get_by_role("button", name="Resume the merge queue").click()
    expect(queue.locator("p.why")).to_be_hidden()
    queue.get_by_role("button", name="Pause the merge queue").click()
    expect(queue).to_contain_text(f"Paused, {BRANCH}")
    card.get_by_role("button", name="Approve").click()
    page.locator("dialog.ask").get_by_role("button", name="Approve").click()
    expect(queue.locator(".entries .kind").first).to_have_text("queued")
    queue.get_by_role("button", name="Resume the merge queue").click()
    expect(page.locator('svg .node[data-node="work"]')).to_have_class(re.compile("s-landed"), timeout=WORK)
    wait_for("the run ends", lambda: run.place.status() == "done")
    assert git(run.place.repo, "show", "main:work.txt") == "2"
    assert f"count from two: {ANSWERS[2]} {CHINESE}" in git(run.place.repo, "show", "main:told.txt")
