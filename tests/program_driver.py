"""Runs the real `claude -p` or `codex exec` as a command agent: the program that test_real_programs.py isolates.

`program_driver.py PRESET PROGRAM FOLDER` launches a run with the preset's own profile, kills the program in the middle
of its first command, and writes what happened to FOLDER/told.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from codex_driver import CONFIG, Model
from garrison.agents.presets import Preset, find_preset
from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.script import Script
from garrison.testing.turn import Turn, Usage, say, use
from support import Node, Place, git, make_repository, wait_for

COMMANDS = ["touch begun; sleep 600", "echo made > made.txt; git add made.txt; git commit -qm made"]


def serve_claude(_place: Place) -> dict[str, str]:
    """Serve the Messages API; return what the profile has to set."""
    left = list(COMMANDS)

    def play(asked: Request) -> Turn:
        if not asked.tools:  # a title for the session, or a check of the quota
            return say("a title", usage=Usage(0, 0))
        return say(use("Bash", command=left.pop(0))) if left else say("all made")

    server = ModelServer(Script(play))
    return {"ANTHROPIC_BASE_URL": server.url}


def serve_codex(place: Place) -> dict[str, str]:
    """Serve the Responses API."""
    Model.commands[:] = COMMANDS
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = place.root / "codex"
    config.mkdir()
    (config / "config.toml").write_text(CONFIG.format(port=server.server_port))
    return {"STUB_KEY": "dummy", "CODEX_API_KEY": "dummy", "CODEX_HOME": str(config)}


SERVERS = {"claude-p": serve_claude, "codex-exec": serve_codex}


def main() -> None:
    """Play it."""
    name, program, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    make_repository(folder / "repo")
    place = Place(folder, env={"PATH": f"{program.parent}:{os.environ['PATH']}", "IS_SANDBOX": "1",
                               **{key: os.environ[key] for key in os.environ if key.startswith("ANTHROPIC_API")}})
    shown = [str(each) for each in program.resolve().parents if each.name in ("node_modules", "_bundled")]
    preset = find_preset(name)
    assert isinstance(preset, Preset)
    place.home.mkdir(exist_ok=True, mode=0o700)
    values = {**SERVERS[name](place), "IS_SANDBOX": "1"}
    with (place.home / "config.toml").open("a") as file:
        file.write(f"{preset.profile()}\nread = {json.dumps(shown)}\n[agents.{name}.set]\n")
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    child = place.launch(place.graph(Node("a", command="", attributes=f'agent="{name}", prompt="Make it."')), "r1")
    try:
        wait_for("its command runs", lambda: next(iter(place.trees.glob("*/r1/a/begun")), None))
        kill(place, program)
        code = place.finish(child)
        told = tell(place, code)
    except BaseException:
        print(place.logs(), file=sys.stderr)
        output = place.home / "runs/r1/nodes/a/1/output.log"
        print(output.read_text() if output.exists() else "no output", file=sys.stderr)
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


def tell(place: Place, code: int) -> dict[str, Any]:
    """Return what came of the run."""
    attempt = place.home / "runs/r1/nodes/a/1"
    result = json.loads((attempt / "result.json").read_text())
    return {"code": code, "result": result, "deaths": place.deaths().get("orchestrator-a", []),
            "lines": [line for line in (attempt / "stream/lines.jsonl").read_text().splitlines() if line],
            "shown": (attempt / "output.log").read_text(),
            "hook": place.hook("orchestrator-a").get("claude_session_id"),
            "log": git(place.repo, "log", "--format=%s", "main").splitlines(),
            "cost": json.loads(place.command("cost", "r1", "--json").stdout)}


if __name__ == "__main__":
    main()
