"""What an agent leaves for itself is not committed: neither by its own git nor by garrison, in the sandbox and outside.
"""

from __future__ import annotations

import pytest

from sandbox_support import missing
from support import Node, Place, git

SCRIPT = "echo chat > .note.history; mkdir -p sub; echo cache > sub/.note.cache; git status --porcelain > seen; " \
    "echo one > one.txt; git add -A; git commit -qm one; echo two > two.txt"


@pytest.fixture
def noting(place: Place, mode: str) -> Place:
    """Return a place with an agent `noter`, in this mode of the sandbox."""
    if mode == "bubblewrap" and (why := missing()):
        pytest.skip(why)
    place.use_mode(mode)
    with (place.home / "config.toml").open("a") as file:
        file.write(f'[agents.noter]\nargv = ["/bin/sh", "-c", "{SCRIPT}"]\nexclude = [".note*"]\n')
    return place


@pytest.mark.parametrize("mode", [pytest.param("none", marks=pytest.mark.slow), "bubblewrap"])
def test_excluded_files_are_not_committed(noting: Place) -> None:
    place = noting
    (place.user / ".config" / "git").mkdir(parents=True)
    (place.user / ".config" / "git" / "ignore").write_text("seen\n")  # the user's own list still applies
    child = place.launch(place.graph(Node("a", command="", attributes='agent=noter, prompt="x"')), "r1")
    assert place.finish(child) == 0, place.logs()
    assert set(git(place.repo, "diff", "--name-only", place.start, "main").split()) == {"one.txt", "two.txt"}
    kept = git(place.repo, "for-each-ref", "--format=%(refname)", "refs/garrison/").split()
    assert not [ref for ref in kept if ".note" in git(place.repo, "ls-tree", "-r", "--name-only", ref, check=False)]
    exclude = place.repo / ".git" / "info" / "exclude"
    assert ".note" not in (exclude.read_text() if exclude.exists() else ""), "the repository's own list is untouched"


@pytest.mark.parametrize("mode", ["none", pytest.param("bubblewrap", marks=pytest.mark.slow)])
def test_excluded_files_are_not_committed_in_a_checkout(noting: Place) -> None:
    """`garrison pipeline run` works in a worktree of the checkout, whose lists stay as they are."""
    place = noting
    graph = place.root / "g.dot"
    graph.write_text('digraph G { start [shape=Mdiamond]; exit [shape=Msquare]; a [prompt="x"]; start -> a -> exit }')
    ended = place.command("pipeline", "run", str(graph), "--agent", "noter", "--workdir", str(place.repo))
    assert ended.returncode == 0, ended
    branch = ended.stderr.split()[-1]
    assert set(git(place.repo, "diff", "--name-only", "HEAD", branch).split()) >= {"one.txt", "seen"}
    assert ".note" not in git(place.repo, "diff", "--name-only", "HEAD", branch)
    assert "note" not in git(place.repo, "show", f"{branch}:seen")
    exclude = place.repo / ".git" / "info" / "exclude"
    assert ".note" not in (exclude.read_text() if exclude.exists() else "")
    assert not git(place.repo, "config", "core.excludesFile", check=False)
