"""The signs that a node's agent leaves behind, for its runner and for `status`: stamps of files, nothing is written.

Output, stream events, transcripts, notes and HEAD are a `stat` each; the worktree is walked only when asked, and not
farther than `MOST` entries.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from garrison.agents.claude.stream import tool_in_flight

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from garrison.records.run import Task

    Stamp = tuple[int, int] | None

MAX_ENTRIES = 5000
"""Entries of a worktree that are looked at."""


class AgentActivity:
    """The signs of one attempt, in its folder and its worktree."""

    def __init__(self, folder: Path, tree: Path, task: Task | None = None) -> None:
        self.folder, self.tree = folder, tree
        self.silence = task.silence_s if task is not None else None

    def stamps(self, *, deep: bool = False) -> dict[str, Stamp]:
        """Kind of sign → (time in ns, size) of its file; None where there is none."""
        claude = self.folder / "claude"
        found = {"output": stat_stamp(self.folder / "output.log"), "notes": stat_stamp(self.folder / "notes.txt"),
                 "head": self._head()}
        if claude.is_dir():
            found |= {"stream": stat_stamp(claude / "stream.jsonl"), "transcript": newest_entry(claude / "transcripts")}
        if deep:
            found["worktree"] = newest_entry(self.tree)
        return found

    def _head(self) -> Stamp:
        """The reflog of the worktree's HEAD; its `.git` is a file that names the directory."""
        try:
            named = (self.tree / ".git").read_text().removeprefix("gitdir:").strip()
        except OSError:
            return None
        return stat_stamp(self.tree / named / "logs" / "HEAD")

    def tool(self) -> tuple[str, float] | None:
        """A Claude session's tool under way, and the seconds it may be silent."""
        return tool_in_flight(self.folder)

    def waiting(self) -> str:
        """What the session says it waits for."""
        try:
            return (self.folder / "claude" / "waiting").read_text(errors="replace").strip()
        except OSError:
            return ""


def stat_stamp(path: Path) -> Stamp:
    """(modification time in ns, size); None while there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def newest_entry(folder: Path) -> Stamp:
    """(newest modification time in ns, entries) of what is below `folder`, up to `MOST`; None if there is nothing."""
    times = [0, 0]
    for entry in _entries(folder):
        times[0] = max(times[0], entry)
        times[1] += 1
        if times[1] >= MAX_ENTRIES:
            break
    return (times[0], times[1]) if times[1] else None


def _entries(folder: Path) -> Iterator[int]:
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    yield entry.stat(follow_symlinks=False).st_mtime_ns
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:  # it went while we looked
            continue
