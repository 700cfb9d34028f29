"""Claude CLI process: find the program, build its environment, record its pid and end one that was left running.

Two CLIs may write to one transcript without noticing, so the recorded one has to be gone before a session is resumed.
Loads no SDK: `garrison login` and `garrison takeover` run the CLI without it.
"""

from __future__ import annotations

import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.claude.attempt_files import read_json, write_json
from garrison.system import processes

if TYPE_CHECKING:
    from garrison.agents.claude.attempt_files import ClaudeFiles
    from garrison.agents.claude.settings import ClaudeSettings


WRAPPER = Path(__file__).with_name("cli.sh")


def config_folder(home: Path) -> Path:
    """The CLI's own folder in a home (CLAUDE_CONFIG_DIR): log-in, settings, transcripts."""
    return home / "claude"


def find_cli(settings: ClaudeSettings) -> str:
    """The CLI: what the profile names, else the SDK's own, else `claude` on PATH."""
    if settings.cli:
        return settings.cli
    found = find_spec("claude_agent_sdk")
    bundled = Path(found.origin).parent / "_bundled" / "claude" if found and found.origin else None
    return str(bundled) if bundled is not None and bundled.exists() else "claude"


def cli_environment(home: Path, settings: ClaudeSettings) -> dict[str, str]:
    """The variables that the CLI needs, whoever runs it."""
    return {"CLAUDE_CONFIG_DIR": str(config_folder(home)), "GARRISON_CLAUDE_CLI": find_cli(settings),
            "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", **settings.set}


_STEPS = ((signal.SIGTERM, 3.0), (signal.SIGKILL, 2.0))
"""What is sent, and the seconds it is waited for: at a TERM the CLI ends its tools and writes what was said last."""


def record_process(files: ClaudeFiles, pid: int, life: int) -> None:
    """Record the CLI that runs now; `life` 0: a person's."""
    found = processes.probe(pid)
    if found is not None:
        write_json(files.process, {"pid": pid, "ticks": found.ticks, "boot": processes.boot_id(), "life": life})


def end_orphan(files: ClaudeFiles) -> None:
    """End the recorded CLI, if it still runs, and forget it."""
    old = read_json(files.process)
    if old is None:
        return
    for number, seconds in _STEPS if processes.same_boot(str(old.get("boot", ""))) else ():
        if not processes.send(old["pid"], old["ticks"], number):
            break
        until = time.monotonic() + seconds
        while processes.is_running(old["pid"], old["ticks"]) and time.monotonic() < until:
            time.sleep(0.01)
    files.process.unlink(missing_ok=True)
