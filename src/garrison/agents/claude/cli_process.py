"""Claude's CLI: the program, its environment, and its sandbox. It does not load the SDK.

Only the CLI and its tools are inside the sandbox; the connection, which records and pays, is outside.

With or without a sandbox the CLI has its own configuration folder for the attempt: the home's folder has settings that
the user's CLI would obey, and what one agent left there would reach all others. It is recreated for each connection,
with the transcript restored from the copy in the attempt's folder, so that nothing an agent left there is read or
followed. The home's log-in is added from outside (`log_in`). With `login = "file"` the CLI gets a copy of it, and
renewed tokens are copied back to the home; without a sandbox it gets a link to it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.claude import log_in, transcripts
from garrison.agents.claude.settings import FILE, KEYS
from garrison.agents.conversation.files import AttemptFiles
from garrison.records import atomic
from garrison.sandbox.confine import confine, launcher_script
from garrison.sandbox.place import Mode, Mount
from garrison.system import processes, untrusted
from garrison.system.environment import child_environment
from garrison.values import replace

if TYPE_CHECKING:
    from garrison.agents.claude.settings import ClaudeSettings
    from garrison.sandbox.place import Place

LAUNCHER_VARIABLE = "GARRISON_CLI_LAUNCHER"
"""Variable that names the script with which `cli.sh` starts the CLI in its sandbox."""
WRAPPER = Path(__file__).with_name("cli.sh")
"""Script that starts the CLI so that it dies with the process that started it."""
MEMORY_OFF = {"CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1"}
"""Variable that disables the CLI's own notes between sessions, which it obeys: one agent's injected text would reach
every later agent and validator."""
SERVERS_WAIT = {"CLAUDE_CODE_MCP_STARTUP_WAIT_MS": "60000", "MCP_TIMEOUT": "60000"}
"""Variables that make the first request wait for MCP servers: otherwise the CLI would start without the tools of a slow
one."""


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
    """Return the variables that the CLI needs; without `home` it uses the user's own configuration folder."""
    config = {} if home is None else {"CLAUDE_CONFIG_DIR": str(config_folder(home))}
    return {**config, "GARRISON_CLAUDE_CLI": find_cli(settings), "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **MEMORY_OFF, **(SERVERS_WAIT if settings.mcp_servers else {}), **settings.set}


def log_in_environment(home: Path, settings: ClaudeSettings, names: Sequence[str],
                       source: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a CLI that manages the home's log-in: a session's, without API keys, which would take
    precedence."""
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


# ---- its sandbox


def prepare(place: Place | None, environment: Mapping[str, str], settings: ClaudeSettings,
            files: AttemptFiles) -> tuple[dict[str, str], str]:
    """Recreate the CLI's configuration folder; return the variables that start the CLI in its place, and the folder.

    Without a sandbox there are no variables. What a killed CLI had written and the copy lacks is saved first.
    """
    home = config_folder(Path(environment["GARRISON_HOME"]))
    session = files.session_id
    transcripts.save(home, files.transcripts, session)  # a killed takeover may have left more there
    if place is None or place.rights.mode is Mode.NONE:
        # Not in a sandbox, whose agent may have planted links there: the connection's mirror must suffice.
        transcripts.save(files.config, files.transcripts, session)
        return {}, str(make_plain_config(environment, files))
    untrusted.remove(place.private, "claude")
    config = atomic.make_directory(place.private / "claude")
    if settings.login == FILE and not _has_key(environment):
        log_in.copy(home, config)
    cli = find_cli(settings)
    mounts = [Mount(config, config, writable=True), *(Mount(path, path) for path in _program_files(cli))]
    confined = confine([cli], environment, replace(place, mounts=(*place.mounts, *mounts)))
    launcher = place.private / "cli.sh"
    atomic.write(launcher, launcher_script(environment, confined.env, confined.argv).encode(), durable=False)
    return {LAUNCHER_VARIABLE: str(launcher)}, str(config)


def make_plain_config(environment: Mapping[str, str], files: AttemptFiles) -> Path:
    """Recreate the configuration folder of a CLI without a sandbox, with a link to the home's log-in."""
    file = config_folder(Path(environment["GARRISON_HOME"])) / log_in.FILE
    shutil.rmtree(files.config, ignore_errors=True)
    atomic.make_directory(files.config)
    if not _has_key(environment) and file.exists():
        (files.config / log_in.FILE).symlink_to(file)  # once one agent renews it, copies become invalid
    return files.config


def _has_key(environment: Mapping[str, str]) -> bool:
    """Return whether there is a key, which the CLI prefers to a log-in."""
    return any(environment.get(name) for name in KEYS)


def session_config(place: Place | None, environment: Mapping[str, str], files: AttemptFiles) -> str:
    """Recreate the configuration folder of a garrison session's CLI and return it; '' if its place has one instead."""
    is_plain = place is None or place.rights.mode is Mode.NONE
    return str(make_plain_config(environment, files)) if is_plain else ""


def session_place(place: Place | None, environment: Mapping[str, str], order: Path,
                  settings: ClaudeSettings | None) -> Place | None:
    """Return the place of a whole garrison session, which confines its own tools as well as its CLI.

    Next to its `order`, its files are in separate folders, which it may write; the attempt's other files are hidden.
    Its CLI has its own configuration folder at the path of the home's.
    """
    if place is None or place.rights.mode is Mode.NONE:
        return place
    config, home = atomic.make_directory(place.private / "claude"), Path(environment["GARRISON_HOME"])
    if settings is not None and settings.login == FILE and not _has_key(environment):
        log_in.copy(config_folder(home), config)
    files = AttemptFiles(order.parent)
    folders = [atomic.make_directory(folder) for folder in (files.folder, files.garrison_session)]
    return replace(place, mounts=(*place.mounts, Mount(order, order),
                                  *(Mount(folder, folder, writable=True) for folder in folders),
                                  Mount(config, config_folder(home), writable=True)))


def find_outer_pid(pid: int) -> int:
    """Convert a pid in the sandbox to our pid; return it unchanged without a sandbox."""
    # Among our own descendants: every other sandbox also has a process with that number.
    for below in processes.descendants(os.getpid(), os.environ.get(processes.MARKER, "")):
        numbers = _namespace_pids(below.pid)
        # proc(5): NSpid lists the pid in each namespace, from ours to the innermost.
        if len(numbers) > 1 and numbers[-1] == pid:
            return below.pid
    return pid


def _namespace_pids(pid: int) -> list[int]:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]]
    return []


def _program_files(cli: str) -> list[Path]:
    program = shutil.which(cli)
    return [] if program is None else list(dict.fromkeys([Path(program), Path(program).resolve()]))
