"""Claude CLI process: find the program, build its environment, record its pid, end an orphan.

Two CLIs would write to the same transcript without noticing, so the recorded one must be gone before a session is
resumed. This module does not import the SDK: `garrison login` and `garrison takeover` run the CLI without it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.claude.settings import KEYS
from garrison.records.json_io import read_json, write_json
from garrison.system import processes
from garrison.system.environment import child_environment

if TYPE_CHECKING:
    from garrison.agents.claude.attempt_files import AttemptFiles
    from garrison.agents.claude.settings import ClaudeSettings


WRAPPER = Path(__file__).with_name("cli.sh")
"""Script that starts the CLI so that it dies with the process that started it."""
MEMORY_OFF = {"CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1"}
"""Variable without which the CLI keeps notes of its own between sessions, and obeys them: one agent's injected text
would reach every later one, and who judges it."""
SERVERS_WAIT = {"CLAUDE_CODE_MCP_STARTUP_WAIT_MS": "60000", "MCP_TIMEOUT": "60000"}
"""Variables with which the first request waits for MCP servers: the CLI would begin without the tools of a slow one."""
_STEPS = ((signal.SIGTERM, 3.0), (signal.SIGKILL, 2.0))
"""Signals to an orphan, and the seconds to wait after each: on TERM the CLI ends its tools and saves its transcript."""


def config_folder(home: Path) -> Path:
    """Return the CLI's own folder in a home (CLAUDE_CONFIG_DIR): log-in, settings, transcripts."""
    return home / "claude"


def find_cli(settings: ClaudeSettings) -> str:
    """Return the CLI: the profile's, else the one bundled with the SDK, else `claude` on PATH."""
    if settings.cli:
        return settings.cli
    spec = find_spec("claude_agent_sdk")
    bundled = Path(spec.origin).parent / "_bundled" / "claude" if spec and spec.origin else None
    return str(bundled) if bundled is not None and bundled.exists() else "claude"


def cli_environment(settings: ClaudeSettings, home: Path | None = None) -> dict[str, str]:
    """Return the variables that the CLI needs; without `home` it uses the person's own configuration folder."""
    config = {} if home is None else {"CLAUDE_CONFIG_DIR": str(config_folder(home))}
    return {**config, "GARRISON_CLAUDE_CLI": find_cli(settings), "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **MEMORY_OFF, **(SERVERS_WAIT if settings.mcp_servers else {}), **settings.set}


def log_in_environment(home: Path, settings: ClaudeSettings, names: Sequence[str],
                       source: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a CLI that looks after the home's log-in: a session's, without API keys, which would
    take precedence."""
    wanted = [name for name in names if name not in KEYS]
    return child_environment(source, wanted, {"GARRISON_HOME": str(home), **cli_environment(settings, home)})


def graph_metadata(settings: ClaudeSettings, home: Path, cwd: Path | str, config: str = "") -> dict[str, object]:
    """Return the metadata of a node in an agent graph that runs Claude with the home's settings and log-in.

    Args:
        config: the CLI's configuration folder; '' for the home's.
    """
    own = {"CLAUDE_CONFIG_DIR": config} if config else {}
    return {"env": {**cli_environment(settings, home), **own}, "cwd": str(cwd), "stale": settings.stale,
            **({"cli": settings.cli} if settings.cli else {}),
            **({"max_turns": settings.max_turns} if settings.max_turns else {})}


def record_process(files: AttemptFiles, pid: int, incarnation: int) -> None:
    """Record the CLI that runs now; incarnation 0 if the user started it."""
    process = processes.probe(pid)
    if process is not None:
        write_json(files.process, {"pid": pid, "ticks": process.ticks, "boot": processes.boot_id(),
                                   "life": incarnation})


def end_orphan(files: AttemptFiles) -> None:
    """End the recorded CLI if it still runs, and delete the record."""
    recorded = read_json(files.process)
    if recorded is None:
        return
    for number, seconds in _STEPS if processes.same_boot(str(recorded.get("boot", ""))) else ():
        if not processes.send(recorded["pid"], recorded["ticks"], number):
            break
        until = time.monotonic() + seconds
        while processes.is_running(recorded["pid"], recorded["ticks"]) and time.monotonic() < until:
            time.sleep(0.01)
    files.process.unlink(missing_ok=True)
