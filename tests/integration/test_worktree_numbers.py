"""Numbers of worktrees: unique among those that exist, stable for one worktree, free again after any end."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from garrison.merge import slots
from garrison.merge.slots import acquire_slot
from garrison.system.git import Git
from support import make_repository


def test_numbers_are_unique_stable_and_free_after_a_crash(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    git, folder = Git(tmp_path / "repo"), tmp_path / "trees"
    slot = acquire_slot(git, folder)
    trees = [folder / "r1" / f"n{number}" for number in range(8)]
    for tree in trees:
        tree.mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda tree: slots.claim_number(git, folder, tree), trees))
    assert sorted(found) == list(range(2, 10)), "slot 1 is a gate's"
    assert [slots.claim_number(git, folder, tree) for tree in trees] == found
    second = acquire_slot(git, folder)
    assert second.number == 10
    shutil.rmtree(trees[3])  # as a crash leaves it
    (folder / "r2/other").mkdir(parents=True)
    assert slots.claim_number(git, folder, folder / "r2/other") == found[3]
    shutil.rmtree(trees[0])
    slots.remove_void_claims(git, folder)
    assert len(list(folder.glob("number-*"))) == 7
    for one in (slot, second):
        one.release()
