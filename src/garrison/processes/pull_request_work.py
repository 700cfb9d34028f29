"""Work of a run, as its pull request needs it: a summary for the text, and the node that owns a line.

A line is owned by the node whose commit last changed it (`git blame`), a file by the last node that changed it. What
the base had already belongs to no node.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.processes.attempt_result import read_attempt_result
from garrison.processes.pull_request_texts import NodeSummary, RunSummary
from garrison.processes.run_branch import node_queue
from garrison.records import costs

if TYPE_CHECKING:
    from garrison.merge.entry import MergeEntry
    from garrison.pipeline.plan import RunPlan
    from garrison.processes.run_state import RunState
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.system.git import Git

MAX_FILES = 400
"""Changed files that are searched for in a check's log."""


class OwnerFinder:
    """Finds the node that is to mend a line or file of one run."""

    def __init__(self, runtime: Runtime, launch: Launch, git: Git) -> None:
        self.launch, self.git = launch, git
        self.queue = node_queue(runtime, launch, "owners", git)  # its own: a queue is read by one thread

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
        """Return the first node whose work has a commit that the base had not."""
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
        """Return the files that the run changed, the longest names first: a log names them whole."""
        return sorted(self.git.changed_paths(self.launch.base_oid, commit), key=len, reverse=True)[:MAX_FILES]


def summarize(runtime: Runtime, launch: Launch, plan: RunPlan, state: RunState, closes: str = "") -> RunSummary:
    """Return what the pull request tells of the run."""
    files, records = runtime.files(launch.run_id), []
    for _, _, path in costs.usage_files(runtime.home, launch.run_id):
        with suppress(GarrisonError, OSError):
            records += costs.read_usage(path)
    spent, nodes = costs.total(records), []
    for name, node in state.nodes.items():
        result, _ = read_attempt_result(runtime.store, files, name, node.attempt)
        notes = str(result.said.get("notes") or "") if result is not None else ""
        task = plan.tasks.get(name)
        word = "no change" if node.is_unchanged else "done" if node.status == "validated" else node.status
        nodes.append(NodeSummary(name, task.label if task else name, word, node.attempt, notes))
    return RunSummary(launch.run_id, plan.goal, tuple(nodes), "" if launch.no_gate else launch.gate or "", spent.usd,
                      spent.calls, closes)
