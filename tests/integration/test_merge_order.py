"""Order of entries that conflict, on real repositories: what waits together lands as much as possible."""

from __future__ import annotations

from pathlib import Path

import pytest
from merge_support import World, check, git

from garrison.merge.entry import EntryOptions

CLICK = Path(__file__).parents[2] / ".." / "shared" / "cooperbench" / "click"
LINES = [f"{number}\n" for number in range(10)]


def changed(node: str, *numbers: int) -> dict[str, str]:
    """Return the file of ten lines with these changed, for each node otherwise."""
    return {"lines.txt": "".join(f"{number} {node}\n" if number in numbers else line
                                 for number, line in enumerate(LINES))}


def test_an_entry_that_would_cost_two_goes_last_and_its_next_attempt_first(tmp_path: Path) -> None:
    world = World(tmp_path, gate=None)
    for node, numbers in (("a", (1, 8)), ("b", (1,)), ("c", (8,))):
        world.add(node, changed(node, *numbers), world.start)
    world.drain(until="blocked")
    assert world.statuses() == {"a": "conflict", "b": "landed", "c": "queued"}
    assert world.entry("c").waits_for == ("r", "a")
    world.branch("a", changed("a again", 1, 8), start=world.tip())
    world.enqueue("a", 2)  # it lost its place before: now it has its turn
    world.drain()
    assert (world.entry("a").status, world.entry("c").status) == ("landed", "conflict")
    check(world)


def test_a_priority_and_a_dependency_are_not_overruled(tmp_path: Path) -> None:
    world = World(tmp_path, gate=None)
    for node, numbers in (("a", (1, 8)), ("b", (1,)), ("c", (8,))):
        world.branch(node, changed(node, *numbers))
    world.queue.enqueue("r", "a", 1, "a", options=EntryOptions(priority=1))
    world.enqueue("b")
    world.enqueue("c")
    world.drain(until="blocked")
    assert world.statuses() == {"a": "landed", "b": "conflict", "c": "queued"}
    assert world.entry("c").waits_for == ("r", "b")
    check(world)


@pytest.mark.skipif(not CLICK.exists(), reason="the features of click (../shared/cooperbench) are not here")
def test_a_crew_of_click_features_lands_as_many_as_do_not_conflict(tmp_path: Path) -> None:
    """Feature 3 arrives first, and conflicts with 1 and 2; in the order of arrival 3 and 6 land, two of four."""
    world = World(tmp_path, gate=None)
    git(world.repo, "fetch", "-q", str(CLICK.resolve() / "base.bundle"), "base/task2800")
    git(world.repo, "reset", "-q", "--hard", "FETCH_HEAD")
    world.start = world.tip()
    for number in (3, 1, 2, 6):
        git(world.repo, "checkout", "-q", "-b", f"feature{number}", world.start)
        git(world.repo, "apply", "--index", str(CLICK.resolve() / f"task2800/feature{number}/feature.patch"))
        git(world.repo, "commit", "-q", "-m", f"feature {number}")
    git(world.repo, "checkout", "-q", "main")
    for number in (3, 1, 2, 6):
        world.enqueue(f"feature{number}")
    assert world.drained() == {"feature3": "conflict", **dict.fromkeys(
        ("feature1", "feature2", "feature6"), "landed")}
    check(world)
