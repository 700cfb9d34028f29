"""Ten tasks of a real run, reviewed and landed on the page alone; one is sent back with a comment, one is retried."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from real_texts import ANSWERS, LABELS, TITLE
from served_run import WORK, Served

from support import Place, checkout_in, git, landed_subjects, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TASKS = [f"task_{number:02}" for number in range(10)]
SENT_BACK, RETRIED, ASKED = TASKS[2], TASKS[5], TASKS[9]
WORKS = (r'echo \"$GARRISON_NODE $GARRISON_ATTEMPT\" > $GARRISON_NODE.txt; '
         r'cp \"$GARRISON_PROMPT_FILE\" $GARRISON_NODE.told')


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Iterator[Served]:
    """A run of ten tasks: nine wait for approval or fail, one waits behind a question."""
    shutil.copytree(template, checkout_in(tmp_path), symlinks=True)
    made = Served(Place(tmp_path))
    lines = ["digraph tasks { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare]",
             'ask [shape=hexagon, label="TITLE"]'.replace("TITLE", TITLE)]
    for number, task in enumerate(TASKS):
        label = LABELS[number % len(LABELS)]
        first = "test $GARRISON_ATTEMPT != 1 || { echo no network; exit 3; }; " if task == RETRIED else ""
        more = ", rework=none" if task == RETRIED else ""
        lines.append(f'{task} [shape=box, approve=true, label="{label}", command="{first}{WORKS}"{more}]')
        lines.append(f"{task} -> exit")
        lines.append(f'ask -> {task} [label="[Y] {ANSWERS[2]}"]' if task == ASKED else f"start -> {task}")
    graph = tmp_path / "tasks.dot"
    graph.write_text("\n".join([*lines, 'start -> ask; ask -> exit [label="[N] No"] }']))
    try:
        made.place.launch(graph, "r1", "--max-agents", "10", gate="test -f calc.py")
        wait_for("a run to serve", made.place.journal)
        made.serve()
        yield made
    finally:
        left = made.end()
    assert not left, left


def test_ten_tasks_are_reviewed_and_landed_on_the_page_alone(run: Served, opened: Any) -> None:
    page = opened(run.url)
    changes, cards = page.locator("#detail-changes"), page.locator("#waits .card")

    def look_at(task: str, attempt: int) -> None:
        card = cards.filter(has=page.get_by_role("button", name=task, exact=True), has_text=f"Land attempt {attempt} (")
        expect(card).to_be_visible(timeout=WORK)
        card.get_by_role("button", name="See changes").click()
        work = changes.locator(".file", has=page.locator(".path", has_text=f"{task}.txt"))
        expect(work.locator("tr.add")).to_contain_text(f"{task} {attempt}", timeout=WORK)

    def approve(task: str, landed: int, attempt: int = 1) -> None:
        look_at(task, attempt)
        changes.get_by_role("button", name="Approve").click()
        page.locator("dialog.ask").get_by_role("button", name="Approve").click()
        expect(page.locator("#run-head .far")).to_have_text(f"{landed} of 10", timeout=WORK)
        page.keyboard.press("Escape")

    asked = cards.filter(has_text="Rewrite every caller")
    expect(asked).to_be_visible(timeout=WORK)
    asked.get_by_role("button", name="Keep the old rule").click()
    expect(page.locator("#toast")).to_contain_text("answer recorded", timeout=WORK)
    failed = cards.filter(has=page.get_by_role("button", name=RETRIED, exact=True), has_text="no network")
    expect(failed).to_be_visible(timeout=WORK)
    failed.get_by_role("button", name="Retry").click()
    page.locator("dialog.ask").get_by_role("button", name="Retry").click()
    expect(page.locator("#toast")).to_contain_text(f"{RETRIED} is retried", timeout=WORK)

    look_at(SENT_BACK, 1)
    changes.locator("tr.add", has_text=f"{SENT_BACK} 1").get_by_role("button").click()
    changes.locator("tr.editing textarea").fill("count from two")
    changes.get_by_role("button", name="Comment", exact=True).click()
    changes.get_by_role("button", name="Reject with 1 comment").click()
    page.keyboard.press("Escape")
    for landed, task in enumerate(TASKS, 1):
        approve(task, landed, 2 if task in (SENT_BACK, RETRIED) else 1)

    expect(page.locator("#run-head .pill")).to_contain_text("done", timeout=WORK)
    expect(cards).to_have_count(0)
    assert "count from two" in git(run.place.repo, "show", f"main:{SENT_BACK}.told")
    landed = landed_subjects(run.place.repo, run.place.start)
    assert sorted(landed) == [f"Merge garrison/r1/{task} into main" for task in TASKS]
