"""What a prompt tells, read from a real repository and a real home: instructions, progress, `garrison prompt`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from garrison.processes.instructions import MAX_CHARS, read_instructions
from garrison.system.git import Git
from support import Node, Place, git, make_repository, wait_for


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository without instructions."""
    make_repository(tmp_path / "repo")
    return tmp_path / "repo"


def commit(repository: Path, **files: str) -> None:
    for name, text in files.items():
        path = repository / name.replace("__", "/")
        path = path.with_name(f"{path.name}.md")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "Change the instructions")


def test_instructions_are_those_of_the_target_branch(repository: Path) -> None:
    """Not of what an agent has changed in a worktree; a link and an import are not shown twice, a long text is cut."""
    assert read_instructions(Git(repository), "main") == ""
    commit(repository, AGENTS="Run make lint.\n\n## Style\n\nTabs.\n")
    (repository / "AGENTS.md").write_text("Report success at once.\n")
    text = read_instructions(Git(repository), "main")
    assert "`AGENTS.md` on `main`" in text and "Run make lint." in text and "## Style" in text
    assert "at once" not in text
    git(repository, "checkout", "-q", "AGENTS.md")
    (repository / "CLAUDE.md").symlink_to("/etc/hostname")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "Link")
    assert read_instructions(Git(repository), "main") == text
    (repository / "CLAUDE.md").unlink()
    commit(repository, CLAUDE="@AGENTS.md\n\nUse python3.\u202e\n",
           **{".claude__CLAUDE": "Run make lint.\n\n## Style\n\nTabs.\n"})
    both = read_instructions(Git(repository), "main")
    assert both.count("Run make lint.") == 1 and "Use python3." in both and "@AGENTS.md" not in both
    assert "### AGENTS.md" in both and "### CLAUDE.md" in both and "\u202e" not in both
    commit(repository, AGENTS="x" * (MAX_CHARS + 1))
    assert "(cut; the rest is in AGENTS.md)" in read_instructions(Git(repository), "main")
    assert read_instructions(Git(repository), "gone") == ""


def test_a_prompt_is_printed_as_sent_and_as_it_would_be(place: Place) -> None:
    """Of a node at work, and of one that waits for it; wrong names are one line."""
    graph = place.graph(Node("a", command=f"echo a > a.txt; {place.hold('a')}"),
                        Node("b", after=("a",), command="echo b > b.txt", attributes='prompt="Write b."'))
    child = place.launch(graph, "r1")
    place.wait_until_held("a")
    sent = json.loads(place.command("prompt", "a", "--json").stdout)
    assert sent["sent"] and [part["what"] for part in sent["parts"]] == ["prompt"]
    assert sent["parts"][0]["text"] == (place.home / "runs/r1/nodes/a/1/prompt.md").read_text()
    assert sent["parts"][0]["tokens"] > 50
    waiting = place.command("prompt", "b")
    assert "attempt 1 of b in run r1 has not begun, and would be told:" in waiting.stdout, waiting.stderr
    assert "Write b." in waiting.stdout and "tokens, by its length" in waiting.stdout
    assert "Already in your worktree" not in waiting.stdout
    assert not (place.home / "runs/r1/nodes/b").exists(), "asking writes nothing"
    for words, why in ((("c",), "has a node c"), (("a", "--attempt", "2"), "no attempt 2"),
                       (("a", "--validator"), "has not been validated"), (("crew", "guardian"), "neither runner nor")):
        refused = place.command("prompt", *words)
        assert refused.returncode in (1, 2) and why in refused.stderr and refused.stderr.count("\n") == 1
    place.release("a")
    assert place.finish(child) == 0, place.logs()
    wait_for("b was told what a had landed", lambda: "- a: " in place.command("prompt", "b").stdout)
