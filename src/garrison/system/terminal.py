"""Terminals: where an orchestrator's program runs, so that it outlives its runner and the user can watch it.

A session is opened under a full name and addressed by ids from then on. Its program gets exactly the environment that
the caller passes. `ProcessTerminal` runs each session as a detached process whose output goes to its log; it records
open sessions in `<home>/run/plain/<name>.json`, so that the opener's successor finds them. `tmux.TmuxTerminal` runs
them in tmux.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from garrison.errors import RecordCorrupt, Refused
from garrison.system import command, forks, process_control, processes
from garrison.system.processes import MARKER, ProcessId
from garrison.values import asdict


@dataclass(frozen=True)
class TerminalSession:
    """One open session, as stored in a record (`asdict` ↔ `Session(**…)`).

    With tmux, `pid` is a hint, since the program registers its own; `ticks` is the start time of that process. `server`
    is the tmux server's pid and start time, because each server counts ids from zero; for a plain process it is the
    boot id.
    """

    kind: str
    socket: str
    session_id: str
    pane_id: str
    pid: int
    name: str = ""
    ticks: int = field(default=0, compare=False)
    server: str = ""
    log: str = ""


class Terminal(Protocol):
    """Opens, finds, watches and closes garrison's own sessions; never touches others."""

    kind: str

    def open(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path,
             log: Path) -> TerminalSession:
        """Run `argv` with exactly `env` under `name`.

        Raises:
            Refused: a session of that name still runs.
            GarrisonError: the program or the directory is missing, or the terminal failed.
        """
        ...

    def find(self, name: str, marker: str = "") -> TerminalSession | None:
        """Return the open session with exactly that name, and that incarnation's marker if given; it may be dead."""
        ...

    def is_alive(self, session: TerminalSession) -> bool:
        ...

    def exit_code(self, session: TerminalSession) -> int | None:
        """Return the exit code of its program (negative: a signal); None while it runs, or if it is unknown."""
        ...

    def close(self, session: TerminalSession, *, grace: float = 2.0) -> None:
        """Kill what runs in it (TERM, `grace` seconds, KILL) and remove it. Idempotent."""
        ...

    def capture(self, session: TerminalSession, lines: int = 50) -> str:
        """Return the last lines of its output as text; empty if the session is gone without output."""
        ...

    def send(self, session: TerminalSession, text: str) -> None:
        """Type `text` (a newline is Enter); Refused if there is no keyboard."""
        ...

    def attach_argv(self, session: TerminalSession, *, write: bool = False, title: str = "") -> list[str]:
        """Return the command to watch the session, or to type into it if `write` is set.

        Refused if there is nothing to attach to.

        Args:
            title: shown in the status line.
        """
        ...

    def sessions(self) -> list[TerminalSession]:
        ...

    def shutdown(self) -> None:
        """End the server of the sessions if no session is left; otherwise do nothing."""
        ...


class ProcessTerminal:
    """Sessions without a terminal: nothing to install, nothing to type into.

    Treat a damaged record as missing: opening a session of its name replaces it, closing one removes it. The process's
    identity also contains the session.
    """

    kind = "process"

    def __init__(self, home: Path) -> None:
        self._folder = home / "run" / "plain"

    def open(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path,
             log: Path) -> TerminalSession:
        """Start `argv` detached, its output appended to `log`."""
        with self._locked():
            old = self.find(name)
            if old is not None and self.is_alive(old):
                raise Refused(f"session {name} still runs (pid {old.pid}); close it first")
            child = forks.start(argv, env=env, cwd=cwd, log=log)
            child.close()
            session = TerminalSession("process", "", f"{child.pid}:{child.ticks}", "", child.pid, name, child.ticks,
                                      processes.boot_id(), str(log))
            self._write(session, env.get(MARKER, ""))
        return session

    def find(self, name: str, marker: str = "") -> TerminalSession | None:
        session, recorded = self._read_valid(name)
        return session if marker in ("", recorded) else None

    def check(self, name: str) -> None:
        """Read the record of a session; RecordCorrupt if it is damaged."""
        self._read(name)

    def is_alive(self, session: TerminalSession) -> bool:
        return processes.same_boot(session.server) and processes.is_running(session.pid, session.ticks)

    def exit_code(self, session: TerminalSession) -> int | None:
        return None if self.is_alive(session) else processes.exit_code(session.pid, session.ticks)

    def close(self, session: TerminalSession, *, grace: float = 2.0) -> None:
        """End the process and its descendants; forget the session."""
        root = ProcessId(session.pid, session.ticks) if processes.same_boot(session.server) else ProcessId(0, 0)
        recorded, marker = self._read_valid(session.name)
        if recorded is None or (recorded.session_id, recorded.server) != (session.session_id, session.server):
            marker = processes.life_marker(root.pid) or "" if processes.is_running(root.pid, root.ticks) else ""
        process_control.kill_tree(root, marker, grace=grace, only_below=marker == os.environ.get(MARKER))
        processes.exit_code(root.pid)  # reap it if it was our own child
        with self._locked():
            recorded = self.find(session.name)  # a successor may have opened another with this name
            if recorded is None or (recorded.session_id, recorded.server) == (session.session_id, session.server):
                self._path(session.name).unlink(missing_ok=True)

    def capture(self, session: TerminalSession, lines: int = 50) -> str:
        return command.read_tail(Path(session.log), lines, 200 * lines) if session.log else ""

    def send(self, session: TerminalSession, text: str) -> None:
        """Refuse: there is no keyboard."""
        raise Refused(f"session {session.name} is a plain process and reads no keyboard; use --terminal tmux to type")

    def attach_argv(self, session: TerminalSession, *, write: bool = False, title: str = "") -> list[str]:
        """Refuse: there is nothing to attach to; follow its log instead."""
        raise Refused(f"session {session.name} is a plain process, there is nothing to attach to; `garrison logs NODE "
                      "-f` follows what it prints, --terminal tmux gives the next run's agents a terminal")

    def sessions(self) -> list[TerminalSession]:
        names = [path.stem for path in sorted(self._folder.glob("[!.]*.json"))]
        return [session for name in names if (session := self.find(name)) is not None]

    def shutdown(self) -> None:
        """Do nothing: plain processes have no server."""

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _read(self, name: str) -> tuple[TerminalSession | None, str]:
        """Return the recorded session of that name and its incarnation's marker."""
        path = self._path(name)
        try:
            body = json.loads(path.read_bytes())
            marker = str(body.pop("life"))
            return TerminalSession(**body), marker
        except FileNotFoundError:
            return None, ""
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordCorrupt(path, f"not a session ({error})") from error

    def _read_valid(self, name: str) -> tuple[TerminalSession | None, str]:
        try:
            return self._read(name)
        except RecordCorrupt:
            return None, ""

    def _write(self, session: TerminalSession, marker: str) -> None:
        temporary = self._folder / f".{session.name}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps({**asdict(session), "life": marker}) + "\n")
        temporary.chmod(0o600)
        temporary.replace(self._path(session.name))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)  # noqa: PTH103  # parents get the mode too
        with (self._folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
