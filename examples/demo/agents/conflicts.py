"""A merge that was left to us: conflict markers in the files, MERGE_HEAD in git.

Garrison begins an attempt so where a node says `rework=merge`. The way out is the same for every agent of this crew,
because a step can be applied anywhere its anchor still stands: take the target's side of each conflict, then make the
own changes to that file again on top of it.
"""

from __future__ import annotations

import subprocess

OURS, BASE, MIDDLE, THEIRS = "<<<<<<< ", "||||||| ", "=======", ">>>>>>> "


def is_merging() -> bool:
    """Whether a merge waits to be committed in the current directory."""
    return bool(ask("rev-parse", "--quiet", "--verify", "MERGE_HEAD").strip())


def conflicted() -> list[str]:
    """Paths that git could not merge."""
    return [path for path in ask("diff", "--name-only", "--diff-filter=U", "-z").split("\0") if path]


def targets_side(text: str) -> str:
    """The text with the merged-in side of every conflict; one without markers stays as it is. Pure."""
    kept, side = [], ""
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\n")
        if not side and line.startswith(OURS):
            side = OURS
        elif side and side != THEIRS and (line.startswith(BASE) or bare == MIDDLE):
            side = THEIRS if bare == MIDDLE else BASE
        elif side == THEIRS and line.startswith(THEIRS):
            side = ""
        elif side in ("", THEIRS):
            kept.append(line)
    return "".join(kept)


def ask(*arguments: str) -> str:
    """What git answers; nothing if it refuses."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout
