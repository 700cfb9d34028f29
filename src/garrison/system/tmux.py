"""tmux terminal: sessions on the home's own tmux server, through libtmux.

* A pane gets its variables through its own command, `env -i NAME=VALUE… program`, as separate arguments that no shell
  reads. A command too long for tmux's messages (16 kB) goes through a file (0600) that the pane reads and removes.
* tmux matches names by prefix and rewrites dots and colons, so after `open` everything is addressed by id ($3, %7),
  checked against the server's pid and start time: a new server counts from zero again.
* Session, life marker and log path are set in one tmux command, so that no crash leaves a session without its marker.
* A pane's pid is a hint; the program registers its own. A program of garrison's is a copy of the opener (`forks`): tmux
  starts a small one, which gives its terminal up to the copy.
* tmux may lose the last bytes of a program that writes and exits at once (2 of 100 under load): what must not be lost
  is written to a file by the program itself.
* The status line of an attached client names the key that detaches, as it is bound. Inside the user's own tmux, the
  outer one receives its prefix first, so it is queried for prefix and bindings; nothing else is read from or sent to
  it.

`tmux_server` starts and repairs the server, `tmux_client` sends it commands.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, Refused, UsageError
from garrison.system import forks, process_control, processes
from garrison.system.command import read_tail, run
from garrison.system.processes import MARKER, ProcessId
from garrison.system.terminal import TerminalSession
from garrison.system.tmux_server import TmuxServer
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from garrison.system.tmux_client import TmuxClient


MESSAGE_BYTES = 12_000
"""Longest command that is passed to tmux directly; its limit is 16 kB including overhead."""
_KEYS = 2_000
"""Characters typed by one command."""
_EXIT_CODE_TIMEOUT = 0.5
"""Seconds to wait for a dead pane's exit code."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,199}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OPENED = "#{session_id} #{pane_id} #{pane_pid} #{pid}:#{start_time} #{pane_tty}"
_LISTED = ("#{session_id} #{pane_id} #{pane_dead} #{pane_pid} #{pid}:#{start_time} "
           "#{@garrison_life} #{@garrison_log} #{@garrison_process} #{session_name}")
_KEEP_PANE = f"""\
import _signal, fcntl, posix, select, sys, termios
for number in (1, 2, 3, 20):
    _signal.signal(number, _signal.SIG_IGN)
copy = posix.pidfd_open(int(sys.argv[1]))
fcntl.ioctl(0, termios.TIOCNOTTY)
_signal.pidfd_send_signal(copy, {int(forks.GIVEN_UP)})
poller = select.poll()
poller.register(copy, select.POLLIN)
poller.poll()
posix._exit(0)
"""
"""Program of a pane that a copy takes over: it gives the terminal up, which its hang-up (HUP, INT, QUIT and TSTP are
ignored) would end, and ends with the copy. tmux closes the pane once its program has ended, even if others still write
there.

Neither Python's `os` nor its clean-up at the end is needed: a fifth of its CPU."""
_READ_AND_EXECUTE = ("import json,os,sys; p=sys.argv[1]; a,e=json.load(open(p)); os.unlink(p); "
                     "os.execvpe(a[0],a,e)")


class _Pane(Value):
    """One line of `_LISTED`."""

    session_id: str
    pane_id: str
    dead: bool
    pid: int
    server: str
    marker: str
    log: str
    name: str
    copy: ProcessId | None = None
    """The program, if it is a copy that has taken the pane over from the process that tmux started."""

    @property
    def program(self) -> ProcessId:
        return self.copy or ProcessId(self.pid, _ticks(self.pid))


class TmuxTerminal:
    """Sessions on the home's own tmux server."""

    kind = "tmux"

    def __init__(self, home: Path, server: TmuxServer | None = None) -> None:
        self._run = home.absolute() / "run"
        self._server = server or TmuxServer(self._run)

    # ---- the protocol `Terminal`

    def open(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path,
             log: Path) -> TerminalSession:
        """Open a session of one pane that runs `argv`; a dead session of the same name is replaced."""
        if not _NAME.match(name):
            raise UsageError(f"not a session name: {name!r}")
        _check_startable(argv[0], env, Path(cwd))
        with self._locked():
            for pane in self._named(name, replace=True):
                existing = self._session(pane)
                if self.is_alive(existing):
                    raise Refused(f"session {name} still runs on {self._server.socket}; close it first")
                self._remove(existing)
            copy = forks.start_waiting(argv, env=env, cwd=cwd, log=log)
            if copy is not None and (session := self._open_for(copy, name, env, cwd, log)) is not None:
                return session
            return self._open(name, argv, env, cwd, log)[0]

    def _open_for(self, copy: forks.WaitingCopy, name: str, env: Mapping[str, str], cwd: str | Path,
                  log: Path) -> TerminalSession | None:
        """Open a session that a copy takes over; None if it could not, and both are gone."""
        keeper = [sys.executable, "-I", "-S", "-c", _KEEP_PANE, str(copy.child.pid)]
        try:
            session, tty = self._open(name, keeper, {}, cwd, log, copy.child.id, env.get(MARKER, ""))
        except BaseException:
            copy.cancel()
            raise
        if not copy.enter(tty, ProcessId(session.pid, session.ticks)):
            self._remove(session)
            return None
        copy.child.close()
        return dataclasses.replace(session, pid=copy.child.pid, ticks=copy.child.ticks)

    def _open(self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: str | Path, log: Path,
              copy: ProcessId | None = None, marker: str = "") -> tuple[TerminalSession, str]:
        """Open a session in which tmux starts `argv`; return it, with the path of its terminal."""
        title = encode_name(name)
        options = {"life": _hex(env.get(MARKER, marker)), "log": _hex(str(log))}
        if copy is not None:
            options["process"] = f"{copy.pid}:{copy.ticks}"
        opened = self._client.command(
            "new-session", "-d", "-E", "-P", "-F", _OPENED, "-s", title, "-c", str(cwd).replace("#", "##"),
            "-x", "200", "-y", "50", *map(escape, self._pane_argv(argv, env)),
            *(word for option, value in options.items()
              for word in (";", "set-option", "-t", f"={title}:", f"@garrison_{option}", value)), start=True)
        session_id, pane_id, pid, server, tty = opened.stdout[0].split()
        return TerminalSession("tmux", str(self._server.socket), session_id, pane_id, int(pid), name, _ticks(int(pid)),
                               server, str(log)), tty

    def find(self, name: str, marker: str = "") -> TerminalSession | None:
        return next((self._session(pane) for pane in self._named(name) if marker in ("", pane.marker)), None)

    def is_alive(self, session: TerminalSession) -> bool:
        pane = self._pane(session)
        return pane is not None and _is_running(pane)

    def exit_code(self, session: TerminalSession) -> int | None:
        """Return the exit of the pane's program, as tmux saw it."""
        until = time.monotonic() + _EXIT_CODE_TIMEOUT
        while (pane := self._pane(session)) is not None and not _is_running(pane):
            if pane.copy is not None:
                return processes.exit_code(pane.copy.pid, pane.copy.ticks)
            output = self._client.lines("display-message", "-p", "-t", pane.pane_id,
                                        "#{pane_dead_status} -#{pane_dead_signal}")
            status, _, number = "".join(output).partition(" ")
            if status or number[1:].isdigit():
                return int(status or number)
            if time.monotonic() > until:
                return None
            _remind_of_child(pane.server)
            time.sleep(0.01)
        return None

    def close(self, session: TerminalSession, *, grace: float = 2.0) -> None:
        """Kill what runs in the pane or has its marker, append its last output to the log, remove the session."""
        pane = self._pane(session)
        if pane is None:
            return
        root = pane.copy or (pane.program if _is_child_of(pane.pid, pane.server) else None)
        process_control.kill_tree(root, pane.marker, grace=grace, only_below=pane.marker == os.environ.get(MARKER))
        if pane.copy is not None:
            processes.exit_code(pane.copy.pid, pane.copy.ticks)  # reap it if it was our own child
        with suppress(OSError):  # the log is optional; a full disk must not keep a session open
            self._save_output(session, pane)
        self._remove_pane(pane)

    def capture(self, session: TerminalSession, lines: int = 50) -> str:
        """Return the last lines of the pane and its history; of the log, if the session is closed."""
        pane = self._pane(session)
        if pane is None:
            return read_tail(Path(session.log), lines, 200 * lines) if session.log else ""
        return "\n".join(self._screen(pane, -lines)[-lines:])

    def send(self, session: TerminalSession, text: str) -> None:
        """Type `text` into the pane; a newline is Enter."""
        pane = self._writable(session)
        for number, line in enumerate(text.split("\n")):
            if number:
                self._press(pane, "Enter")
            self._press(pane, line, "-l")

    def attach_argv(self, session: TerminalSession, *, write: bool = False, title: str = "") -> list[str]:
        """Return the command that attaches by id; without `write`, read-only and without resizing the pane."""
        bindings = self._client.lines("list-keys", "-T", "prefix")
        prefix = self._client.lines("show-options", "-gv", "prefix") or ["C-b"]
        is_typed_into = write or "0" in self.list_clients(session, "#{client_readonly}")
        size = [] if is_typed_into else self.ask(session, "#{window_width} #{window_height}").split()
        return attach_argv(session, str(self._server.socket), "".join(prefix), bindings, title or session.name,
                           write=write, size=size, environ=os.environ)

    # ---- for a viewer of a session (`tmux_viewer`)

    def viewer_argv(self, session: TerminalSession) -> list[str]:
        """Return the command of a read-only client that shows only the session."""
        return ["tmux", "-u", "-S", session.socket or str(self._server.socket), "-N", "-f", os.devnull,
                "attach-session", "-r", "-t", session.session_id]

    def ask(self, session: TerminalSession, form: str) -> str:
        """Return a tmux format filled in for the session; '' if there is none."""
        return "".join(self._client.lines("display-message", "-p", "-t", session.pane_id, form))

    def list_clients(self, session: TerminalSession, form: str) -> list[str]:
        return self._client.lines("list-clients", "-t", session.session_id, "-F", form)

    def resize(self, session: TerminalSession, columns: int, rows: int) -> None:
        """Set the size of the session's window, which no client changes until one attaches to type."""
        self._client.command("resize-window", "-t", session.pane_id, "-x", str(columns), "-y", str(rows))

    def press(self, session: TerminalSession, keys: str, *, literal: bool) -> None:
        """Send the pane's program a key by name, or a literal text; Refused if it has ended."""
        self._press(self._writable(session), keys, *(["-l"] if literal else []))

    def _press(self, pane: _Pane, keys: str, *options: str) -> None:
        for at in range(0, len(keys), _KEYS):
            self._client.command("send-keys", "-t", pane.pane_id, *options, "--", escape(keys[at:at + _KEYS]))

    def paste(self, session: TerminalSession, text: str, buffer: str) -> None:
        """Paste a text into the pane, bracketed if its program asked for that; Refused if it has ended."""
        pane = self._writable(session)
        for at in range(0, len(text), _KEYS):
            self._client.command("set-buffer", *(["-a"] if at else []), "-b", buffer, "--",
                                 escape(text[at:at + _KEYS]))
        self._client.command("paste-buffer", "-p", "-d", "-b", buffer, "-t", pane.pane_id)

    def _writable(self, session: TerminalSession) -> _Pane:
        """Return a pane whose program reads, after leaving tmux's copy mode."""
        pane = self._pane(session)
        if pane is None or not _is_running(pane):
            raise Refused(f"session {session.name} no longer runs; nothing was typed")
        self._client.command("if-shell", "-F", "-t", pane.pane_id, "#{pane_in_mode}",
                             f"send-keys -t {pane.pane_id} -X cancel")
        return pane

    def sessions(self) -> list[TerminalSession]:
        return [self._session(pane) for pane in self._panes()]

    def shutdown(self) -> None:
        """End the server if it has no session left, not even a foreign one; else it exits with the last one."""
        with self._locked():
            if self._client.lines("list-sessions", "-F", "#{session_id}"):
                self._client.lines("set-option", "-s", "exit-empty", "on")
                return
            self._client.lines("kill-server")
            self._server.remove_socket()

    # ---- panes

    @cached_property
    def _client(self) -> TmuxClient:
        from garrison.system.tmux_client import TmuxClient  # libtmux is loaded where a tmux command is run

        return TmuxClient(self._server)

    def _named(self, name: str, *, replace: bool = False) -> list[_Pane]:
        return [pane for pane in self._panes(replace=replace) if pane.name == encode_name(name)]

    def _panes(self, *, replace: bool = False) -> list[_Pane]:
        """Return the first pane of every session of ours; none if there is no server."""
        if not self._server.socket.exists() and not self._server.restore_socket():
            return []
        panes: dict[str, _Pane] = {}
        for line in self._client.lines("list-panes", "-a", "-F", _LISTED, replace=replace):
            fields = line.split(" ", 8)
            if len(fields) == 9 and fields[5]:
                pid, _, ticks = fields[7].partition(":")
                pane = _Pane(fields[0], fields[1], fields[2] == "1", int(fields[3]), fields[4],
                             _unhex(fields[5]), _unhex(fields[6]), fields[8],
                             ProcessId(int(pid), int(ticks)) if ticks.isdigit() else None)
                panes.setdefault(pane.session_id, pane)
        return list(panes.values())

    def _pane(self, session: TerminalSession) -> _Pane | None:
        """Return the session's pane, if the server that created it still runs."""
        for pane in self._panes():
            same = (pane.session_id, pane.server) == (session.session_id, session.server or pane.server)
            if same and (not session.name or pane.name == encode_name(session.name)):
                return pane
        return None

    def _session(self, pane: _Pane) -> TerminalSession:
        program = pane.program
        return TerminalSession("tmux", str(self._server.socket), pane.session_id, pane.pane_id, program.pid,
                               decode_name(pane.name), program.ticks, pane.server, pane.log)

    def _remove(self, session: TerminalSession) -> None:
        if (pane := self._pane(session)) is not None:
            self._remove_pane(pane)

    def _remove_pane(self, pane: _Pane) -> None:
        """Remove the pane's session by id in one command, only on the server that created it."""
        self._client.lines("if-shell", "-F", f"#{{==:#{{pid}}:#{{start_time}},{pane.server}}}",
                           f"kill-session -t '{pane.session_id}'")

    def _screen(self, pane: _Pane, start: int | None = None) -> list[str]:
        """Return the pane's lines from `start` (negative: within its history; None: all), without trailing blank
        ones."""
        import libtmux

        from garrison.system.tmux_client import NoServer

        shown_pane = libtmux.Pane(server=self._client, pane_id=pane.pane_id)
        try:
            shown = shown_pane.capture_pane("-" if start is None else start, join_wrapped=True)
        except NoServer:
            return []
        while shown and not shown[-1].strip():
            shown.pop()
        return [line.rstrip() for line in shown]

    def _save_output(self, session: TerminalSession, pane: _Pane) -> None:
        shown = self._screen(pane)
        if session.log and shown:
            descriptor = os.open(session.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  # opened with its mode above
                file.write("\n".join(shown) + "\n")

    def _pane_argv(self, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
        """Return `env -i NAME=VALUE… argv`, or the same through a file if it is too long for one message."""
        bad = [name for name in env if not _VARIABLE.match(name)]
        if bad or "=" in argv[0]:
            raise GarrisonError(f"cannot start {argv[0]}: {(bad or [argv[0]])[0]!r} cannot be used in env's command "
                                "line; rename it")
        program = shutil.which("env") or "/usr/bin/env"
        words = [program, "-i", *(f"{name}={value}" for name, value in env.items()), *argv]
        if sum(len(os.fsencode(word)) + 1 for word in words) <= MESSAGE_BYTES:
            return words
        descriptor, path = tempfile.mkstemp(prefix="pane-", dir=self._run)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump([list(argv), dict(env)], file)
        return [program, "-i", sys.executable, "-I", "-c", _READ_AND_EXECUTE, path]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time open sessions or shut down, so that a shutdown never meets an open."""
        os.makedirs(self._run, mode=0o700, exist_ok=True)  # noqa: PTH103  # parents get the mode too
        with (self._run / "tmux.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._server.forget_socket()  # a shutdown may have removed its directory
            yield


def encode_name(name: str) -> str:
    """Return a full name as a tmux session name: tmux turns `.` and `:` into `_`, which would make names collide."""
    return name.replace(".", "~").replace(":", "+")


def decode_name(title: str) -> str:
    """Invert `encode_name`."""
    return title.replace("~", ".").replace("+", ":")


def escape(word: str) -> str:
    """Escape a word of a tmux command line: a `;` at its end would start the next command."""
    return word[:-1] + "\\;" if word.endswith(";") else word


def _check_startable(program: str, env: Mapping[str, str], cwd: Path) -> None:
    """Refuse a command that would fail in the pane at once; tmux itself would silently use another directory."""
    if not cwd.is_dir():
        raise GarrisonError(f"cannot start {program} in {cwd}: no such directory; check the program and the directory")
    sought = str(cwd / program) if "/" in program else program
    if shutil.which(sought, path=env.get("PATH", os.defpath)) is None:
        raise GarrisonError(f"cannot start {program} in {cwd}: no such program; check the program and the directory")


def _is_running(pane: _Pane) -> bool:
    """Return whether the pane's program runs; tmux sometimes misses an exit (10 of 100 under load)."""
    if pane.copy is not None:
        return processes.is_running(pane.copy.pid, pane.copy.ticks)
    process = processes.probe(pane.pid)
    return not pane.dead and process is not None and not process.zombie


def _hex(text: str) -> str:
    return os.fsencode(text).hex() or "-"


def _unhex(text: str) -> str:
    return "" if text == "-" else os.fsdecode(bytes.fromhex(text))


def _ticks(pid: int) -> int:
    process = processes.probe(pid)
    return process.ticks if process is not None else 0


def _remind_of_child(server: str) -> None:
    """Make the server reap a child whose exit it missed; any other process ignores SIGCHLD."""
    pid = int(server.partition(":")[0])
    processes.send(pid, _ticks(pid), signal.SIGCHLD)


def _is_child_of(pid: int, server: str) -> bool:
    process = processes.probe(pid)
    return process is not None and process.ppid == int(server.partition(":")[0])


def attach_argv(session: TerminalSession, socket: str, prefix: str, bindings: Sequence[str], title: str, *, write: bool,
                environ: Mapping[str, str], size: Sequence[str] = ()) -> list[str]:
    """Return the command that attaches by id; without `write`, read-only and without resizing the pane.

    Args:
        prefix: prefix key of our server.
        bindings: `list-keys -T prefix` of our server.
        environ: the user's environment.
        size: columns and rows that the window keeps while no client may type: among read-only clients, tmux would use
            the size of the last, whatever their flags say.
    """
    keys = detach_keys(prefix, bindings, _outer(environ) if environ.get("TMUX") else None)
    window = ["set-option", "-w", "-t", session.session_id, "window-size", "latest", ";"] if write else (
        ["resize-window", "-t", session.session_id, "-x", *size[:1], "-y", *size[1:], ";"] if size else [])
    mode = [] if write else ["-r"]
    return ["env", "-u", "TMUX", "tmux", "-S", session.socket or socket, "-N", "-f", os.devnull,
            "set-option", "-t", session.session_id, "status", "on", ";",
            "set-option", "-t", session.session_id, "status-format[0]", status_format(keys, title), ";",
            *window, "attach-session", *mode, "-t", session.session_id]


def status_format(keys: str, title: str) -> str:
    """Return the status line as a tmux format that tells each client whether it may type."""
    mode = "#{?client_readonly,read-only,you may type}"
    return f"#[reverse] {mode} · {literal(keys)} detaches, the agent continues · {literal(title)} "


def literal(text: str) -> str:
    """Escape `text` for a tmux format: `#` starts no expansion, `%` no date."""
    return text.replace("#", "##").replace("%", "%%")


def detach_keys(prefix: str, bindings: Sequence[str], outer: tuple[str, Sequence[str]] | None) -> str:
    """Return the keys that detach: `C-b d`, or with an `outer` tmux with the same prefix, how to send ours through it.

    Args:
        outer: prefix and bindings of the user's own tmux, None outside of one.
    """
    key = bound(bindings, "detach-client") or ": detach-client"
    through = prefix
    if outer is not None and outer[0] in (prefix, ""):
        through = f"{prefix} {bound(outer[1], 'send-prefix') or prefix}"
    return f"{through} {key}"


def bound(bindings: Sequence[str], command: str) -> str:
    """Return the key that is bound to exactly that command, '' if none.

    A line of `bindings` reads `bind-key [-r] -T prefix KEY COMMAND`.
    """
    for line in bindings:
        words = line.split()
        if len(words) >= 5 and words[-1] == command and words[-4] == "-T":
            return words[-2].removeprefix("\\")
    return ""


def _outer(environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return prefix and bindings of the surrounding tmux; ('', []) if it does not answer."""
    socket = environ["TMUX"].partition(",")[0]

    def ask(*words: str) -> list[str]:
        return run(["tmux", "-N", "-S", socket, *words], 5.0).out.splitlines()

    prefix = "".join(ask("show-options", "-gv", "prefix"))
    return prefix, ask("list-keys", "-T", "prefix") if prefix else []
