"""Conflicts of a merge that did not happen: the files, and the pieces in which both sides changed the same lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.system.git import GitError
from garrison.system.terminal_text import spell_name
from garrison.values import Value
from garrison.views.diff import BIG_FILE, SECONDS, show_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.system.git import Git

FILES = 20
"""Conflicted files of which the pieces are shown; of the others the names."""
LINES = 200
"""Lines shown of one file's conflicts."""
AROUND = 2
"""Lines before and after a conflict."""
_BEGIN, _BASE, _MIDDLE, _END = "<<<<<<<", "|||||||", "=======", ">>>>>>>"


class ConflictLine(Value):
    """One line: `side` is `ours` (the target's), `theirs` (the node's), `both`, or `marker`."""

    side: str
    number: int
    """Its number in the file with the conflict markers."""
    text: str


class ConflictedFile(Value):
    """A file that git could not merge, with its conflicts."""

    path: str
    """Its name, spelled out."""
    lines: Sequence[ConflictLine]
    note: str = ""


def read_conflicts(git: Git, ours: str, theirs: str) -> list[ConflictedFile]:
    """Merge two commits where nothing is kept, and return the files in conflict."""
    with git.open_scratch() as folder:
        extra = {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git.common / "objects")}
        answer = git.run("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs, check=False,
                         extra=extra, timeout=SECONDS)
        if answer.code not in (0, 1):
            raise GitError(("merge-tree",), answer.code, answer.err)
        tree, *names = [part for part in answer.out.split("\0") if part]
        found: list[ConflictedFile] = []
        for name in dict.fromkeys(names if answer.code else ()):
            lines: Sequence[ConflictLine] = ()
            note = ""
            if len(found) < FILES:
                lines, note = _read_file(git, extra, f"{tree}:{name}")
            found.append(ConflictedFile(spell_name(name), lines, note))
        return found


def _read_file(git: Git, extra: dict[str, str], blob: str) -> tuple[Sequence[ConflictLine], str]:
    size = git.run("cat-file", "-s", blob, check=False, extra=extra)
    if size.code:
        return (), "one side has no such file"
    if int(size.out) > BIG_FILE:
        return (), f"too large to show: {int(size.out):,} bytes"
    lines = conflict_lines(git.run("cat-file", "blob", blob, extra=extra, timeout=SECONDS).out)
    if not lines:
        return (), "no lines: one side deleted or renamed it, or it is data"
    cut = f"… and {len(lines) - LINES} lines more" if len(lines) > LINES else ""
    return lines[:LINES], cut


def conflict_lines(text: str) -> list[ConflictLine]:
    """Return the conflicts of a file with markers, each with a few lines around it. Pure."""
    rows = [_parse(row) for row in text.removesuffix("\n").split("\n")]
    sides, side = [], "both"
    for marker in (marker for marker, _ in rows):
        if marker == _BEGIN and side == "both":
            side = "ours"
            sides.append("marker")
        elif (marker == _MIDDLE and side in ("ours", "base")) or (marker == _BASE and side == "ours"):
            side = "theirs" if marker == _MIDDLE else "base"
            sides.append("marker")
        elif marker == _END and side == "theirs":
            side = "both"
            sides.append("marker")
        else:
            sides.append(side)
    near = {near for at, each in enumerate(sides) if each != "both" for near in range(at - AROUND, at + AROUND + 1)}
    return [ConflictLine(sides[at], at + 1, show_line(row)[0]) for at, (_, row) in enumerate(rows) if at in near]


def _parse(row: str) -> tuple[str, str]:
    marker = row[:7]
    is_marker = marker in (_BEGIN, _BASE, _MIDDLE, _END) and (len(row.rstrip("\r")) == 7 or row[7] == " ")
    return (marker if is_marker else ""), row
