"""The deputy rule: what an agent shapes is touched through `system/untrusted` alone, but for the acts listed here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src/garrison"
ACTS = {"read_text", "read_bytes", "write_text", "write_bytes", "open", "touch", "mkdir", "unlink", "rename", "replace",
        "chmod", "symlink_to", "rmdir", "rmtree", "copy", "copy2", "copyfile", "copytree", "move", "glob", "rglob",
        "iterdir", "walk", "scandir", "listdir", "utime", "link"}
SHAPED = re.compile(r"\b(worktree|tree|exchange|common|slot|result_file)\b")
"""Names of what an agent can shape."""
ALLOWED = {
    "cli/pipeline_worktree": "names alone, in a folder of the person's; a walk follows no link",
    "cli/spawn": "the folder above a worktree that does not exist yet",
    "doctor/confinement": "folders of the trial, before it begins",
    "doctor/worktrees": "the repository's own git directory",
    "merge/setup_output": "names and times alone; what they lead to goes through the door",
    "pipeline/handlers/installed": "runs inside, as the agent",
    "run/git_record": "the repository's own git directory",
    "launch/launch": "the repository's own git directory",
    "hosts/host_run": "the host's own repository",
    "node/worktree": "the folder above a worktree",
    "sandbox/git_view": "a view that is made and not yet shown to anybody; the repository's own HEAD",
    "system/git/commits": "the repository's own git directory",
    "system/git/damage": "the repository's own git directory",
    "system/git/repository": "the repository's own git directory",
    "system/git/rescues": "the repository's own git directory",
    "system/git/submodules": "mirrors of garrison's own",
    "system/git/worktrees": "the repository's own git directory; a walk follows no link, and names alone decide there",
}
"""Module → what it touches that no agent can shape."""


def test_what_an_agent_shapes_is_touched_through_one_door() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ACTS):
                continue
            owner = ast.unparse(node.func.value)
            words = f"{owner} {ast.unparse(node.args[0])}" if owner in ("os", "shutil") and node.args else owner
            if SHAPED.search(words) and owner != "untrusted":
                module = str(path.relative_to(SOURCE).with_suffix(""))
                found.setdefault(module, []).append(f"{node.lineno}: {ast.unparse(node)[:80]}")
    assert found.keys() == ALLOWED.keys(), found
