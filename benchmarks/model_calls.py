"""Calls of the model that twelve tasks need until they have landed: two each that are green at once, meet a red gate, a
conflict, a validator that refuses, a death of the CLI or of the orchestrator, and an outage of the API.

    .venv/bin/python benchmarks/model_calls.py [--python FILE] [--kinds KIND,…] [--outage SECONDS] [--json]

`--python` is the Python of an environment with another version of garrison: the same tasks by that one. Runs itself
inside garrison.testing.isolation: the real CLI at default settings, a scripted model, no network.

The model does what it is told, and no more. It makes one call a response, unless the prompt has it beside another one.
It calls each tool that its system prompt asks for, reads its task's file and what its prompt names without showing it
(refused work, the commits of a conflict), and reads nothing twice in a session. Its first work for a red gate breaks a
rule that only the gate knows; that for a validator lacks a line that the task asks for. Each request counts, also one
that the API refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.script import Script
from garrison.testing.turn import Fault, Turn, say, use

KINDS = ("green", "gate", "conflict", "validator", "crash", "outage")
TOOL = "mcp__garrison__"
LONG = 1200.0
"""Seconds after which a run has gone wrong."""
GATE = "! grep -rn BROKEN --include=*.txt . || { echo a line says BROKEN; exit 1; }"


@dataclass
class Bench:
    """A repository, a home, and the model of one run of two tasks of one kind."""

    root: Path
    kind: str
    outage: float
    python: str = sys.executable
    done: set[str] = field(default_factory=set)
    """What has happened once and does not again: deaths, moves of the target."""
    outage_ends: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.repo, self.home = self.root / "repo", self.root / "home"
        self.nodes = [f"{self.kind}{number}" for number in (1, 2)]
        self.repo.mkdir(parents=True)
        for words in (["init", "-qb", "main"], ["config", "user.name", "b"], ["config", "user.email", "b@localhost"]):
            self.git(*words)
        for node in self.nodes:
            (self.repo / f"{node}.txt").write_text("one\n\ntwo\n\nthree\n")
        self.git("add", "-A")
        self.git("commit", "-qm", "Begin")

    def git(self, *words: str) -> None:
        """Run git in the user's checkout."""
        subprocess.run(["git", *words], cwd=self.repo, check=True)

    def run(self) -> dict[str, str]:
        """Run both tasks to their end; return how each node ended."""
        with ModelServer(Script(self._answer, key=r"(?:agent of node|worked on node) (\w+)")) as server:
            env = {**os.environ, "ANTHROPIC_BASE_URL": server.url, "GARRISON_HOME": str(self.home),
                   "GARRISON_TREES": str(self.root / "trees"), "XDG_STATE_HOME": str(self.root / "state")}
            more = ", validator=claude" if self.kind == "validator" else ""
            graph = self.root / "two.dot"
            graph.write_text("digraph two { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare]; " + " ".join(
                f'{node} [shape=box, agent=claude, prompt="Add the lines four and five to {node}.txt."{more}]; '
                f"start -> {node} -> exit;" for node in self.nodes) + " }")
            with (self.root / "log").open("w") as log:
                child = subprocess.Popen([self.python, "-P", "-m", "garrison.cli.main", "launch", str(graph),
                                          "--target-dir", str(self.repo), "--run", "r", "--gate", GATE, "--terminal",
                                          "process"], env=env, stdout=log, stderr=log)
                try:
                    child.wait(LONG)
                finally:
                    child.kill()
            self.calls = Counter(self._key(message.asked) for message in server.messages)
            problems = [message.problem for message in server.messages if message.problem]
            if problems:
                print(f"{self.kind}: {problems[0]}", file=sys.stderr)
        return {node: self._end(node) for node in self.nodes}

    def _key(self, asked: Request) -> str:
        found = re.search(r"(?:agent of node|worked on node) (\w+)", asked.system)
        return found[1] if found else "other"

    def _end(self, node: str) -> str:
        text = subprocess.run(["git", "show", f"main:{node}.txt"], cwd=self.repo, capture_output=True, text=True,
                              check=False).stdout
        is_whole = {"four", "five"} <= set(text.split()) and (self.kind != "conflict" or "theirs" in text)
        return "landed" if is_whole else "not landed"

    # ---- the model

    def _answer(self, asked: Request) -> Turn | Fault | str:
        node = self._key(asked)
        if self.kind == "outage" and asked.step == 1:
            self.outage_ends = self.outage_ends or time.monotonic() + self.outage
        if self.outage_ends and time.monotonic() < self.outage_ends:
            return Fault("status", 503)
        plan = self._judge(asked, node) if "You validate in a garrison" in asked.system else self._work(asked, node)
        return plan[min(asked.step, len(plan) - 1)]

    def _work(self, asked: Request, node: str) -> list[Turn | str]:
        prompt, system, file = asked.prompt, asked.system, f"{node}.txt"
        is_first, is_rework = len(asked.prompts) == 1, "REWORK: attempt" in prompt
        says_phase = "`update_phase`" in system
        read, phase = say(use("Read", file_path=file)), "phase" if says_phase else ""
        plan: list[Turn | str] = []
        if "ended your turn without a report" in prompt:
            return [self._report(), "Done."]
        if "was interrupted" in prompt:
            plan.append(say(use("Bash", command=f"git status --short; git log --oneline -3; cat {file}")))
        elif is_rework and is_first:
            rescue = re.search(r"refs/garrison/rescue/\S+?(?=`)", prompt)
            plan += [say(use("Bash", command=f"git diff HEAD {rescue[0]}"))] if rescue else []
            plan.append(read)
        elif not is_rework:
            plan.append(read)
        if is_rework and self.kind == "conflict":
            plan += [] if "<<<<<<< HEAD" in prompt else [say(use("Bash", command=f"git log -3 -p -- {file}"))]
        plan += [self._phase("executing")] if phase and (is_first or is_rework) else []
        notes = use(f"{TOOL}save_notes", text="The lines go to the end.")
        is_apart = "`save_notes`" in system and "`save_notes`, beside another call" not in system
        work = use("Bash", command=self._edit(node, is_again=is_rework))
        plan.append(say(work) if is_apart else say(work, notes))
        self._mishap(asked, node, len(plan))
        plan += [say(notes)] if is_apart else []
        plan.append(say(use("Bash", command=GATE if self.kind != "gate" or is_rework else f"cat {file}")))
        plan += [self._phase("impl_complete")] if phase else []
        plan += [self._report(), "Done."]
        if self.kind == "conflict" and not is_rework and asked.step == len(plan) - 2:
            self._move_target(node)
        return plan

    def _edit(self, node: str, *, is_again: bool) -> str:
        file = f"{node}.txt"
        lines = {"gate": "four\\nBROKEN five\\n", "validator": "four\\n"}.get(self.kind, "four\\nfive\\n")
        if is_again:
            lines = "four\\nfive\\n"
        theirs = "grep -q theirs HEAD:x 2>/dev/null; "
        kept = f"three=$(git show main:{file} 2>/dev/null | grep theirs || echo three)" if self.kind == "conflict" \
            else "three=three"
        return (f"{'' if not is_again else theirs}{kept}; printf \"one\\n\\ntwo\\n\\n$three\\n{lines}\" > {file}; "
                f"git add -A; git commit -qm 'Add the lines'; echo committed")

    @staticmethod
    def _phase(phase: str) -> Turn:
        return say(use(f"{TOOL}update_phase", phase=phase))

    @staticmethod
    def _report() -> Turn:
        return say(use(f"{TOOL}report_result", status="success", summary="the lines are there", evidence=["git log"]))

    @staticmethod
    def _judge(asked: Request, node: str) -> list[Turn | str]:
        is_whole = re.search(r"(?m)^\+five", asked.prompts[0]) is not None
        criteria = [{"criterion": '"the lines four and five"', "met": is_whole, "evidence": f"{node}.txt"}]
        return [say(use("Read", file_path=f"{node}.txt")), say(use(
            f"{TOOL}report_verdict", verdict="pass" if is_whole else "fail",
            reason="both are there" if is_whole else "the line five is missing", criteria=criteria)), "Done."]

    # ---- what happens to it

    def _mishap(self, asked: Request, node: str, at: int) -> None:
        """Kill the first task's CLI, the second one's orchestrator, once its work is requested."""
        if self.kind != "crash" or asked.step != at or node in self.done:
            return
        self.done.add(node)
        if node == self.nodes[0]:
            pid = json.loads((self.home / f"runs/r/nodes/{node}/1/claude/process.json").read_text())["pid"]
        else:
            found = next((self.home / "identities").rglob(f"*orchestrator*{node}*"), None)
            body = json.loads(found.read_text()) if found and found.is_file() else {}
            pid = body.get("pid") or _orchestrator(self.home, node)
        with suppress(OSError):
            os.kill(int(pid), signal.SIGKILL)

    def _move_target(self, node: str) -> None:
        """Let the user commit something on the target that conflicts with the task's work."""
        if node not in self.done:
            self.done.add(node)
            (self.repo / f"{node}.txt").write_text("one\n\ntwo\n\ntheirs\n")
            self.git("commit", "-qam", "Change the third line")


def _orchestrator(home: Path, node: str) -> int:
    """Return the pid of a node's orchestrator, by its environment and its command line."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                words = (entry / "cmdline").read_bytes()
                if b"orchestrator" in words and node.encode() in words and str(home).encode() in (
                        entry / "environ").read_bytes():
                    return int(entry.name)
    raise SystemExit(f"no orchestrator of {node}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--outage", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if "GARRISON_ISOLATION" not in os.environ:
        os.execv(sys.executable, [sys.executable, "-P", "-m", "garrison.testing.isolation", "--", sys.executable,
                                  __file__, *sys.argv[1:]])
    rows = []
    for kind in given.kinds.split(","):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            bench = Bench(Path(folder), kind, given.outage, given.python)
            ends = bench.run()
            rows += [{"task": node, "calls": bench.calls[node], "end": end} for node, end in ends.items()]
            if bench.calls["other"]:
                rows.append({"task": f"{kind}, beside", "calls": bench.calls["other"], "end": ""})
            if set(ends.values()) != {"landed"}:
                print((Path(folder) / "log").read_text()[-1500:], file=sys.stderr)
        if not given.json:
            for row in rows[-2:]:
                print(f"{row['task']:12} {row['calls']:4} calls, {row['end']}", flush=True)
    total, landed = sum(row["calls"] for row in rows), sum(row["end"] == "landed" for row in rows)
    if given.json:
        print(json.dumps(rows))
    else:
        print(f"in all {total} calls, {landed} of 12 landed, {total / max(1, landed):.1f} a landed task")


if __name__ == "__main__":
    main()
