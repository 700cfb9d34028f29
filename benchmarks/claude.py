"""Claude tasks under garrison against the SDK called bare with the same scripted turns: wall time and memory, the time
from a death to the resumed request compared with a cold start, model requests caused by a death and made while a
session waits for the user, memory of a node, and the size of each prompt.

    .venv/bin/python benchmarks/claude.py [ROUNDS] [--idle SECONDS] [--most SECONDS]

Runs itself inside garrison.testing.isolation: the real CLI, a scripted model, no network. Bare and garrison alternate,
so that load hits both alike; it is printed, since starting the CLI is most of a task. Each round is printed as it ends,
and none begins that could exceed `--most`. Memory is private memory (smaps_rollup), with the CLI's own apart.
"""

from __future__ import annotations

import argparse
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

import claude_agent_sdk

from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.prompt import estimate_tokens
from garrison.records.identity import Identity
from garrison.records.json_io import read_json, read_lines
from garrison.records.names import Key
from garrison.records.store import Store
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import Turn, say, use

REPORT = "mcp__garrison__report_result"
PROGRAM = [sys.executable, "-P", "-m", "garrison.cli.main"]
DEATHS = 2
"""Deaths in the run of `killed`: the CLI's, then the orchestrator's."""
LONG = 120.0
"""Seconds after which something has gone wrong."""


def answer(asked: Request) -> Turn | str:
    """Play the model: one commit and a report; if the prompt says so, a long tool until two deaths, or a question."""
    deaths = sum("This session was interrupted" in prompt for prompt in asked.prompts)
    if asked.step == 0 and deaths < DEATHS and "Sleep first" in asked.prompts[0]:
        return say(use("Bash", command="sleep 60"))
    if "The answer:" not in asked.prompt and "Ask first" in asked.prompts[0]:
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

    def cli_alone(self) -> subprocess.Popen[bytes]:
        """Run the CLI alone on one prompt."""
        program = Path(claude_agent_sdk.__file__).parent / "_bundled/claude"
        return subprocess.Popen([program, "-p", "Write x.", "--output-format", "stream-json", "--verbose", "--tools",
                                 "Bash", "--setting-sources", "", "--strict-mcp-config"], cwd=self.repo, env=self.env,
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run(self) -> subprocess.Popen[bytes]:
        """Run one task as a user does, but without tmux."""
        return subprocess.Popen([Path(sys.executable).with_name("garrison"), "run", "Write x.", "--agent", "claude",
                                 "--target-dir", str(self.repo), "--gate", "true", "--setup", "", "--terminal",
                                 "process"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def launch(self, prompt: str = "Write x.") -> subprocess.Popen[bytes]:
        """Run one node, whose branch is merged after a gate of `true`."""
        graph = self.root / "one.dot"
        graph.write_text('digraph one { start [shape=Mdiamond]; exit [shape=Msquare]; start -> task -> exit; '
                         f'task [shape=box, agent=claude, prompt="{prompt}"] }}')
        return subprocess.Popen([*PROGRAM, "launch", str(graph), "--target-dir", str(self.repo), "--run", "r", "--gate",
                                 "true", "--terminal", "process"], env=self.env, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def private(self) -> dict[str, int]:
        """Private KiB of all processes with this bench's home or repository, by kind: cli, node, above."""
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
    """Seconds to the process's end, and the maximum private memory of each kind."""
    began, most = time.perf_counter(), {"cli": 0, "node": 0, "above": 0}
    child = begin()
    while child.poll() is None:
        most = {kind: max(most[kind], now) for kind, now in bench.private().items()}
        time.sleep(0.05)
    if child.returncode:
        raise SystemExit(f"it failed with exit code {child.returncode}")
    return time.perf_counter() - began, most


@dataclass(frozen=True)
class Deaths:
    """Run whose CLI and then orchestrator are killed during a tool: seconds to the first and the resumed requests."""

    start: float
    cli: float
    orchestrator: float
    extra: int
    """Model requests beyond those of an undisturbed run, and one for each death that carries on with it."""


def first_requests(bench: Bench) -> dict[str, float]:
    """Return seconds until the first request: of the CLI alone, the SDK alone, and `garrison run` in a warm home."""
    found = {}
    bench.launch().wait(LONG)
    for name, begin in (("the CLI alone", bench.cli_alone), ("the SDK alone", bench.bare), ("garrison run", bench.run)):
        before, began = len(bench.server.messages), time.monotonic()
        child = begin()
        while len(bench.server.messages) == before:
            time.sleep(0.005)
            if time.monotonic() - began > LONG:
                raise SystemExit(f"{name}: no request; the machine may be too busy")
        found[name] = bench.server.messages[before].at - began
        child.wait(LONG)
    return found


def killed(bench: Bench) -> Deaths:
    """Measure one run with both deaths."""
    before, began = len(bench.server.messages), time.monotonic()
    child = bench.launch("Sleep first.")
    until(lambda: len(bench.server.messages) > before)
    start = bench.server.messages[before].at - began
    cli = resumed_after(bench, 1, lambda: int(read_json(bench.files.process)["pid"]))
    orchestrator = resumed_after(bench, 2, lambda: orchestrator_of(bench))
    child.wait(LONG)
    undisturbed = 3  # the tool that is killed, the work, the report
    return Deaths(start, cli, orchestrator, len(bench.server.messages) - before - undisturbed - (DEATHS - 1))


def resumed_after(bench: Bench, number: int, pid: Callable[[], int]) -> float:
    """Seconds from kill -9 of a process in mid-tool, the tool's `number`th call, to the resumed request."""
    until(lambda: bench.files.stream.exists() and bench.files.stream.read_text().count('"name": "Bash"') >= number)
    time.sleep(0.3)
    before = len(bench.server.messages)
    os.kill(pid(), signal.SIGKILL)
    died = time.monotonic()
    until(lambda: len(bench.server.messages) > before)
    return bench.server.messages[before].at - died


def orchestrator_of(bench: Bench) -> int:
    """Return the pid of the node's orchestrator."""
    identity = Store(bench.root / "home").read(Identity, Key("orchestrator", "task", "r"))
    assert identity is not None and identity.pid is not None
    return identity.pid


def waiting(bench: Bench, idle: float) -> tuple[dict[str, int], int]:
    """Private memory of a node whose question is open (its CLI is gone), and the model's requests in `idle` seconds."""
    child = bench.launch("Ask first.")
    until(bench.files.waiting.exists)
    time.sleep(1)
    found, before = bench.private(), len(bench.server.requests)
    time.sleep(idle)
    requests = len(bench.server.requests) - before
    until(lambda: not subprocess.run([*PROGRAM, "answer", "task", "this"], env=bench.env, check=False,
                                     stderr=subprocess.DEVNULL).returncode)
    child.wait(LONG)
    return found, requests


def prompt_sizes(bench: Bench) -> list[tuple[str, int]]:
    """Return the prompts of a bench's node, with estimated tokens."""
    sizes: dict[str, int] = {}
    for line in read_lines(bench.files.prompts):
        if line.get("system"):
            sizes.setdefault("added to the system prompt", estimate_tokens(line["system"]))
        sizes.setdefault(f"message ({line['kind']})", estimate_tokens(line["message"]))
    return list(sizes.items())


@contextmanager
def benches() -> Iterator[Callable[[], Bench]]:
    """Makes benches in a temporary folder, with one server."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ModelServer(answer) as server:
        made: list[Bench] = []

        def make() -> Bench:
            made.append(Bench(Path(folder) / str(len(made)), server))
            return made[-1]

        yield make


def main(rounds: int, idle: float, most: float) -> None:
    """Measure and print."""
    end = time.monotonic() + most - idle
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {rounds} rounds; medians at the end", flush=True)
    with benches() as make:
        bare, whole, deaths, firsts = [], [], [], []
        for number in range(1, rounds + 1):
            began = time.monotonic()
            bench = make()
            bare.append(timed(bench, bench.bare))
            bench = make()
            whole.append(timed(bench, bench.launch))
            firsts.append(first_requests(make()))
            bench = make()
            deaths.append(one := killed(bench))
            print(f"round {number}: bare {bare[-1][0]:.2f} s, run {whole[-1][0]:.2f}, cold start to a request "
                  f"{one.start:.2f}, killed CLI {one.cli:.2f}, killed orchestrator {one.orchestrator:.2f}, extra "
                  f"requests {one.extra}", flush=True)
            if (now := time.monotonic()) + 2 * (now - began) > end:  # as much time again for the rest
                break
        sizes = prompt_sizes(bench)
        rest, requests = waiting(make(), idle)
    told("SDK alone, one task", bare)
    told("garrison, a run of one task", whole)
    overhead = statistics.median(one for one, _ in whole) - statistics.median(one for one, _ in bare)
    print(f"{'overhead of the run':38} {overhead:6.2f} s  (launcher, guardian, worktree, two gates and the merge too)")
    for name in firsts[0]:
        spread(f"start of {name} to its request", [one[name] for one in firsts])
    spread("cold start of a run to its request", [one.start for one in deaths])
    spread("kill -9 of the CLI to a request", [one.cli for one in deaths])
    spread("kill -9 of the orchestrator to one", [one.orchestrator for one in deaths])
    extra = [one.extra for one in deaths]
    print(f"{'extra model requests of two deaths':38} {statistics.median(extra):6.1f}    "
          f"worst of {len(extra)}: {max(extra)}")
    print(f"{f'requests in {idle:.0f} s of waiting for a person':38} {requests:6}")
    print(f"{'a node that waits for an answer':38}           {in_mib(rest)}")
    for what, tokens in sizes:
        print(f"{what:38} {tokens:6} tokens, by its length")
    print(f"load {os.getloadavg()[0]:.1f} at the end")


def spread(what: str, seconds: list[float]) -> None:
    """Add one line with the median and the worst."""
    print(f"{what:38} {statistics.median(seconds):6.2f} s  worst of {len(seconds)}: {max(seconds):.2f} s")


def told(what: str, rounds: list[tuple[float, dict[str, int]]]) -> None:
    """Add one line to the table."""
    seconds = [one for one, _ in rounds]
    most = {kind: int(statistics.median(memory[kind] for _, memory in rounds)) for kind in ("node", "cli", "above")}
    print(f"{what:38} {statistics.median(seconds):6.2f} s  {in_mib(most)}")


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
        parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
        parser.add_argument("rounds", type=int, nargs="?", default=7)
        parser.add_argument("--idle", type=float, default=20.0, metavar="SECONDS")
        parser.add_argument("--most", type=float, default=350.0, metavar="SECONDS")
        given = parser.parse_args()
        main(given.rounds, given.idle, given.most)
