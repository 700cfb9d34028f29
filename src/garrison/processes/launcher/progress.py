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

from garrison.pipeline.gates import OpenGate
from garrison.processes.run_state import RESUMED
from garrison.system.terminal_text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from garrison.processes.run_state import RunState
    from garrison.records.journal import Entry

_WORDS = {"pending": "waiting", "active": "an agent works on it", "impl_complete": "done, waiting to be merged",
          "validated": "merged", "failed": "FAILED", "skipped": "skipped"}
_LONG = 300
"""Characters of what somebody said, in one line."""


class Progress:
    """Writes to stdout; a reader that has gone away is no reason to stop."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.watched = not quiet
        self._named = ""

    def begin(self, run: str) -> None:
        """Tell a person at a terminal where else to look."""
        self._named = run
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
        line = clean(describe_event(entry.kind, entry.data))
        if line:
            self._print(f"{entry.at[11:19]}  {line}")

    def death(self, data: dict[str, Any]) -> None:
        """A guardian's death, which its own journal cannot tell."""
        if self.watched and not self.as_json:
            self._print(f"          {clean(describe_event('death', data))}")

    def end(self, status: str, reason: str, state: RunState) -> None:
        """The last word; where it failed, with where to look."""
        done = sum(1 for node in state.nodes.values() if node.status == "validated")
        if self.as_json:
            self._print(json.dumps({"kind": "end", "status": status, "reason": reason, "done": done,
                                    "nodes": {name: asdict(node) for name, node in state.nodes.items()}}))
            return
        why = f"; {clean(reason)}" if reason else ""
        look = f"; more: garrison status {self._named}" if status == "failed" else ""
        self._print(f"run {status}: {done} of {len(state.nodes)} merged{why}{look}")

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError):
            print(line, file=sys.stdout, flush=True)


def describe_event(kind: str, data: dict[str, Any]) -> str:
    """One event in words; '' for what a person need not see. Pure."""
    teller = _TELLERS.get(kind)
    return teller(data) if teller else ""


def _node(data: dict[str, Any]) -> str:
    if data["status"] == "pending":
        return ""  # its attempt will be told when it begins
    reason = _brief(data.get("reason", ""))
    if data["status"] == "active" and data.get("attempt", 1) > 1:
        return f"{data['node']}: attempt {data['attempt']}, since {reason or 'it was asked for'}"
    commit = f" ({data['commit'][:10]})" if data.get("commit") else ""
    return f"{data['node']}: {_WORDS[data['status']]}{commit}" + (f": {reason}" if reason else "")


def _signal(data: dict[str, Any]) -> str:
    if data.get("effect"):
        return _node(data["effect"])
    if data.get("run"):
        return _run({"status": data["run"], "reason": RESUMED})
    if data.get("flow"):
        return _flow(data["flow"])
    if data.get("question"):
        return f"{data['node']} asks: {shorten(data['question']['text'])}  (garrison answer {data['node']} 'TEXT')"
    if data.get("type") == "ORCHESTRATOR_CRASHED" and data.get("why") != "stopped":
        why = f" ({_brief(data['why'])})" if data.get("why") else ""
        return f"orchestrator-{data['node']} died{why}; its runner looks after it"
    return ""


def _manager(data: dict[str, Any]) -> str:
    steers = data.get("steer") and data.get("steered") == data.get("cycle")
    return f"{data['node']} says to its pipeline: {shorten(data['steer'])}" if steers else ""


def _gate(data: dict[str, Any]) -> str:
    return "" if data.get("closed") else f"{data['node']} {shorten(OpenGate.from_record(data).summary())}"


def _flow(data: dict[str, Any]) -> str:
    """Only what its nodes do not tell themselves."""
    if data.get("event") == "timed_out":
        return "the pipeline's time is used up"
    outcome = data.get("outcome") or {}
    label = outcome.get("preferred_label")
    if not label:
        return ""
    return f"{data['node']}: {shorten(label)}"


def _run(data: dict[str, Any]) -> str:
    if data["status"] == "failed":
        return ""  # the last word says so, and why
    return f"run {data['status']}" + (f": {data['reason']}" if data.get("reason") else "")


def _spawn(data: dict[str, Any]) -> str:
    if data["incarnation"] == 1 or data.get("why", "").startswith("attempt "):
        return ""
    return f"{_stem(data)} respawned as life {data['incarnation']}"


def _stem(data: dict[str, Any]) -> str:
    return str(data["full"]).partition("@")[0]


def _brief(reason: str) -> str:
    """A reason that goes on with a log's tail, as its first line and the tail's last."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return "; … ".join(shorten(line) for line in [*lines[:1], *lines[1:][-1:]])


def shorten(line: str) -> str:
    """A line that fits on a screen: what an agent says may be of any length."""
    return line if len(line) <= _LONG else f"{line[:_LONG]}…"


_TELLERS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "node": _node, "signal": _signal, "run": _run, "spawn": _spawn, "gate": _gate, "flow": _flow,
    "manager": _manager,
    "note": lambda data: f"{data['who']} waits for you: {data['text']}",
    "death": lambda data: f"{_stem(data)} life {data['incarnation']} died: {data['why']}",
    "park": lambda data: f"{_stem(data)} was given up: {data['why']}",
}
"""Journal kind → its words."""
