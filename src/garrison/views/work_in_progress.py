"""Progress of the agents at work: the last line of each, its changes so far, and the usual duration of its node.

Cheap, since pages observe every few seconds: the last line is the end of one file; git is asked for the changes of one
node of a run at a time, at most every `EVERY` seconds each and only after activity of the agent; the usual duration is
computed from records already read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from garrison.errors import GarrisonError
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.system.git import Git, commits
from garrison.system.stamps import file_stamp
from garrison.system.terminal_text import clean_lines
from garrison.system.untrusted import read_end
from garrison.values import Value, median
from garrison.views.node_view import NodeView

EVERY = 30.0
"""Seconds between two git calls for one node."""
GIT_SECONDS = 3.0
"""Time limit of a git call."""
TAIL_BYTES = 8 << 10
LINE = 200
"""Maximum length of a last line."""
EARLIER_RUNS = 20
"""Number of latest runs of the same pipeline whose durations count."""
SIMILAR = 3
"""Finished nodes needed to derive the usual duration from the run itself."""
AT_WORK = frozenset({"working", "asks"})
_STAT = re.compile(r"(\d+) files? changed(?:, (\d+) insertions?\(\+\))?(?:, (\d+) deletions?\(-\))?")
_DECORATION = "→←✗─… \t"


class ChangedSoFar(Value):
    """Tracked files that an agent has changed on its branch, committed or not, and the number of new ones."""

    files: int
    added: int
    removed: int
    new: int


class UsualTime(Value):
    """Usual duration of a node in seconds, and the sample of this median."""

    seconds: float
    of: str


class WorkInProgress(Value):
    """Progress of one agent."""

    line: str = ""
    """Last line that it printed, for most agents their current tool."""
    changed: ChangedSoFar | None = None
    usual: UsualTime | None = None


IDLE = WorkInProgress()


@dataclass
class _Measured:
    """Latest answer of git about one attempt."""

    attempt: int
    base: str
    stamp: object = None
    at: float = float("-inf")
    changed: ChangedSoFar | None = None


class ProgressReader:
    """Reads the progress of a home's agents repeatedly, from one thread at a time."""

    def __init__(self, home: Path) -> None:
        self.home, self._store = home, Store(home)
        self._measured: dict[tuple[str, str], _Measured] = {}
        self._lines: dict[Path, tuple[object, str]] = {}

    def read(self, launch: Launch, nodes: Iterable[NodeView], own: Mapping[str, Sequence[float]],
             earlier: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, WorkInProgress]:
        """Return the progress of the nodes at work; `own` and `earlier`: node → seconds of its finished attempts, in
        this run and in earlier ones."""
        busy = [node for node in nodes if node.state in AT_WORK]
        self._measure_one(launch, busy)
        return {node.node: WorkInProgress(self._line(launch, node), self._changed(launch, node),
                                          usual_time(node.node, own, earlier)) for node in busy}

    def _line(self, launch: Launch, node: NodeView) -> str:
        folder = RunFiles(self.home, launch.run_id).attempt(node.node, node.attempt)
        stamp = file_stamp(folder / "output.log")
        known = self._lines.get(folder)
        if known is None or known[0] != stamp:
            known = self._lines[folder] = (stamp, last_line(read_end(folder, "output.log", TAIL_BYTES)))
        return known[1]

    def _changed(self, launch: Launch, node: NodeView) -> ChangedSoFar | None:
        known = self._measured.get((launch.run_id, node.node))
        return known.changed if known is not None and known.attempt == node.attempt else None

    def _measure_one(self, launch: Launch, nodes: Sequence[NodeView]) -> None:
        """Ask git about the node with the oldest answer, if it is due."""
        now = time.monotonic()
        for node in sorted(nodes, key=lambda one: self._asked(launch, one)):
            if now - self._asked(launch, node) < EVERY:
                return
            known = self._measured.setdefault((launch.run_id, node.node), _Measured(node.attempt, ""))
            if known.attempt != node.attempt:
                known = self._measured[launch.run_id, node.node] = _Measured(node.attempt, "")
            # first, so that a node without a worktree does not keep its turn
            known.at = now
            identity = self._identity(launch, node)
            worktree = Path(identity.worktree) if identity is not None and identity.worktree else None
            evidence = _evidence(node)
            if worktree is None or (evidence == known.stamp and known.changed is not None):
                continue
            known.stamp = evidence
            known.base = known.base or _base(launch, worktree)
            known.changed = measure_changes(launch, worktree, known.base) or known.changed
            return

    def _asked(self, launch: Launch, node: NodeView) -> float:
        known = self._measured.get((launch.run_id, node.node))
        return known.at if known is not None and known.attempt == node.attempt else float("-inf")

    def _identity(self, launch: Launch, node: NodeView) -> Identity | None:
        try:
            return self._store.read(Identity, Key("orchestrator", node.node, launch.run_id))
        except GarrisonError:
            return None


def _evidence(node: NodeView) -> int | None:
    """Return the approximate time of the agent's last activity; None if unknown."""
    if node.signs is None or node.signs.last is None:
        return None
    # rounded: the measured age varies by milliseconds without activity
    return int((time.time() - node.signs.last.age_s) / EVERY)


def _base(launch: Launch, worktree: Path) -> str:
    """Return the start commit of a branch, '' if it cannot be found."""
    try:
        git = Git(Path(launch.repo))
        tip, head = git.branch_tip(launch.onto), git.head(worktree)
        return (git.merge_base(tip, head) or "") if tip and head else ""
    except (GarrisonError, OSError):
        return ""


def measure_changes(launch: Launch, worktree: Path, base: str) -> ChangedSoFar | None:
    """Return the changes of a worktree since `base`; None if git does not answer in time. Writes nothing."""
    # otherwise git diff refreshes the index under index.lock, which would make a concurrent commit of the agent fail
    quiet = {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        git = Git(Path(launch.repo))
        # without submodules: git would run in their repositories, whose configuration an agent may have written
        told = git.run("diff", "--shortstat", "--ignore-submodules=all", base, "--", cwd=worktree, extra=quiet,
                       timeout=GIT_SECONDS).out if base else ""
        new = git.run(*commits.exclude_options(git.git_dir(worktree)), "ls-files", "--others", "--exclude-standard",
                      "--directory", "-z", cwd=worktree, extra=quiet, timeout=GIT_SECONDS).out.count("\0")
    except (GarrisonError, OSError):
        return None
    files, added, removed = parse_shortstat(told)
    return ChangedSoFar(files, added, removed, new)


def parse_shortstat(told: str) -> tuple[int, int, int]:
    """Return (files, added lines, removed lines) of `git diff --shortstat`. Pure."""
    found = _STAT.search(told)
    return (int(found[1]), int(found[2] or 0), int(found[3] or 0)) if found else (0, 0, 0)


def last_line(text: str) -> str:
    """Return the last line with words at the end of an agent's output, without decoration. Pure."""
    for line in reversed(clean_lines(text)):
        words = " ".join(line.split()).lstrip(_DECORATION)
        if words:
            return words if len(words) <= LINE else f"{words[:LINE - 1]}…"
    return ""


def usual_time(node: str, own: Mapping[str, Sequence[float]],
               earlier: Sequence[Mapping[str, Sequence[float]]]) -> UsualTime | None:
    """Return the usual duration of a node: from earlier runs, else from other nodes of its run. Pure."""
    before = [seconds for run in earlier for seconds in run.get(node, ())]
    if before and (middle := median(before)) is not None:
        return UsualTime(middle, f"{len(before)} earlier attempt{'s' if len(before) > 1 else ''}")
    others = [seconds for name, all_of in own.items() for seconds in all_of if name != node]
    middle = median(others) if len(others) >= SIMILAR else None
    return UsualTime(middle, f"{len(others)} attempts of other nodes") if middle is not None else None
