"""Claude tasks under garrison against the SDK called bare with the same scripted turns: wall time and memory, the time
from a death to the resumed request, and the memory of a node while it works and while it waits for a person.

    .venv/bin/python benchmarks/claude.py [ROUNDS]

Runs itself inside garrison.testing.isolation: the real CLI, a scripted model, no network. Bare and garrison alternate,
so that load hits both alike; it is printed, since starting the CLI is most of a task. Memory is private memory
(smaps_rollup), with the CLI's own apart.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from garrison.agents.claude.attempt_files import AttemptFiles
from garrison.records.json_io import read_json
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import Turn, say, use

REPORT = "mcp__garrison__report_result"
PROGRAM = [sys.executable, "-P", "-m", "garrison.cli.main"]
LONG = 120.0
"""Seconds after which something has gone wrong."""


def answer(asked: Request) -> Turn | str:
    """Play the model: one commit, a report, a last message; if the prompt says so, a long tool or a question first."""
    resumed = "This session was interrupted" in asked.prompt or "The answer:" in asked.prompt
    if asked.step == 0 and not resumed and "Sleep first" in asked.prompt:
        return say(use("Bash", command="sleep 60"))
    if not resumed and "Ask first" in asked.prompt:
        return "I wait." if asked.step else say(use("mcp__garrison__ask_guardian", question="Which?"))
    turns = (say(use("Bash", command="echo x > x.txt && git add -A && git commit -qm x")),
             say(use(REPORT, status="success", summary="x is there")), "Done.")
    return turns[min(asked.step, 2)]


@dataclass
class Bench:
    """Folder with a repository and a home, and the model's server."""

    root: Path
    server: ModelServer
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env = {**os.environ, "ANTHROPIC_BASE_URL": self.server.url, "GARRISON_HOME": str(self.root / "home"),
                    "GARRISON_TREES": str(self.root / "trees"), "XDG_STATE_HOME": str(self.root / "state")}
        self.repo = self.root / "repo"
        self.repo.mkdir(parents=True)
        for words in (["init", "-qb", "main"], ["config", "user.name", "b"], ["config", "user.email", "b@localhost"],
                      ["commit", "-q", "--allow-empty", "-m", "Begin"]):
            subprocess.run(["git", *words], cwd=self.repo, check=True)

    @property
    def files(self) -> AttemptFiles:
        """Return the files of the node's sessions."""
        return AttemptFiles(self.root / "home/runs/r/nodes/task/1")

    def bare(self) -> subprocess.Popen[bytes]:
        """Run the SDK alone, in a process of its own."""
        return subprocess.Popen([sys.executable, __file__, "--bare", str(self.repo)], env=self.env)

    def launch(self, prompt: str = "Write x.") -> subprocess.Popen[bytes]:
        """Run one node, whose branch is merged after a gate of `true`."""
        graph = self.root / "one.dot"
        graph.write_text('digraph one { start [shape=Mdiamond]; exit [shape=Msquare]; start -> task -> exit; '
                         f'task [shape=box, agent=claude, prompt="{prompt}"] }}')
        return subprocess.Popen([*PROGRAM, "launch", str(graph), "--target-dir", str(self.repo), "--run", "r", "--gate",
                                 "true", "--terminal", "process"], env=self.env, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def private(self) -> dict[str, int]:
        """Private KiB of everything that bears this bench's home or repository, by kind: cli, node, above."""
        found = {"cli": 0, "node": 0, "above": 0}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if not entry.name.isdigit() or str(self.root).encode() not in (entry / "environ").read_bytes():
                    continue
                found[kind_of((entry / "cmdline").read_bytes().decode().replace("\0", " "))] += private(entry)
        return found


def kind_of(argv: str) -> str:
    """Return the kind of a process by its command line."""
    if "_bundled/claude" in argv.partition(" ")[0]:
        return "cli"
    return "node" if any(word in argv for word in ("processes.main runner", "processes.main orchestrator",
                                                   "claude.connection", "--bare")) else "above"


def private(entry: Path) -> int:
    """Private KiB of one process."""
    lines = (entry / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def until(condition: Callable[[], object]) -> None:
    """Wait for it."""
    end = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("the benchmark waited in vain; the machine may be too busy")
        time.sleep(0.005)


def timed(bench: Bench, begin: Callable[[], subprocess.Popen[bytes]]) -> tuple[float, dict[str, int]]:
    """Seconds to the process's end, and the most private memory that was seen of each kind."""
    began, most = time.perf_counter(), {"cli": 0, "node": 0, "above": 0}
    child = begin()
    while child.poll() is None:
        most = {kind: max(most[kind], now) for kind, now in bench.private().items()}
        time.sleep(0.05)
    if child.returncode:
        raise SystemExit(f"it failed with exit code {child.returncode}")
    return time.perf_counter() - began, most


def resumed_after(bench: Bench) -> float:
    """Seconds from kill -9 of the CLI in mid-tool to the resumed request at the model's server."""
    child = bench.launch("Sleep first.")
    until(lambda: bench.files.stream.exists() and '"name": "Bash"' in bench.files.stream.read_text())
    time.sleep(0.3)
    before = len(bench.server.messages)
    os.kill(read_json(bench.files.process)["pid"], signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: len(bench.server.messages) > before)
    child.wait(LONG)
    return bench.server.messages[before].at - killed


def waiting(bench: Bench) -> dict[str, int]:
    """Private memory of a node whose question is open: its CLI is gone."""
    child = bench.launch("Ask first.")
    until(bench.files.waiting.exists)
    time.sleep(1)
    found = bench.private()
    until(lambda: not subprocess.run([*PROGRAM, "answer", "task", "this"], env=bench.env, check=False,
                                     stderr=subprocess.DEVNULL).returncode)
    child.wait(LONG)
    return found


@contextmanager
def benches() -> Iterator[Callable[[], Bench]]:
    """Makes benches in a temporary folder, with one server."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ModelServer(answer) as server:
        made: list[Bench] = []

        def make() -> Bench:
            made.append(Bench(Path(folder) / str(len(made)), server))
            return made[-1]

        yield make


def main(rounds: int) -> None:
    """Measure and print."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {rounds} rounds; medians")
    with benches() as make:
        bare, whole, back = [], [], []
        for _ in range(rounds):
            bench = make()
            bare.append(timed(bench, bench.bare))
            bench = make()
            whole.append(timed(bench, bench.launch))
            back.append(resumed_after(make()))
        rest = waiting(make())
    told("SDK alone, one task", bare)
    told("garrison, a run of one task", whole)
    overhead = statistics.median(one for one, _ in whole) - statistics.median(one for one, _ in bare)
    print(f"{'overhead of the run':32} {overhead:6.2f} s  (launcher, guardian, worktree, two gates and the merge too)")
    worst = f"worst of {len(back)}: {max(back):.2f} s"
    print(f"{'kill -9 of the CLI to a request':32} {statistics.median(back):6.2f} s  {worst}")
    print(f"{'a node that waits for an answer':32}           {in_mib(rest)}")
    print(f"load {os.getloadavg()[0]:.1f} at the end")


def told(what: str, rounds: list[tuple[float, dict[str, int]]]) -> None:
    """Add one line to the table."""
    seconds = [one for one, _ in rounds]
    most = {kind: int(statistics.median(memory[kind] for _, memory in rounds)) for kind in ("node", "cli", "above")}
    print(f"{what:32} {statistics.median(seconds):6.2f} s  {in_mib(most)}")


def in_mib(memory: dict[str, int]) -> str:
    """Private memory by kind."""
    node, cli, above = (round(memory[kind] / 1024) for kind in ("node", "cli", "above"))
    return f"node {node} MiB, CLI {cli}, layers above {above}"


async def bare_sdk(tree: str) -> None:
    """Run the same turns without garrison."""
    from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, create_sdk_mcp_server, tool

    @tool("report_result", "Report", {"type": "object", "properties": {"status": {"type": "string"}}})
    async def report(given: dict[str, object]) -> dict[str, object]:
        return {"content": [{"type": "text", "text": json.dumps(given)}]}

    options = ClaudeAgentOptions(
        cwd=tree, setting_sources=[], strict_mcp_config=True, permission_mode="dontAsk", tools=["Bash"],
        allowed_tools=["Bash", REPORT], mcp_servers={"garrison": create_sdk_mcp_server("garrison", "1", [report])})
    async with ClaudeSDKClient(options) as client:
        await client.query("Write x.")
        async for _ in client.receive_response():
            pass


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        asyncio.run(bare_sdk(sys.argv[2]))
    elif "GARRISON_ISOLATION" not in os.environ:
        sys.exit(subprocess.run([sys.executable, "-P", "-m", "garrison.testing.isolation", "--", sys.executable,
                                 *sys.argv], check=False).returncode)
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
