"""A merge strategy: `example-note` merges a branch, with a note in the message of the merge.

    garrison merge-queue config --strategy example-note
"""

from __future__ import annotations

from typing import Any

from garrison.merge.candidates import Candidate


def merge_with_note(git: Any, entry: Any, base: str, trailers: Any) -> Candidate:
    """Return the commit of `entry` on top of `base`, or why there is none."""
    merged = git.merge_tree(base, entry.oid)
    if merged.tree is None:
        return Candidate("", None, tuple(merged.conflicts), merged.reason)
    lines = "\n".join(trailers(merged.tree))
    message = f"{entry.branch}, with a note\n\n{lines}\n"
    return Candidate(merged.tree, git.commit_tree(merged.tree, [base, entry.oid], message, date=0))
