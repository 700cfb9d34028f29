"""Runs the real `claude -p` or `codex exec` as a command agent: the program that test_real_agents.py isolates.

`program_driver.py PRESET PROGRAM FOLDER [SANDBOX]` launches a run with the preset's own profile against a scripted
model, kills the program in the middle of its first command, and writes what happened to FOLDER/told.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from garrison.agents.presets import Preset, find_preset
from garrison.records.json_io import read_lines
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.script import Script
from garrison.testing.turn import Turn, Usage, say
from real_agents import AGENTS
from support import Node, Place, checkout_in, git, make_repository, wait_for

COMMANDS = ["touch begun; sleep 600", "env > env.txt; git add env.txt; git commit -qm made"]
OUTSIDE = "sk-outside-"
TOOLS = {"claude-p": AGENTS["claude-acp"], "codex-exec": AGENTS["codex"]}
"""Preset → the agent that has the same tools."""


def main() -> None:
    """Play it."""
    name, program, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    agent, left = TOOLS[name], list(COMMANDS)

    def play(asked: Request) -> Turn:
        if agent.tool not in asked.tools:  # a title for the session
            return say("A title", usage=Usage(7, 3))
        return say(agent.run(left.pop(0)) if left else "all made", usage=Usage(100, 20, 30, 0))

    make_repository(checkout_in(folder))
    place, server = Place(folder), ModelServer(Script(play))
    place.env |= {**server.variables, agent.variable: OUTSIDE + name, "PATH": f"{program.parent}:{os.environ['PATH']}",
                  "IS_SANDBOX": "1"}
    preset = find_preset(name)
    assert isinstance(preset, Preset)
    shown = [str(each) for each in program.resolve().parents if each.name in ("node_modules", "_bundled")]
    profile = preset.profile().replace("env =", f"read = {json.dumps(shown)}\nenv =", 1)
    place.configure(f"{profile}\n")
    place.use_mode(sys.argv[4] if len(sys.argv) > 4 else "bubblewrap")
    node = Node("a", command="", attributes=f'agent="{name}", prompt="Make it."')
    child = place.launch(place.graph(node), "r1", "--env", "IS_SANDBOX")
    try:
        wait_for("its command runs", lambda: next(iter(place.trees.glob("*/r1/a/begun")), None))
        kill(place, program)
        told = tell(place, server, place.finish(child))
    except BaseException:
        print(place.logs(), *(f"{one.path} {one.outcome} {one.problem}" for one in server.requests), sep="\n")
        output = place.home / "runs/r1/nodes/a/1/output.log"
        print(output.read_text() if output.exists() else "no output", flush=True)
        raise
    finally:
        place.kill_rest()
    (folder / "told.json").write_text(json.dumps(told))
    os._exit(0)


def kill(place: Place, program: Path) -> None:
    """Kill the agent's program itself, not what it started."""
    found = [process for process in place.living_processes()
             if process.argv.split(" ")[0].rpartition("/")[2] in (program.name, "node")]
    assert found, [process.argv[:200] for process in place.living_processes()]
    for process in found:
        os.kill(process.pid, signal.SIGKILL)


def tell(place: Place, server: ModelServer, code: int) -> dict[str, Any]:
    """Return what came of the run."""
    attempt = place.home / "runs/r1/nodes/a/1"
    counted = read_lines(attempt / "network/usage.jsonl")
    sent = [record.usage for record in server.messages if record.outcome == "sent" and record.usage]
    return {"code": code, "result": json.loads((attempt / "result.json").read_text()),
            "deaths": place.deaths().get("orchestrator-a", []),
            "lines": [line for line in (attempt / "stream/lines.jsonl").read_text().splitlines() if line],
            "shown": (attempt / "output.log").read_text(),
            "hook": place.hook("orchestrator-a").get("claude_session_id"),
            "log": git(place.repo, "log", "--format=%s", "main").splitlines(),
            "cost": json.loads(place.command("cost", "r1", "--json").stdout),
            "proxy": [sum(line[name] for line in counted) for name in ("input", "cache_read", "output")],
            "model": [sum(usage[name] for usage in sent) for name in ("input", "cache_read", "output")],
            "leaked": OUTSIDE in git(place.repo, "show", "main:env.txt")}


if __name__ == "__main__":
    main()
