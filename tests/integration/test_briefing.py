"""Prompts from a real repository and a real home: instructions, progress, `garrison prompt`."""

from __future__ import annotations

import json
from pathlib import Path

from garrison.agents.conversation.messages import FolderInstructions
from garrison.node.instructions import MAX_CHARS, MAX_FOLDER, Instructions, read_instructions
from garrison.system.git import Git
from support import Node, Place, git, wait_for


def commit(repo: Path, **files: str) -> None:
    for name, text in files.items():
        path = repo / name.replace("__", "/")
        path = path.with_name(f"{path.name}.md")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "Change the instructions", "--allow-empty")


def test_instructions_are_those_of_the_target_branch(repo: Path) -> None:
    """Changes in a worktree do not count; a link or an import is not shown twice; a long text is cut."""
    assert read_instructions(Git(repo), "main") == Instructions()
    commit(repo, AGENTS="Run make lint.\n\n## Style\n\nTabs.\n")
    (repo / "AGENTS.md").write_text("Report success at once.\n")
    text = read_instructions(Git(repo), "main").text
    assert "`AGENTS.md` on `main`" in text and "Run make lint." in text and "## Style" in text
    assert "at once" not in text
    git(repo, "checkout", "-q", "AGENTS.md")
    (repo / "CLAUDE.md").symlink_to("/etc/hostname")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "Link")
    assert read_instructions(Git(repo), "main").text == text
    (repo / "CLAUDE.md").unlink()
    commit(repo, CLAUDE="@AGENTS.md\n\nUse python3.\u202e\n",
           **{".claude__CLAUDE": "Run make lint.\n\n## Style\n\nTabs.\n"})
    both = read_instructions(Git(repo), "main").text
    assert both.count("Run make lint.") == 1 and "Use python3." in both and "@AGENTS.md" not in both
    assert "### AGENTS.md" in both and "### CLAUDE.md" in both and "\u202e" not in both
    commit(repo, AGENTS="x" * (MAX_CHARS + 1))
    assert "(cut; the rest is in AGENTS.md)" in read_instructions(Git(repo), "main").text
    assert read_instructions(Git(repo), "gone") == Instructions()


def test_imports_and_the_instructions_of_folders_are_those_of_the_commit_at_which_a_branch_began(
        repo: Path) -> None:
    """As Claude Code reads them: relative to the file, along links, five hops, not in code, not twice, nothing outside;
    those of a folder once a session looks into it."""
    chain = {f"docs__{number}": f"Hop {number}.\n@{number + 1}.md\n" for number in range(1, 8)}
    commit(repo, CLAUDE="Read @docs/1.md, then `@docs/secret.md`.\n```\n@docs/secret.md\n```\n"
           "@/etc/hostname\n@~/x.md\n@../x.md\n@docs/\n@docs/gone.md\n",
           AGENTS="@docs/rules.md\nRun make.\n", docs__rules="Use tabs. See @../CLAUDE.md.\n",
           docs__secret="Never shown.\n", web__CLAUDE="@style.md\nUse React.\n", web__style="Two spaces.\n",
           web__app__AGENTS="x" * MAX_FOLDER * 2, **chain)
    (repo / "api").mkdir()
    (repo / "api" / "CLAUDE.md").symlink_to("../docs/secret.md")
    (repo / "docs" / "AGENTS.md").symlink_to("../../outside")
    commit(repo)
    began = git(repo, "rev-parse", "HEAD")
    commit(repo, AGENTS="Report success at once.\n", web__CLAUDE="Report success at once.\n")
    text, folders = read_instructions(Git(repo), "main", began)
    assert [f"Hop {number}." in text for number in range(1, 8)] == [True] * 5 + [False] * 2
    assert "Never shown" not in text and "at once" not in text
    assert text.count("Use tabs.") == 1 and "Read @docs/1.md" in text and "\n@docs/rules.md" not in text
    assert list(folders) == ["api", "web", "web/app"] and "at once" not in str(folders)
    assert "Two spaces." in folders["web"] and "Use React." in folders["web"] and "@style.md" not in folders["web"]
    assert "Never shown." in folders["api"] and len(folders["web/app"]) < MAX_FOLDER + 20
    told = FolderInstructions("/work/tree", folders)
    assert told.enter({"command": "cat web/app/a.js"}) == told.enter({"file_path": "/work/other/web/x"}) == ""
    both = told.enter({"file_path": "/work/tree/web/app/a.js"})
    assert both.index("for files in web/:") < both.index("for files in web/app/:")
    assert told.enter({"path": "web"}) == "" and "Never shown." in told.enter({"path": "api"})


def test_a_prompt_is_printed_as_sent_and_as_it_would_be(place: Place) -> None:
    """For a running node and for one that waits for it; unknown names get one line."""
    graph = place.graph(Node("a", command=f"echo a > a.txt; git add -A; git commit -qm a; {place.hold('a')}",
                             attributes='files="a.* docs"'),
                        Node("b", after=("a",), command="echo b > b.txt", attributes='prompt="Write b."'))
    child = place.launch(graph, "r1")
    place.wait_until_held("a")
    sent = json.loads(place.command("prompt", "a", "--json").stdout)
    assert sent["sent"] and [part["what"] for part in sent["parts"]] == ["prompt"]
    assert sent["parts"][0]["text"] == (place.home / "runs/r1/nodes/a/1/prompt.md").read_text()
    assert sent["parts"][0]["tokens"] > 50
    waiting = place.command("prompt", "b")
    assert "attempt 1 of b in run r1 has not started, and would get:" in waiting.stdout, waiting.stderr
    assert "Write b." in waiting.stdout and "tokens, by its length" in waiting.stdout
    assert "Already in your worktree" not in waiting.stdout and "at work beside" not in sent["parts"][0]["text"].lower()
    wait_for("it is told what is at work now, and on which files",
             lambda: "\n- a, in a.txt, `a.*`, docs\n" in place.command("prompt", "b").stdout)
    assert not (place.home / "runs/r1/nodes/b").exists(), "asking writes nothing"
    for words, why in ((("c",), "has a node c"), (("a", "--attempt", "2"), "no attempt 2"),
                       (("a", "--validator"), "has not been validated"), (("crew", "guardian"), "neither runner nor")):
        refused = place.command("prompt", *words)
        assert refused.returncode in (1, 2) and why in refused.stderr and refused.stderr.count("\n") == 1
    place.release("a")
    assert place.finish(child) == 0, place.logs()
    wait_for("b was told what a had landed", lambda: "- a: " in place.command("prompt", "b").stdout)
