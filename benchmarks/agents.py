"""Real agents over ACP under garrison, compared with their start without it: the time from a death to the resumed
prompt, tokens counted by the proxy and reported by the model, and garrison's memory per agent.

    .venv/bin/python benchmarks/agents.py [--rounds N] [--agents codex,opencode,gemini,claude-acp] [--json]

Needs npm, or the agents where tests/real_agents.py installs them. It runs itself inside garrison.testing.isolation: the
profiles of the presets, the default sandbox, a scripted model, no network. Times end when the model is asked. "Own
start" is the program with a client and nothing else, in a new home as an attempt has one; "death" is `kill -9` of the
agent's tree in the middle of its first command. Memory is private memory (smaps_rollup).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from table import Table

from garrison.agents.acp.profile import AcpProfile
from garrison.agents.presets import Preset, find_preset
from garrison.agents.registry import find_profile
from garrison.agents.variables import expand
from garrison.sandbox.place import Mode
from garrison.testing.model_server import ModelServer
from garrison.testing.turn import Fault
from real_agent_driver import Drama
from real_agents import AGENTS, install
from support import processes, wait_for

GOAL = 1.5
"""Times its own start that an agent's death may take."""
KINDS = {"adapter": "-m garrison.agents.acp.connection", "bridge": "-m garrison.agents.mcp_server",
         "proxy": "-m garrison.sandbox.proxy.process"}
"""garrison process of an agent → words of its command line."""


async def bare(argv: list[str], cwd: str) -> None:
    """Start an agent, greet it, start a session and prompt it, like any client."""
    from acp import PROTOCOL_VERSION, spawn_agent_process, text_block

    class Client:
        """Client that ignores everything."""

        def on_connect(self, _agent: Any) -> None:
            """Do nothing."""

        async def session_update(self, **_update: Any) -> None:
            """Do nothing."""

    async with spawn_agent_process(lambda _agent: cast("Any", Client()), *argv, env=dict(os.environ), cwd=cwd) as (
            agent, _):
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
        session = await agent.new_session(cwd=cwd, mcp_servers=[])
        await agent.prompt(session_id=session.session_id, prompt=[text_block("Do it.")])


def own_start(name: str, folder: Path) -> float:
    """Return the seconds from the start of a client and its agent until the model is asked."""
    preset = find_preset(name)
    assert isinstance(preset, Preset)
    (folder / "config.toml").write_text(preset.profile())
    profile = find_profile(name, folder)
    assert isinstance(profile, AcpProfile)
    for each in ("home", "tree"):
        (folder / each).mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder / "tree", check=True)
    with ModelServer(lambda _asked: Fault("hang", "stream")) as server:
        given = {**server.variables, AGENTS[name].variable: "dummy", "PATH": os.environ["PATH"],
                 "HOME": str(folder / "home")}
        env = given | {key: expand(value, given, key) for key, value in profile.settings.set.items()}
        began = time.monotonic()
        with (folder / "bare.log").open("w") as log:
            child = subprocess.Popen([sys.executable, __file__, "--bare", str(folder / "tree"), *profile.argv],
                                     env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            took = server.wait_for(1, 120.0)[0].at - began
        finally:
            for one in [child.pid, *_below(child.pid)]:
                with suppress(ProcessLookupError):
                    os.kill(one, 9)
            child.wait()
        return took


def _below(pid: int) -> list[int]:
    parents = {one.pid: one.ppid for one in processes()}
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def under_garrison(name: str, folder: Path) -> tuple[float, float, dict[str, int], dict[str, Any]]:
    """Run a node whose agent is killed; return the seconds of its launch and of its death, memory, and tokens."""
    drama = Drama(name, folder, Mode.BUBBLEWRAP)
    try:
        began = time.monotonic()
        drama.model.phase = "command"  # before its first answer, an agent may have kept nothing to resume
        child = drama.launch("a")
        wait_for("its command runs", lambda: drama.file("a", "begun").exists())
        first = next(record.at for record in drama.server.messages if record.asked.tools)
        drama.model.phase = "hang"
        memory = _memory(drama, drama.program_of("a")())
        died = time.monotonic()
        drama.kill_agent(drama.program_of("a")())
        second = _asked(drama, died)
        drama.model.phase = "work"

        def has_reported() -> bool:
            drama.server.release()  # repeatedly: a hang may start just after one
            return drama.has_reported("a")

        wait_for("its report is there", has_reported)
        drama.server.release()
        assert drama.place.finish(child) == 0, drama.place.logs()
        return first - began, second - died, memory, drama.tokens()
    finally:
        drama.place.kill_rest()
        drama.server.close()


def _asked(drama: Drama, since: float) -> float:
    """Return when the model was asked for the node's work, after `since`."""
    return float(wait_for("its model is asked", lambda: next(
        (record.at for record in drama.server.messages if record.fault and record.at > since), 0.0)))


def _memory(drama: Drama, program: int) -> dict[str, int]:
    """Return the private KiB of garrison's processes for the agent, and of the agent."""
    agents = {program, *_below(program)}
    found = dict.fromkeys([*KINDS, "agent"], 0)
    for one in processes(str(drama.folder)):
        kind = next((kind for kind, words in KINDS.items() if words in one.argv), "agent" if one.pid in agents else "")
        if kind:
            found[kind] += _private(one.pid)
    return found


def _private(pid: int) -> int:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return 0


def measure(names: list[str], rounds: int, table: Table) -> None:
    """Measure each agent, its own start and its run in turn."""
    with table.machine(), tempfile.TemporaryDirectory(prefix="garrison-bench-", ignore_cleanup_errors=True) as root:
        for name in names:
            found = []
            for number in range(rounds):
                folders = [Path(root, f"{name}-{number}-{way}") for way in ("bare", "run")]
                for folder in folders:
                    folder.mkdir()
                found.append((own_start(name, folders[0]), *under_garrison(name, folders[1])))
            own, launch, death = (statistics.median(one[place] for one in found) for place in range(3))
            worst = max(one[2] / one[0] for one in found)
            table.add(name, "own start to its first request", f"{own:.1f} s", seconds=own)
            table.add(name, "launch of a run to it", f"{launch:.1f} s", seconds=launch)
            table.add(name, "kill -9 to the resumed request",
                      f"{death:.1f} s, {death / own:.2f} × its own start (goal {GOAL}; worst {worst:.2f})",
                      seconds=death, ratio=death / own)
            told = [one[4] for one in found]
            equal = all(one["double"] == one["proxy"] for one in told)
            table.add(name, "tokens at the proxy", "as the model told them" if equal else f"differ: {told}",
                      equal=equal)
            memory = {kind: statistics.median(one[3][kind] for one in found) / 1024 for kind in found[0][3]}
            table.add(name, "private memory", ", ".join(f"{kind} {mib:.1f} MiB" for kind, mib in memory.items()),
                      **memory)


def main() -> int:
    """Run the program, isolated."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--agents", default=",".join(AGENTS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if unknown := set(given.agents.split(",")) - set(AGENTS):
        parser.error(f"no agent {', '.join(unknown)}; there are {', '.join(AGENTS)}")
    if "GARRISON_ISOLATION" in os.environ:
        measure(given.agents.split(","), given.rounds, Table(given.json, (12, 34)))
        return 0
    programs, why = install()
    node = shutil.which("node")
    if programs is None or node is None:
        print(why or "there is no node", file=sys.stderr)
        return 1
    path = f"{programs}:{Path(node).parent}:{os.environ['PATH']}"
    return subprocess.call([sys.executable, "-m", "garrison.testing.isolation", "--env", f"PATH={path}", "--",
                            sys.executable, __file__, *sys.argv[1:]])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        asyncio.run(bare(sys.argv[3:], sys.argv[2]))
    else:
        sys.exit(main())
