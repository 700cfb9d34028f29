"""The tmux terminal, on a server of our own.

The rules of this file:

* The server is our own, started by `tmux_server.start_server` alone: it would hand its first client's variables to
  every pane. All other calls carry `-N`, with which tmux starts no server, whatever happened to ours.
* A pane gets its variables through its own command, `env -i NAME=VALUE… program`, in argv form: no shell reads it.
  What is too long for tmux's messages (16 kB) goes through a file (0600) that the pane reads, removes and executes.
* tmux matches names by prefix and rewrites dots and colons, so after `open` everything goes by id ($3, %7), checked
  against the server's pid and start time: a new server counts from zero again.
* A pane's pid is a hint.
* No command lasts for ever, and a server that was stopped or lost its socket is helped: see `tmux_client`.
* tmux may lose the last bytes of a program that writes and exits at once (seen in 2 of 100 under load): what must not
  be lost goes to a file that the program writes itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from garrison.errors import GarrisonError, Refused, UsageError
from garrison.system import kill_tree, processes, tmux_server
from garrison.system.processes import MARKER, ProcessId
from garrison.system.terminal import Session
from garrison.system.tmux_attach import attach_argv
from garrison.system.tmux_server import socket_path, start_server

MESSAGE_BYTES = 12_000
"""Longest command that goes to tmux as it is; its limit is 16 kB with everything around it."""
_TRIES = 20
_STATUS_LATE = 0.5
"""Seconds to wait for a dead pane's exit code."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,199}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FORMAT = ("#{session_id} #{pane_id} #{pane_dead} #{pane_pid} #{pid}:#{start_time} "
           "#{@garrison_life} #{@garrison_log} #{session_name}")
_GONE = ("no server running", "error connecting", "lost server", "server exited", "no such file", "connection refused")
_EMPTY = ("no current target", "no sessions")
_READ_AND_EXECUTE = ("import json,os,sys; p=sys.argv[1]; a,e=json.load(open(p)); os.unlink(p); "
                     "os.execvpe(a[0],a,e)")


@dataclass(frozen=True)
class _Pane:
    """One line of `_FORMAT`."""

    session_id: str
    pane_id: str
    dead: bool
    pid: int
    server: str
    life: str
    log: str
    name: str


class TmuxTerminal:
    """Sessions on the home's own tmux server."""

    kind = "tmux"

    def __init__(self, home: Path) -> None:
        self._run = home.absolute() / "run"
        self._where: Path | None = None

    # ------------------------------------------------------------------------------------------------- the seam

    def open(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Session:
        """A new session of one pane that runs `argv`; of the same name only a dead one is replaced."""
        if not _NAME.match(name):
            raise UsageError(f"not a session name: {name!r}")
        _check_startable(argv[0], env, Path(cwd))
        life = env.get(MARKER, "")
        with self._locked():
            for pane in self._named(name, replace=True):
                old = self._session(pane)
                if self.alive(old):
                    raise Refused(f"session {name} still runs on {self._socket()}; close it first")
                self._remove(old)
            words = self._pane_argv(argv, env)
            title = encode_name(name)
            output = self._ask(
                "new-session", "-d", "-E", "-P", "-F", "#{session_id} #{pane_id} #{pane_pid} #{pid}:#{start_time}",
                "-s", title, "-c", str(cwd).replace("#", "##"), "-x", "200", "-y", "50", *map(escape, words), ";",
                "set-option", "-t", f"={title}:", "@garrison_life", _hex(life), ";",
                "set-option", "-t", f"={title}:", "@garrison_log", _hex(str(log)), start=True)
        session_id, pane_id, pid, server = output[0].split()
        return Session("tmux", str(self._socket()), session_id, pane_id, int(pid), name, _ticks(int(pid)), server,
                       str(log))

    def find(self, name: str, marker: str = "") -> Session | None:
        """The session of exactly that name, and of that life if given."""
        return next((self._session(pane) for pane in self._named(name) if marker in ("", pane.life)), None)

    def alive(self, session: Session) -> bool:
        """Whether the pane's program still runs."""
        pane = self._pane(session)
        return pane is not None and self._runs(pane)

    def exit_code(self, session: Session) -> int | None:
        """How the pane's program ended, as tmux saw it."""
        until = time.monotonic() + _STATUS_LATE
        while (pane := self._pane(session)) is not None and not self._runs(pane):
            found = self._ask("display-message", "-p", "-t", pane.pane_id, "#{pane_dead_status} -#{pane_dead_signal}",
                              gone=())
            status, _, number = "".join(found).partition(" ")
            if status or number[1:].isdigit():
                return int(status or number)
            if time.monotonic() > until:
                return None
            _remind(pane.server)
            time.sleep(0.01)
        return None

    def close(self, session: Session, *, grace: float = 2.0) -> None:
        """End what runs in the pane or bears its life, keep its last output in the log, remove the session."""
        pane = self._pane(session)
        if pane is None:
            return
        root = ProcessId(pane.pid, _ticks(pane.pid)) if _is_child_of(pane.pid, pane.server) else None
        kill_tree.sweep(root, pane.life, grace=grace, only_below=pane.life == os.environ.get(MARKER))
        with suppress(OSError):  # the log is a help; a full disk must not keep a session open
            self._keep_output(session, pane)
        self._remove(session)

    def capture(self, session: Session, lines: int = 50) -> str:
        """The last lines on the pane and in its history; of a closed session, of its log."""
        pane = self._pane(session)
        if pane is None:
            from garrison.system.jobs import tail

            return tail(Path(session.log), lines, 200 * lines) if session.log else ""
        return "\n".join(self._screen(pane, lines)[-lines:])

    def send(self, session: Session, text: str) -> None:
        """Type `text` into the pane; a newline is Enter."""
        pane = self._pane(session)
        if pane is None or not self._runs(pane):
            raise Refused(f"session {session.name} no longer runs; nothing was typed")
        for number, line in enumerate(text.split("\n")):
            if number:
                self._ask("send-keys", "-t", pane.pane_id, "Enter")
            for at in range(0, len(line), 2000):
                self._ask("send-keys", "-t", pane.pane_id, "-l", "--", escape(line[at:at + 2000]))

    def attach_argv(self, session: Session, *, write: bool = False, title: str = "") -> list[str]:
        """Attach by id; without `write`, read-only and without resizing the pane. Its status line says which key ends
        it."""
        bindings = self._ask("list-keys", "-T", "prefix", gone=())
        prefix = self._ask("show-options", "-gv", "prefix", gone=("C-b",))
        return attach_argv(session, str(self._socket()), "".join(prefix), bindings, title or session.name, write=write,
                           environ=os.environ)

    def sessions(self) -> list[Session]:
        """All sessions that `open` made on this server."""
        return [self._session(pane) for pane in self._panes()]

    def shutdown(self) -> None:
        """End the server if it has no session left (not even a foreign one); else it ends by itself with the last."""
        with self._locked():
            if self._ask("list-sessions", "-F", "#{session_id}", gone=()):
                self._ask("set-option", "-s", "exit-empty", "on", gone=())
                return
            self._ask("kill-server", gone=())
            self._remove_socket()

    # ------------------------------------------------------------------------------------------------- asking tmux

    def _ask(self, *words: str, start: bool = False, gone: Sequence[str] | None = None,
             replace: bool = False) -> list[str]:
        """One tmux command, its output lines. Without a server: start it (`start`), else answer `gone` or raise.

        A server that goes while we connect looks like none; then the command is tried again. One that does not answer
        is replaced where a session is to be opened (`start`, `replace`); everywhere else it raises.
        """
        replace = replace or start
        patience = tmux_server.OPENING if replace else tmux_server.PATIENCE
        for attempt in range(_TRIES):
            answer = tmux_server.ask(self._run, ["-u", "-N", "-S", str(self._socket()), "-f", os.devnull, *words],
                                     patience)
            error = answer.error
            if answer.code == 0:
                return answer.lines
            if answer.deaf:
                if not replace:
                    raise GarrisonError(f"the tmux server at {self._socket()} does not answer within {patience:.0f} s; "
                                        "agents go on, the next one to start replaces it")
                tmux_server.end_deaf(self._run)
                continue
            if gone is not None and error in _EMPTY:
                return list(gone)
            if not any(text in error.lower() for text in _GONE):
                raise GarrisonError(f"tmux {words[0]} failed: {error or answer.code}")
            if not self._socket().exists() and tmux_server.revive(self._run) is not None:
                self._where = None
                continue
            if start:
                start_server(self._socket(), self._run / "tmux.conf")
                time.sleep(0.01 * attempt)
            elif gone is not None:
                return list(gone)
            else:
                break
        raise GarrisonError(f"the tmux server at {self._socket()} cannot be reached: {error}")

    def _named(self, name: str, *, replace: bool = False) -> list[_Pane]:
        """The panes of the session of exactly that name: one, or none."""
        return [pane for pane in self._panes(replace=replace) if pane.name == encode_name(name)]

    def _panes(self, *, replace: bool = False) -> list[_Pane]:
        """The first pane of every session of ours; none if there is no server."""
        if not self._socket().exists() and tmux_server.revive(self._run) is None:
            return []
        found: dict[str, _Pane] = {}
        for line in self._ask("list-panes", "-a", "-F", _FORMAT, gone=(), replace=replace):
            fields = line.split(" ", 7)
            if len(fields) == 8 and fields[5]:
                pane = _Pane(fields[0], fields[1], fields[2] == "1", int(fields[3]), fields[4],
                             _unhex(fields[5]), _unhex(fields[6]), fields[7])
                found.setdefault(pane.session_id, pane)
        return list(found.values())

    def _pane(self, session: Session) -> _Pane | None:
        """The session's pane on the server that made it."""
        for pane in self._panes():
            same = (pane.session_id, pane.server) == (session.session_id, session.server or pane.server)
            if same and (not session.name or pane.name == encode_name(session.name)):
                return pane
        return None

    def _session(self, pane: _Pane) -> Session:
        return Session("tmux", str(self._socket()), pane.session_id, pane.pane_id, pane.pid, decode_name(pane.name),
                       _ticks(pane.pid), pane.server, pane.log)

    def _runs(self, pane: _Pane) -> bool:
        """tmux overlooks an exit now and then (seen in 10 of 100 under load), so the kernel is asked too."""
        found = processes.probe(pane.pid)
        return not pane.dead and found is not None and not found.zombie

    def _remove(self, session: Session) -> None:
        """Remove by id, on that very server, in one command."""
        pane = self._pane(session)
        if pane is not None:
            self._ask("if-shell", "-F", f"#{{==:#{{pid}}:#{{start_time}},{pane.server}}}",
                      f"kill-session -t '{pane.session_id}'", gone=())

    def _remove_socket(self) -> None:
        """What a server leaves behind; a directory outside the home goes with it."""
        self._socket().unlink(missing_ok=True)
        if self._socket().parent != self._run:
            with suppress(OSError):  # not empty: somebody keeps something there
                self._socket().parent.rmdir()
                (self._run / "tmux.socket-path").unlink(missing_ok=True)

    def _screen(self, pane: _Pane, lines: int | None) -> list[str]:
        """What the pane shows, with `lines` of its history (None: all of it), blank lines at the end dropped."""
        first = "-" if lines is None else f"-{lines}"
        shown = self._ask("capture-pane", "-p", "-J", "-t", pane.pane_id, "-S", first, gone=())
        while shown and not shown[-1].strip():
            shown.pop()
        return [line.rstrip() for line in shown]

    def _keep_output(self, session: Session, pane: _Pane) -> None:
        shown = self._screen(pane, None)
        if session.log and shown:
            descriptor = os.open(session.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  # opened with its mode above
                file.write("\n".join(shown) + "\n")

    def _pane_argv(self, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        """`env -i NAME=VALUE… argv`, or the same through a file if it is too long for one message."""
        bad = [name for name in env if not _VARIABLE.match(name)]
        if bad or "=" in argv[0]:
            raise GarrisonError(f"cannot start {argv[0]}: {(bad or [argv[0]])[0]!r} cannot stand on env's command line")
        program = shutil.which("env") or "/usr/bin/env"
        words = [program, "-i", *(f"{name}={value}" for name, value in env.items()), *argv]
        if sum(len(os.fsencode(word)) + 1 for word in words) <= MESSAGE_BYTES:
            return words
        descriptor, path = tempfile.mkstemp(prefix="pane-", dir=self._run)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump([list(argv), dict(env)], file)
        return [program, "-i", sys.executable, "-I", "-c", _READ_AND_EXECUTE, path]

    def _socket(self) -> Path:
        if self._where is None:
            self._where = socket_path(self._run)
        return self._where

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One opener or closer of the server at a time, so that a shutdown never meets an open."""
        os.makedirs(self._run, mode=0o700, exist_ok=True)  # noqa: PTH103  # parents get the mode too
        with (self._run / "tmux.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._where = None  # a shutdown may have removed its directory
            yield


def encode_name(name: str) -> str:
    """A full name as a tmux session name: tmux would turn `.` and `:` into `_` and so make two names one."""
    return name.replace(".", "~").replace(":", "+")


def decode_name(title: str) -> str:
    """The inverse of `encode_name`."""
    return title.replace("~", ".").replace("+", ":")


def escape(word: str) -> str:
    """A word of a tmux command line: a `;` at its end would begin the next command."""
    return word[:-1] + "\\;" if word.endswith(";") else word


def _check_startable(program: str, env: Mapping[str, str], cwd: Path) -> None:
    """Refuse what would die in the pane at once; tmux itself would take another directory without a word."""
    if not cwd.is_dir():
        raise GarrisonError(f"cannot start {program} in {cwd}: no such directory; check the program and the directory")
    sought = str(cwd / program) if "/" in program else program
    if shutil.which(sought, path=env.get("PATH", os.defpath)) is None:
        raise GarrisonError(f"cannot start {program} in {cwd}: no such program; check the program and the directory")


def _hex(text: str) -> str:
    return os.fsencode(text).hex() or "-"


def _unhex(text: str) -> str:
    return "" if text == "-" else os.fsdecode(bytes.fromhex(text))


def _ticks(pid: int) -> int:
    found = processes.probe(pid)
    return found.ticks if found is not None else 0


def _remind(server: str) -> None:
    """Make our server collect a child whose end it overlooked; SIGCHLD means nothing to anybody else."""
    pid = int(server.partition(":")[0])
    processes.send(pid, _ticks(pid), signal.SIGCHLD)


def _is_child_of(pid: int, server: str) -> bool:
    found = processes.probe(pid)
    return found is not None and found.ppid == int(server.partition(":")[0])
