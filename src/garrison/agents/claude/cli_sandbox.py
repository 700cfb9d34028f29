"""Sandbox of the Claude CLI: only the CLI and its tools are inside; the connection, which records and pays, is outside.

With or without a sandbox the CLI has its own configuration folder for the attempt: the home's holds settings that
the user's CLI would obey, and what one agent left there would reach all others. It is made again for each connection,
with the transcript restored from the copy in the attempt's folder, so that nothing an agent left there is read or
followed. The home's log-in is added from outside (`log_in`). With `login = "file"` the CLI gets a copy of it, and what
it has renewed there, the home takes back; without a sandbox it gets a link to it.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents.claude import log_in, transcripts
from garrison.agents.claude.attempt_files import AttemptFiles
from garrison.agents.claude.cli_process import config_folder, find_cli
from garrison.agents.claude.settings import FILE, KEYS
from garrison.records import atomic
from garrison.records.json_io import read_json
from garrison.sandbox.confine import confine
from garrison.sandbox.place import Mode, Mount
from garrison.system import processes, untrusted
from garrison.values import replace

if TYPE_CHECKING:
    from garrison.agents.claude.settings import ClaudeSettings
    from garrison.sandbox.place import Place

LAUNCHER_VARIABLE = "GARRISON_CLI_LAUNCHER"
"""Variable that names the script with which `cli.sh` starts the CLI in its sandbox."""


def prepare(place: Place | None, environment: Mapping[str, str], settings: ClaudeSettings,
            files: AttemptFiles) -> tuple[dict[str, str], str]:
    """Make the CLI's configuration folder again; return the variables that start the CLI in its place, and the folder.

    Without a sandbox there are no variables. What a killed CLI had written and the copy lacks is saved first.
    """
    home = config_folder(Path(environment["GARRISON_HOME"]))
    session = str((read_json(files.session) or {}).get("id", ""))
    transcripts.save(home, files.transcripts, session)  # a takeover that was killed has left more there
    if place is None or place.rights.mode is Mode.NONE:
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
    """Make the configuration folder of a CLI without a sandbox again, with a link to the home's log-in."""
    file = config_folder(Path(environment["GARRISON_HOME"])) / log_in.FILE
    shutil.rmtree(files.config, ignore_errors=True)
    atomic.make_directory(files.config)
    if not _has_key(environment) and file.exists():
        (files.config / log_in.FILE).symlink_to(file)  # once one agent renews it, copies are refused
    return files.config


def _has_key(environment: Mapping[str, str]) -> bool:
    """Return whether there is a key, which the CLI prefers to a log-in."""
    return any(environment.get(name) for name in KEYS)


def session_config(place: Place | None, environment: Mapping[str, str], files: AttemptFiles) -> str:
    """Return the configuration folder of a garrison session's CLI, made again; '' if its place has one instead."""
    is_plain = place is None or place.rights.mode is Mode.NONE
    return str(make_plain_config(environment, files)) if is_plain else ""


def session_place(place: Place | None, environment: Mapping[str, str], order: Path,
                  settings: ClaudeSettings | None) -> Place | None:
    """Return the place of a whole garrison session, whose own tools are to be confined as well as its CLI.

    Alongside its `order` it keeps its files in folders of their own, which it may write; the attempt's other files it
    does not see. Its CLI has its own configuration folder where the home's is.
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


def launcher_script(outside: Mapping[str, str], inside: Mapping[str, str], argv: tuple[str, ...]) -> str:
    """Return a script that changes the environment from one to the other and becomes the command. Pure."""
    unset = [f"unset {name}" for name in outside if name not in inside]
    changed = [f"export {name}={shlex.quote(value)}" for name, value in inside.items() if outside.get(name) != value]
    return "\n".join(["#!/bin/sh", *unset, *changed, f'exec {shlex.join(argv)} "$@"', ""])


def find_outer_pid(pid: int) -> int:
    """Return the pid by which we know the process that calls itself `pid` in its sandbox; itself without one."""
    for below in processes.descendants(os.getpid(), os.environ.get(processes.MARKER, "")):
        numbers = _namespace_pids(below.pid)
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
