"""A run with `land=pr`, with real processes, against the double of a forge over HTTP with real git."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from forge_place import ForgePlace, files_with, rework
from garrison.testing.forge_state import OWN_TOKEN
from pull_request_storm import Story
from support import Node, git, wait_for


def waits(there: ForgePlace, text: str) -> None:
    """Wait until `garrison status` says that the run waits for this."""
    wait_for(f"it waits for {text}", lambda: text in there.place.command("status", "r1").stdout)


def test_from_the_draft_over_a_red_check_to_the_merge_with_no_token_in_reach_of_an_agent(place):
    """What an agent can read while it works has no token: environment, arguments, home, worktree, configuration."""
    with ForgePlace(place) as there:
        look = f'{{ cat /proc/self/environ; ps -ef; git config -l; }} >> "{place.root}/seen"; '
        graph = place.graph(Node("work", command=look + rework("work")))
        child = place.launch(graph, "r1", "--land", "pr", "--base", "origin:main")
        wait_for("it is ready", there.is_ready)
        there.report("failure", "E   assert work.txt == 1")
        wait_for("the second attempt is pushed",
                 lambda: "work 2" in git(there.bare, "show", f"{there.branch()}:work.txt"))
        there.report("success")
        waits(there, "review of #1")
        assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if OWN_TOKEN.encode() in _read(path)]
        there.approve()
        assert place.finish(child) == 0, place.logs()
        assert there.check() == []
    for folder in (place.home, place.trees, place.repo):
        assert files_with(folder, OWN_TOKEN) == []
    seen = (place.root / "seen").read_bytes()
    assert b"GARRISON_NODE" in seen and OWN_TOKEN.encode() not in seen


def _read(path: Path) -> bytes:
    """Return what a file of /proc says; nothing if its process has ended."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_or_doubled_when_the_guardian_dies_at_its_requests(tmp_path, seed):
    """One story for each kind of forge; `python -m tests.pull_request_storm` tells hundreds."""
    assert Story(seed, tmp_path, most=8).tell() == []
