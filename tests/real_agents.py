"""Real agents from npm: where they are installed, and how a script plays their models.

They are installed once, in a folder outside the checkout that later runs find again: GARRISON_TEST_AGENTS, else a
folder of ours in the machine's temporary one. It takes 1.6 GB.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from garrison.testing.request import Request
from garrison.testing.turn import Block, use

VARIABLE = "GARRISON_TEST_AGENTS"
CODEX, CODEX_ACP = "@openai/codex@0.169.0", "@agentclientprotocol/codex-acp@2.6.0"
PACKAGES = (CODEX, CODEX_ACP, "opencode-ai@1.18.33", "@google/gemini-cli@0.61.0",
            "@agentclientprotocol/claude-agent-acp@0.49.0")
"""The versions that docs/agents.md tells of: a newer one is tried by hand, then named here and there."""
PROGRAMS = ("codex", "codex-acp", "opencode", "gemini", "claude-agent-acp")
REPORT = {"status": "success", "summary": "made it"}


@dataclass(frozen=True, slots=True)
class RealAgent:
    """An agent, by the name of its preset."""

    name: str
    tool: str
    """Tool of its model that runs a command."""
    run: Callable[[str], Block]
    """Shell command → the call that runs it."""
    variable: str
    """Variable of its key."""
    resumes: tuple[str, ...] = ("a", "b")
    """Nodes of the drama whose last session is one that was killed."""


def _codex(command: str) -> Block:
    return use("exec", text=f"const done = await tools.exec_command({{cmd: {json.dumps(command)}}}); "
                            "text(JSON.stringify(done));")


AGENTS: Mapping[str, RealAgent] = {agent.name: agent for agent in (
    RealAgent("codex", "exec", _codex, "OPENAI_API_KEY"),
    RealAgent("opencode", "bash", lambda command: use("bash", command=command, description="work"), "OPENAI_API_KEY"),
    RealAgent("gemini", "run_shell_command", lambda command: use("run_shell_command", command=command),
              "GEMINI_API_KEY", resumes=()),  # its session/load finds some of its sessions, and others not
    RealAgent("claude-acp", "Bash", lambda command: use("Bash", command=command), "ANTHROPIC_API_KEY"))}


def report(agent: RealAgent, asked: Request) -> Block | str:
    """Return how an agent reports: by garrison's tool if its model is offered it, else in its last words."""
    name = next((tool for tool in asked.tools if tool.endswith("report_result")), "")
    if name:
        return use(name, **REPORT)
    if agent.name == "codex":  # its model calls tools from JavaScript, where they are described
        call = f"await tools.mcp__garrison__report_result({json.dumps(REPORT)})"
        return use("exec", text=f"text(JSON.stringify({call}));")
    return f"Done.\n```garrison-result\n{json.dumps(REPORT)}\n```"


def installed() -> Path | None:
    """Return the folder of the programs, None if one of them is not installed."""
    folder = _folder() / "bin"
    if all((folder / program).exists() for program in PROGRAMS):
        return folder
    return None


def install() -> tuple[Path | None, str]:
    """Install what is missing; return the folder of the programs, or None and why there is none."""
    if found := installed():
        return found, ""
    npm = shutil.which("npm")
    if npm is None:
        return None, "the agents are not installed, and there is no npm"
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        return None, f"{folder} is somebody else's; set {VARIABLE} to a folder of yours"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other tests may install at the same time
        if found := installed():
            return found, ""
        words = [npm, "install", "--global", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=900)
        except subprocess.TimeoutExpired:
            return None, "npm cannot install the agents: it took more than 15 minutes"
    return installed(), f"npm cannot install the agents: {done.stderr.strip()[-200:]}"


def _folder() -> Path:
    return Path(os.environ.get(VARIABLE) or Path(tempfile.gettempdir(), f"garrison-agents-{os.getuid()}"))
