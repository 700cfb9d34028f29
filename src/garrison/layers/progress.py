"""What a launcher shows of its run: a line an event for people, a JSON object an event for programs.

Lines only, on a terminal too: a launcher may be put into the background, detached, killed and followed by another, or
share its terminal with who started it, and a line that is drawn anew would be in the way of all of them. Who wants a
picture is told of `garrison status --watch`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from garrison.system.screen import clean

if TYPE_CHECKING:
    from garrison.layers.run_state import RunState
    from garrison.records.journal import Entry

_WORDS = {"pending": "waiting", "active": "an agent works on it", "impl_complete": "done, waiting to be merged",
          "validated": "merged", "failed": "FAILED"}


class Progress:
    """Writes to stdout; a reader that has gone away is no reason to stop."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.watched = not quiet

    def begin(self, run: str) -> None:
        """Tell a person at a terminal where else to look."""
        if self.watched and not self.as_json and sys.stdout.isatty():
            self._print(f"watch it: garrison status {run} --watch   what an agent prints: garrison logs NODE -f   "
                        "its terminal: garrison attach NODE")

    def show(self, entry: Entry) -> None:
        """One journal record of the guardian's."""
        if not self.watched:
            return
        if self.as_json:
            self._print(json.dumps(asdict(entry), ensure_ascii=False))
            return
        line = clean(describe(entry.kind, entry.data))
        if line:
            self._print(f"{entry.at[11:19]}  {line}")

    def death(self, data: dict[str, Any]) -> None:
        """A guardian's death, which its own journal cannot tell."""
        if self.watched and not self.as_json:
            self._print(f"          {clean(describe('death', data))}")

    def end(self, status: str, reason: str, state: RunState) -> None:
        """The last word."""
        done = sum(1 for node in state.nodes.values() if node.status == "validated")
        if self.as_json:
            self._print(json.dumps({"kind": "end", "status": status, "reason": reason, "done": done,
                                    "nodes": {name: asdict(node) for name, node in state.nodes.items()}}))
            return
        self._print(f"run {status}: {done} of {len(state.nodes)} merged" + (f"; {clean(reason)}" if reason else ""))

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError):
            print(line, file=sys.stdout, flush=True)


def describe(kind: str, data: dict[str, Any]) -> str:
    """One event in words; '' for what a person need not see. Pure."""
    if kind == "signal" and data.get("effect"):
        kind, data = "node", data["effect"]
    if kind == "signal" and data.get("question"):
        return f"{data['node']} asks: {data['question']['text']}  (garrison answer {data['node']} 'TEXT')"
    if kind == "node" and data["status"] == "active" and data.get("attempt", 1) > 1:
        return f"{data['node']}: attempt {data['attempt']}, since {data.get('reason') or 'it was asked for'}"
    if kind == "node" and data["status"] != "pending":
        commit = f" ({data['commit'][:10]})" if data.get("commit") else ""
        reason = f": {data['reason']}" if data.get("reason") else ""
        return f"{data['node']}: {_WORDS[data['status']]}{commit}{reason}"
    if kind == "note":
        return f"{data['who']} waits for you: {data['text']}"
    if kind == "run":
        return f"run {data['status']}" + (f": {data['reason']}" if data.get("reason") else "")
    stem = data.get("full", "").partition("@")[0]
    if kind == "death":
        return f"{stem} life {data['incarnation']} died: {data['why']}"
    if kind == "spawn" and data["incarnation"] > 1 and not data.get("why", "").startswith("attempt "):
        return f"{stem} respawned as life {data['incarnation']}"
    if kind == "park":
        return f"{stem} was given up: {data['why']}"
    if kind == "signal" and data.get("type") == "ORCHESTRATOR_CRASHED":
        return f"orchestrator-{data['node']} died; its runner brings it back"
    return ""
