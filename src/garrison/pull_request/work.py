"""Work of a run for its pull request: a summary for the text, and the node that owns a line.

A line is owned by the node whose commit last changed it (`git blame`), a file by the last node that changed it.
Earlier content of the base belongs to no node.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.base import read_attempt_replies
from garrison.errors import GarrisonError
from garrison.merge.failing_tests import count_tests
from garrison.pull_request.texts import NodeSummary, RunSummary
from garrison.records import costs, journal
from garrison.records.names import INTEGRATION
from garrison.records.run import read_attempt_result
from garrison.run.branch import landing_queue, node_queue
from garrison.run.state import TESTED
from garrison.system.clock import from_iso
from garrison.system.command import read_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.ends import LandingNote
    from garrison.merge.entry import MergeEntry
    from garrison.pipeline.plan import RunPlan
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.run.state import RunState
    from garrison.system.git import Git

MAX_FILES = 400
"""Changed files for which a check's log is searched."""
MAX_STAT = 40
"""Files and commits that are listed."""


class OwnerFinder:
    """Finds the node that should fix a line or file of one run."""

    def __init__(self, runtime: Runtime, launch: Launch, git: Git) -> None:
        self.launch, self.git = launch, git
        self.queue = node_queue(runtime, launch, "owners", git)  # a separate one: a queue is read by one thread

    def find(self, path: str, line: int, commit: str, log: str) -> str:
        """Return the node, '' if none owns it: by blame of the line, else the file's last node, else by the log."""
        entries = [entry for entry in self.queue.state.entries.values()
                   if entry.run == self.launch.run_id and entry.status == "landed"]
        with suppress(GarrisonError):
            if path and line > 0:
                blamed = self.git.run("blame", "--porcelain", "-L", f"{line},{line}", commit, "--", path, check=False)
                if blamed.code == 0 and blamed.out and (owner := self._node_of(blamed.out.split()[0], entries)):
                    return owner
            if path and (owner := self._last_to_touch(path, entries)):
                return owner
            for name in self._changed(commit) if log else ():
                if name in log and (owner := self._last_to_touch(name, entries)):
                    return owner
        return ""

    def _node_of(self, commit: str, entries: list[MergeEntry]) -> str:
        if self.git.is_ancestor(commit, self.launch.base_oid):
            return ""
        return next((entry.node for entry in entries if self.git.is_ancestor(commit, entry.oid)), "")

    def _last_to_touch(self, path: str, entries: list[MergeEntry]) -> str:
        for entry in reversed(entries):
            base = self.git.merge_base(entry.base or self.launch.base_oid, entry.oid)
            if base and path in self.git.changed_paths(base, entry.oid):
                return entry.node
        return ""

    def _changed(self, commit: str) -> list[str]:
        """Return the files that the run changed, the longest names first: one may be part of another."""
        return sorted(self.git.changed_paths(self.launch.base_oid, commit), key=len, reverse=True)[:MAX_FILES]


def summarize(runtime: Runtime, launch: Launch, plan: RunPlan, state: RunState, git: Git, *, closes: str = "",
              title: str = "", name: str = "") -> RunSummary:
    """Return the summary of the run for its pull request.

    Args:
        closes: line that links its issue, '' for none.
        title: the issue's.
        name: by which a comment addresses garrison.
    """
    records = []
    for _, _, path in costs.usage_files(runtime.home, launch.run_id):
        with suppress(GarrisonError, OSError):
            records += costs.read_usage(path)
    spent, nodes = costs.total(records), []
    landed = [entry for entry in node_queue(runtime, launch, "summary", git).state.entries.values()
              if entry.run == launch.run_id and entry.status == "landed"]
    with_work = {entry.node for entry in landed}
    for node_name, node in state.nodes.items():
        task = plan.tasks.get(node_name)
        is_unchanged = node.is_unchanged and node_name not in with_work  # an attempt that only answers changes nothing
        word = "no change" if is_unchanged else "done" if node.status == "validated" else node.status
        nodes.append(NodeSummary(node_name, task.label if task else node_name, word, node.attempt,
                                 _reported(runtime, launch, git, node_name, node.attempt, landed)))
    stat = ""
    with suppress(GarrisonError):
        tip, base = git.branch_tip(launch.onto), git.rev(launch.base_ref) or launch.base_oid
        begin = git.merge_base(base, tip) if tip else None
        if tip and begin:
            stat = git.run("diff", "--no-ext-diff", "--no-textconv", "--stat=100", f"--stat-count={MAX_STAT}", begin,
                           tip, "--", check=False).out.strip("\n")
    tests, seconds = _read_test(runtime, launch, git, state.landing.attempt)
    return RunSummary(launch.run_id, plan.goal, tuple(nodes), "" if launch.no_gate else launch.gate or "", spent.usd,
                      spent.calls, closes, title, stat, launch.base, tests, seconds,
                      state.landing.status == TESTED, name, _changes(landed))


def _changes(landed: Sequence[MergeEntry]) -> tuple[LandingNote, ...]:
    """Return the runners' findings for the user on everything that the nodes landed: each kind once."""
    known: dict[str, LandingNote] = {}
    for entry in landed:
        for each in entry.changes or ():
            before = known.get(each.kind, each._replace(number=0, names=()))
            names = tuple(dict.fromkeys((*before.names, *each.names)))
            again = len(before.names) + len(each.names) - len(names)
            known[each.kind] = each._replace(number=before.number + each.number - again, names=names)
    return tuple(known.values())


def _reported(runtime: Runtime, launch: Launch, git: Git, node: str, last: int, landed: Sequence[MergeEntry]) -> str:
    """Return an agent's reports on its work in each attempt, else the subjects of its landed commits."""
    files, parts = runtime.files(launch.run_id), list[str]()
    for attempt in range(1, last + 1):
        result, _ = read_attempt_result(runtime.store, files, node, attempt)
        notes = str(result.said.get("notes") or "").strip() if result is not None else ""
        if notes and notes not in parts:
            parts.append(notes)
    if parts:
        return "\n\n".join(parts)
    subjects = list[str]()
    with suppress(GarrisonError):
        for entry in (each for each in landed if each.node == node):
            base = git.merge_base(entry.base or launch.base_oid, entry.oid)
            subjects += git.run("log", "--no-merges", "--reverse", f"--max-count={MAX_STAT}", "--format=- %s",
                                f"{base}..{entry.oid}", "--", check=False).out.splitlines() if base else []
    return "\n".join(dict.fromkeys(subjects))


def _read_test(runtime: Runtime, launch: Launch, git: Git, attempt: int) -> tuple[int, float]:
    """Return the number of tests and the duration of the gate's last green run of this landing; 0 if unknown."""
    queue = landing_queue(runtime, launch, "summary", git)
    entries = queue.state.entries_of(launch.run_id, INTEGRATION) if queue is not None else []
    if queue is None or not entries or entries[-1].attempt != attempt or not entries[-1].log:
        return 0, 0.0
    log, began, seconds = entries[-1].log, "", 0.0
    for stored in journal.read_history(queue.path):
        if stored.kind == "test":
            began = stored.at
        elif stored.kind == "verdict" and stored.data.get("log") == log and began and not stored.data.get("reused"):
            seconds = from_iso(stored.at) - from_iso(began)
    return count_tests(read_tail(Path(log), 200, 20_000)), seconds


def read_replies(runtime: Runtime, launch: Launch, state: RunState, git: Git) -> dict[str, str]:
    """Return the agents' answers to the comments for which their nodes were sent back, by the comments' keys.

    These are an agent's words on the comment, else its last words, else the subjects of its commits.
    """
    found, files, known = dict[str, str](), runtime.files(launch.run_id), state.pull_request
    for node in dict.fromkeys(known.owners.values()):
        last = state.nodes[node].attempt if node in state.nodes else 0
        said = dict[str, str]()
        for attempt in range(2, last + 1):
            with suppress(GarrisonError, OSError):
                said |= read_attempt_replies(files.attempt(node, attempt))
        keys = [key for key, owner in known.owners.items() if owner == node and not key.startswith("check:")]
        latest = max((known.taken[key] for key in keys), default=0)
        result, _ = read_attempt_result(runtime.store, files, node, last) if last > 1 else (None, "")
        words = str(result.said.get("notes") or result.said.get("failure_reason") or "") if result is not None else ""
        for key in keys:
            found[key] = said.get(key.split("@")[0], "") or (words if known.taken[key] == latest else "")
            if not found[key].strip() and (head := known.heads.get(key)):
                found[key] = git.run("log", "--no-merges", "--reverse", f"--max-count={MAX_STAT}", "--format=- %s",
                                     f"{head}..refs/heads/{launch.onto}", "--", check=False).out
    return {key: words for key, words in found.items() if words.strip()}
