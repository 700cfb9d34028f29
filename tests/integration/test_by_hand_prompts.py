"""Every command that a prompt for a layer played by hand contains is typed, as the prompt says it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from support import Place, git

ROOT = Path(__file__).resolve().parents[2]


def typed(place: Place, *arguments: str) -> list[str]:
    """Print a section and run each of its blocks; their outputs."""
    section = place.command("prompt", *arguments, "--repo-root", place.repo)
    assert section.returncode == 0, section.stderr
    blocks = re.findall(r"```bash\n(.*?)```", section.stdout, re.DOTALL)
    found = []
    for block in blocks:
        assert "$" not in block, "every name was filled in"
        done = subprocess.run(["bash", "-e", "-c", block], env=place.env, cwd=place.root, capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        found.append(done.stdout)
    return found


def test_a_runner_and_a_guardian_played_by_hand(place):
    """MERGE_READY goes up, the queue tests and lands, MERGE_COMPLETE comes back; the hooks tell the phases."""
    git(place.repo, "branch", "feature")
    git(place.repo, "worktree", "add", "-q", str(place.root / "w"), "feature")
    (place.root / "w/new.txt").write_text("new\n")
    git(place.root / "w", "add", "-A")
    git(place.root / "w", "commit", "-qm", "Add new")
    for who in (("runner", "fix"), ("guardian", "crew")):
        for door in ("identity_registry.py", "hook_manager.py"):
            made = subprocess.run([sys.executable, str(ROOT / "scripts" / door), "create", *who], env=place.env,
                                  check=False, capture_output=True, text=True)
            assert made.returncode == 0, made.stderr
    recorded = place.command("merge-queue", "process", "--repo-root", place.repo, "--gate", "test -f calc.py")
    assert recorded.returncode == 0, recorded.stderr
    typed(place, "runner", "fix", "--branch", "feature", "--pipeline", "crew")
    assert list((place.home / "signals").glob("guardian-crew*/*MERGE_READY*.json"))
    assert json.loads((place.home / "hooks/runner-fix.json").read_text())["phase"] == "validating"
    told = typed(place, "guardian", "crew")
    assert "'success': True" in told[1]
    assert git(place.repo, "show", "main:new.txt") == "new"
    assert json.loads((place.home / "hooks/guardian-crew.json").read_text())["phase"] == "merged"
    git(place.repo, "worktree", "remove", "--force", str(place.root / "w"))
