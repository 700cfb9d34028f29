"""libtmux client of the home's own tmux server, in which every command has a time limit.

libtmux waits without limit for its tmux command. On a stopped server that hangs forever, even after the command was
killed: the client passes its pipes to the server, so they never reach end of file. `BoundedPopen` replaces `Popen`
inside libtmux and closes our ends instead.

`TmuxClient` also recovers from a server that exited while the client connected, was stopped or lost its socket (see
`tmux_server`). libtmux's objects (`Pane`, `Session`) run their commands through it and get the same treatment. Its
listings (`server.sessions`, `server.panes`) do not: they report "none" for every failure, which would make running
agents appear dead. So panes are listed by our own command.

Importing libtmux costs 50 ms of CPU; only `tmux.TmuxTerminal` loads this module, with its first command.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace

import libtmux
import libtmux.common
import libtmux.exc

from garrison.errors import GarrisonError
from garrison.system.tmux_server import TmuxServer

_WAKE_AFTER = 1.0
"""Seconds without an answer after which a stopped server is continued."""
_ATTEMPTS = 20
_UNREACHABLE = ("no server running", "error connecting", "lost server", "server exited", "no such file",
                "connection refused")
_NO_SESSIONS = ("no current target", "no sessions")

_current: ContextVar[tuple[float, TmuxServer] | None] = ContextVar("tmux_command", default=None)
"""Time limit in seconds and server of the current command; None for one that libtmux runs by itself."""


class BoundedPopen(subprocess.Popen[str]):
    """Popen for libtmux whose `communicate` returns within the time limit of the current command."""

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Collect the output, continuing a stopped server; TimeoutExpired if there is no answer."""
        limit, server = _current.get() or (TmuxServer.command_seconds, None)
        wake_after = min(_WAKE_AFTER, limit / 2)
        try:
            return super().communicate(input, wake_after)
        except subprocess.TimeoutExpired:
            if server is not None:
                server.wake()
        try:
            return super().communicate(timeout=limit - wake_after)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()
            for pipe in (self.stdout, self.stderr):
                assert pipe is not None
                pipe.close()  # unread: the server may keep the other end open
            raise


libtmux.common.subprocess = SimpleNamespace(  # type: ignore[assignment, attr-defined]
    Popen=partial(BoundedPopen, stdin=subprocess.DEVNULL), PIPE=subprocess.PIPE)


class NoServer(GarrisonError):
    """No tmux server is running, or it has no session."""


class TmuxClient(libtmux.Server):
    """libtmux's view of one home's server."""

    def __init__(self, server: TmuxServer) -> None:
        super().__init__(config_file=os.devnull)
        self._server = server

    @property
    def socket_path(self) -> str:  # type: ignore[override]
        """Return the current socket of the server: it may move when the runtime directory was removed."""
        return str(self._server.socket)

    def cmd(self, cmd: str, *args: object, target: str | int | None = None) -> libtmux.common.tmux_cmd:
        """Run a command for one of libtmux's objects; NoServer if there is no server."""
        return self.command(cmd, *(() if target is None else ("-t", target)), *args)

    def lines(self, *words: str, replace: bool = False) -> list[str]:
        """Run a query; return its lines of output, none without a server."""
        try:
            return self.command(*words, replace=replace).stdout
        except NoServer:
            return []

    def command(self, *words: object, start: bool = False, replace: bool = False) -> libtmux.common.tmux_cmd:
        """Run one tmux command.

        Args:
            start: start the server if there is none; implies `replace`.
            replace: kill a server that does not answer, since the caller needs a session.

        Raises:
            NoServer: no server is running, or it has no session.
            GarrisonError: the command failed, or the server does not answer.
        """
        replace = replace or start
        error = ""
        # Without a socket there is no server to ask first; but one whose socket was removed still has the agents.
        if start and not self._server.socket.exists() and not self._server.restore_socket():
            self._server.start()
        for attempt in range(_ATTEMPTS):
            limit = self._server.open_seconds if replace else self._server.command_seconds
            result = self._run(words, limit)
            if result is None:
                if not replace:
                    raise GarrisonError(f"the tmux server at {self.socket_path} does not answer within {limit:.0f} s; "
                                        "agents continue; the next one to start replaces it")
                self._server.kill_unresponsive()
                continue
            if result.returncode == 0:
                return result
            error = "; ".join(result.stderr)
            if error in _NO_SESSIONS:
                raise NoServer(error)
            if not any(text in error.lower() for text in _UNREACHABLE):
                raise GarrisonError(f"tmux {words[0]} failed: {error or result.returncode}")
            if not self._server.socket.exists() and self._server.restore_socket():
                continue
            if not start:
                break
            self._server.start()  # a server that exits while we connect counts as none
            time.sleep(0.01 * attempt)
        raise NoServer(f"the tmux server at {self.socket_path} cannot be reached: {error}")

    def _run(self, words: tuple[object, ...], limit: float) -> libtmux.common.tmux_cmd | None:
        """Run tmux once; None if it does not answer. `-N`: a client never starts a server with its own environment."""
        token = _current.set((limit, self._server))
        try:
            return libtmux.common.tmux_cmd("-u", "-N", "-S", self.socket_path, "-f", self.config_file, *words)
        except subprocess.TimeoutExpired:
            return None
        except (OSError, libtmux.exc.TmuxCommandNotFound) as error:
            reason = error.strerror if isinstance(error, OSError) else "there is none on PATH"
            raise GarrisonError(f"cannot run tmux: {reason}; install it, or use --terminal process") from error
        finally:
            _current.reset(token)
