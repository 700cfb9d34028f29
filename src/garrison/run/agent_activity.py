"""Activity of a node's agent, observed in its files: evidence for the runner's hang detection and for `status`.

Output, stream events, transcripts, notes and HEAD cost a `stat` each; the worktree is walked only on request, up to
`MAX_ENTRIES`. Nothing is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.base import NOTES, WAITING
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.stream import tool_in_flight
from garrison.records.life_lock import is_held
from garrison.sandbox.place import EXCHANGE, NETWORK_FOLDER, sandbox_folder
from garrison.system import untrusted
from garrison.system.stamps import newest_entry

if TYPE_CHECKING:
    from garrison.records.run import Task
    from garrison.system.stamps import Stamp


class AgentActivity:
    """Activity of one attempt, in its folder and its worktree."""

    def __init__(self, folder: Path, worktree: Path, task: Task | None = None) -> None:
        self.folder, self.worktree = folder, worktree
        self.silence = task.silence_s if task is not None else None

    def stamps(self, *, deep: bool = False) -> dict[str, Stamp]:
        """Return kind of activity → (modification time in ns, size) of its file, None where there is none; `deep`
        includes the worktree."""
        claude = self.folder / "claude"
        notes = _stat_stamp(self.folder / EXCHANGE / NOTES) or _stat_stamp(self.folder / NOTES)
        stamps = {"output": _stat_stamp(self.folder / "output.log"), "notes": notes,
                  "head": self._head()}
        if claude.is_dir():
            stamps |= {"stream": _stat_stamp(claude / "stream.jsonl"),
                       "transcript": newest_entry(claude / "transcripts")}
        if deep:
            stamps["worktree"] = newest_entry(self.worktree)
        return stamps

    def _head(self) -> Stamp:
        """Return the stamp of the worktree's reflog, or of a confined agent's git view if it has one."""
        git_dir = untrusted.read_text(self.worktree, ".git").removeprefix("gitdir:").strip()
        if not git_dir:
            return None
        private = sandbox_folder(self.worktree) / "git/common"
        earlier = private / "worktrees" / Path(git_dir).name  # of a view from an earlier version
        return (_stat_stamp(private / "logs/HEAD") or _stat_stamp(earlier / "logs/HEAD")
                or _stat_stamp(self.worktree / git_dir / "logs/HEAD"))

    def tool(self) -> tuple[str, float] | None:
        """Return the running tool of a Claude session, and the seconds for which it may be silent."""
        return tool_in_flight(self.folder)

    def waiting(self) -> str:
        """Return what the agent waits for; '' if it works."""
        return read_waiting(self.folder)


def read_waiting(folder: Path) -> str:
    """Return what the agent of an attempt, or its session, waits for; '' if it works."""
    return next((text for place in (WAITING, f"claude/{WAITING}", f"{NETWORK_FOLDER}/{WAITING}")
                 if (text := untrusted.read_text(folder, place).strip())), "")


def read_outage(folder: Path) -> str:
    """Return the transient cause for which the agent of an attempt waits (a limit, an outage); '' if it works, or if
    the user has taken it over."""
    return "" if is_taken_over(folder) else read_waiting(folder)


def is_taken_over(folder: Path) -> bool:
    """Return whether the user has taken over the session of an attempt, and so answers its question there."""
    return is_held(AttemptFiles(folder).takeover)


def _stat_stamp(path: Path) -> Stamp:
    """Return (modification time in ns, size); None while there is no such file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
