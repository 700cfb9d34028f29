"""Runs one real agent in a run against a scripted model: the program that test_real_agents.py starts in isolation.

`real_agent_driver.py AGENT FOLDER [SANDBOX]`. The agent, or a process above it, is killed at each phase of two nodes'
work; what happened is written to FOLDER/told.json.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from garrison.agents.presets import Preset, find_preset
from garrison.records.json_io import read_lines
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.script import Script
from garrison.testing.turn import Fault, Turn, Usage, say
from garrison.values import field_names
from real_agents import AGENTS, RealAgent, report
from support import Place, checkout_in, git, load, make_repository, processes, stat, wait_for

NODES = ("a", "b")
OUTSIDE = "sk-outside-"
HANG = Fault("hang", "stream")


class Model:
    """The model's side: `phase`, which the test sets, decides what it does next."""

    def __init__(self, agent: RealAgent) -> None:
        self.agent, self.phase, self.keys = agent, "hang", set[str]()

    def __call__(self, asked: Request) -> Turn | Fault | str:
        """Answer."""
        if self.agent.tool not in asked.tools or asked.prompt.startswith("Your task is to generate"):
            return say("A title", usage=Usage(7, 3))  # agents have their sessions named
        phases = {"hang": self._hang, "command": self._command, "held": self._held, "work": self._work}
        steps = phases[self.phase](asked)
        step = steps[min(asked.step, len(steps) - 1)]
        return step if isinstance(step, Fault) else say(step, usage=Usage(100 + asked.step, 20, 30, 0))

    def _hang(self, _asked: Request) -> list[Any]:
        return [HANG]

    def _command(self, _asked: Request) -> list[Any]:
        return [self.agent.run("touch begun; sleep 600")]

    def _held(self, asked: Request) -> list[Any]:
        return [self.agent.run("touch held; until test -e go; do sleep 0.1; done; rm held go"), *self._work(asked)]

    def _work(self, asked: Request) -> list[Any]:
        file = f"env-{asked.key}.txt"  # codex refuses `rm -f` whatever its mode
        commit = f"test ! -e begun || rm begun; env > {file}; git add {file}; git commit -qm {asked.key}"
        return [self.agent.run(commit), report(self.agent, asked), HANG]


class Drama:
    """A run with one agent, killed again and again."""

    def __init__(self, name: str, folder: Path, sandbox: str) -> None:
        self.agent, self.folder = AGENTS[name], folder
        preset = find_preset(name)
        assert isinstance(preset, Preset)
        make_repository(checkout_in(folder))
        self.place = Place(folder)
        self.model = Model(self.agent)
        self.server = ModelServer(Script(self.model, key=r"agent of node (\w+)"), log=folder / "requests.jsonl")
        self.place.env |= {**self.server.variables, self.agent.variable: OUTSIDE + name}
        self.place.configure(preset.profile())
        self.place.use_mode(sandbox)
        self.taken: dict[str, float] = {}

    def launch(self, *nodes: str) -> subprocess.Popen[bytes]:
        """Launch a run of these nodes, one after the other."""
        graph = self.folder / "crew.dot"
        graph.write_text("digraph crew { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare];"
                         + "".join(f'{node} [shape=box, agent="{self.agent.name}", prompt="Make {node}."];'
                                   for node in nodes) + f"start -> {' -> '.join(nodes)} -> exit }}")
        return self.place.launch(graph, gate="test -f calc.py")

    def play(self) -> dict[str, Any]:
        """Play it; return what happened."""
        child = self.launch(*NODES)
        for act in (self._at_start, self._in_session, self._in_turn, self._in_command, self._after_report,
                    self._orchestrator, self._runner):
            began = time.monotonic()
            act()
            self.taken[act.__name__.strip("_")] = round(time.monotonic() - began, 1)
        code = self.place.finish(child)
        told = {"code": code, "taken": self.taken, **self._told()}
        self.server.close()
        return told

    # ---- the kills, in order

    def _at_start(self) -> None:
        self.kill_agent(self._wait("a", "its program runs", self.program_of("a")))

    def _in_session(self) -> None:
        before = self._sessions("a")
        self._wait("a", "its session is begun", lambda: len(self._sessions("a")) > len(before))
        self.kill_agent(self.program_of("a")())

    def _in_turn(self) -> None:
        self._wait("a", "its model is asked", self._is_asked)
        self.kill_agent(self.program_of("a")())
        self.model.phase = "command"

    def _in_command(self) -> None:
        self._wait("a", "its command runs", lambda: self.file("a", "begun").exists())
        self.model.phase = "work"
        self.kill_agent(self.program_of("a")())

    def _after_report(self) -> None:
        self._wait("a", "it has reported", lambda: self.has_reported("a"))
        self.model.phase = "held"
        self.kill_agent(self.program_of("a")())

    def _orchestrator(self) -> None:
        self._wait("b", "its command runs", lambda: self.file("b", "held").exists())
        self.file("b", "held").unlink()
        self.place.kill("orchestrator-b")

    def _runner(self) -> None:
        self._wait("b", "its command runs again", lambda: self.file("b", "held").exists())
        self.place.kill("runner-b")
        self.place.pid("runner-b", incarnation=2)
        self.file("b", "go").touch()
        self._wait("b", "it has reported", lambda: self.has_reported("b"))
        self.server.release()

    # ---- what is seen

    def _attempt(self, node: str) -> Path:
        return self.place.home / "runs/r1/nodes" / node / "1"

    def file(self, node: str, name: str) -> Path:
        return next(iter(self.place.trees.glob(f"*/r1/{node}")), self.place.trees / "none") / name

    def has_reported(self, node: str) -> bool:
        attempt = self._attempt(node)
        return any(path.exists() for path in (attempt / "claude/report.json", attempt / "socket-result.json",
                                              attempt / "result.json"))

    def program_of(self, node: str) -> Callable[[], int]:
        """Return what finds the process of an agent's program; 0 while there is none."""
        def find() -> int:
            pid = int(load(self._attempt(node) / "claude/process.json").get("pid") or 0)
            return pid if pid and _lives(pid) else 0
        return find

    def _sessions(self, node: str) -> list[str]:
        """Return how each connection's session started: (started or resumed, id)."""
        output = self._attempt(node) / "output.log"
        text = output.read_text() if output.exists() else ""
        return re.findall(r"── session (\S+ (?:begun|resumed)),", text)

    def _is_asked(self) -> bool:
        return any(record.fault and not record.outcome
                   for record in self.server.messages)

    def _wait(self, node: str, what: str, done: Callable[[], Any]) -> Any:
        def has_come() -> Any:
            assert not (self._attempt(node) / "result.json").exists() or done(), self._describe()
            return done()
        try:
            return wait_for(f"{self.agent.name}: {node}: {what}", has_come, 120)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._describe()}") from None

    def _describe(self) -> str:
        shown = [path.read_text() for node in NODES for path in self._attempt(node).glob("output.log")]
        asked = [f"{one.number} {one.path} {one.outcome} {one.fault} {one.problem}" for one in self.server.requests]
        return "\n".join([*shown, *asked, str(self.taken), self.place.logs()])

    def kill_agent(self, pid: int) -> None:
        """Kill an agent's whole tree."""
        parents = {one.pid: one.ppid for one in processes()}
        tree, more = {pid}, True
        while more:
            more = {child for child, parent in parents.items() if parent in tree} - tree
            tree |= more
        for each in tree:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        wait_for("it is dead", lambda: not _lives(pid))

    def _told(self) -> dict[str, Any]:
        env = {node: git(self.place.repo, "show", f"main:env-{node}.txt", check=False) for node in NODES}
        return {
            "sessions": {node: self._sessions(node) for node in NODES},
            "results": {node: load(self._attempt(node) / "result.json") for node in NODES},
            "log": git(self.place.repo, "log", "--format=%s", "--no-merges", "main").split("\n"),
            "tokens": self.tokens(), "deaths": self.place.deaths(),
            "leaked": [node for node in NODES if OUTSIDE in env[node]],
            "inside": {node: "IS_SANDBOX=1" in env[node] for node in NODES},
            "headers": any(OUTSIDE in json.dumps(record.headers) for record in self.server.requests),
            "problems": [record.problem for record in self.server.requests if record.problem]}

    def tokens(self) -> dict[str, dict[str, int]]:
        """Return the tokens of all whole answers: as the model told them, and as the proxy counted them."""
        lines = [line for path in self.place.home.glob("runs/r1/nodes/*/*/network/usage.jsonl")
                 for line in read_lines(path)]
        sent = {record.number: record.usage for record in self.server.messages if record.outcome == "sent"}
        by_number = {int(found[1]): line for line in lines if (found := re.search(r"_(\d+)(?:-|$)", line["message"]))}
        names = field_names(Usage)
        return {"double": {name: sum(usage[name] for usage in sent.values() if usage) for name in names},
                "proxy": {name: sum(by_number[number][name] for number in sent if number in by_number)
                          for name in names}}


def _lives(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found[0] != "Z"


def main() -> None:
    """Play it."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    drama = Drama(name, folder, sys.argv[3] if len(sys.argv) > 3 else "bubblewrap")
    try:
        told = drama.play()
    finally:
        left = drama.place.kill_rest()
    (folder / "told.json").write_text(json.dumps({**told, "left": left}, indent=1))
    os._exit(0)


if __name__ == "__main__":
    main()
