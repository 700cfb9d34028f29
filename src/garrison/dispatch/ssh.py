"""Access to a host: its programs, files and repositories, over the user's own ssh, always begun at home.

A host without an ssh destination is this machine itself. Calls share one connection (ControlMaster) whose socket lies
in the home. None of them asks a question: a key that needs a password belongs in the user's ssh agent.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import subprocess
import tempfile
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from garrison.errors import GarrisonError, UsageError
from garrison.records import atomic, names
from garrison.records.hosts import FOLDER
from garrison.system.processes import signal_group
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from garrison.records.hosts import Host

CONNECT_SECONDS = 10
"""Longest wait for a connection."""
ALIVE_SECONDS = 5
"""Time between two questions whether the other side is there; three without an answer end the connection."""
PERSIST_SECONDS = 120
"""Time for which a shared connection is kept without use."""
COPY_SECONDS = 300.0
LONGEST_SOCKET = 80
"""Bytes of a control socket's path: 107, less the ending of 17 letters that ssh makes it under, and some."""
SSH_FAILED = 255
"""Exit code of ssh itself; a command on the host that ends so is reported as 254."""
OPTIONS = {
    "BatchMode": "yes", "ConnectTimeout": str(CONNECT_SECONDS), "ServerAliveInterval": str(ALIVE_SECONDS),
    "ServerAliveCountMax": "3", "ForwardAgent": "no", "ForwardX11": "no", "PermitLocalCommand": "no",
    "RemoteCommand": "none", "LogLevel": "ERROR",
}
"""Options of every connection: no questions, limited waits, and nothing of home is lent to the host."""
TROUBLES = (
    ("host key verification failed", "its key is not the known one, or not known yet: run `ssh {ssh}` once by hand"),
    ("permission denied", "it accepts none of your keys: `ssh {ssh}` must work without a password"),
    ("could not resolve hostname", "no such name: check it, or its entry in ~/.ssh/config"),
    ("no route to host", "no route: check the network, or a VPN"),
    ("network is unreachable", "no network: check it, or a VPN"),
    ("connection refused", "no ssh server answers there: start it, or check the port"),
    ("remote port forwarding failed", "its tunnel's port is taken there: `garrison host add HOST` takes another"),
    ("timed out", "it does not answer: check that it is on, and the network"),
)
"""What ssh says (in lower case) → what it means and what to do."""
_DESTINATION = re.compile(r"[^\s\x00-\x1f\x7f'\"\\-][^\s\x00-\x1f\x7f'\"\\]*\Z")


class HostUnreachable(GarrisonError):
    """ssh did not bring a command to the host, or no end of it back; whether it ran there is not known."""


class Completed(Value):
    """A command that ended on a host."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode(errors="replace").strip()

    @property
    def last_error(self) -> str:
        lines = self.err.decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    @property
    def message(self) -> str:
        """Return that line without the name of the garrison there, with which its messages begin."""
        return self.last_error.removeprefix("garrison: ")


def check_destination(ssh: str) -> str:
    """Return `ssh` if it can be a destination of ssh, '' included, else raise UsageError."""
    if ssh and not _DESTINATION.match(ssh):
        raise UsageError(f"not a destination of ssh: {names.quote(ssh)}; use an alias, user@host or ssh://user@host:port")
    return ssh


class HostAccess:
    """Way to a host.

    Args:
        ssh: destination for ssh; '' is this machine.
        folder: where the socket of the shared connection lies; None: each call makes its own connection.
    """

    def __init__(self, ssh: str, folder: Path | None = None) -> None:
        self.ssh = check_destination(ssh)
        self._options = dict(OPTIONS)
        # %C is 40 hexadecimal digits, of the user, host and port that the destination leads to.
        if folder is not None and len(os.fsencode(folder)) + 42 <= LONGEST_SOCKET:
            self._options |= {"ControlPath": f"{folder}/%C", "ControlPersist": str(PERSIST_SECONDS)}
        else:
            self._options |= {"ControlPath": "none"}

    @classmethod
    def of(cls, home: Path, host: Host) -> HostAccess:
        return cls(host.ssh, atomic.make_directory(home / FOLDER / "ssh") if host.ssh else None)

    # ---- commands

    def run(self, argv: Sequence[str], *, stdin: bytes | BinaryIO = b"", timeout: float) -> Completed:
        """Run a command on the host, and return how it ended there.

        HostUnreachable if ssh failed, or the command did not end within `timeout` seconds.
        """
        words = self.command_line(argv) if not self.ssh else self._ssh(_guarded(argv), ControlMaster="auto")
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as err:
            if isinstance(stdin, bytes):
                given.write(stdin)
                given.seek(0)
            try:
                # Standard error is a file: the shared connection, which stays, would keep a pipe open.
                process = subprocess.Popen(words, stdin=given if isinstance(stdin, bytes) else stdin, stderr=err,
                                           stdout=subprocess.PIPE, start_new_session=True)
            except OSError as error:
                raise HostUnreachable(f"{words[0]} cannot be started here: {error.strerror}") from None
            try:
                out, _ = process.communicate(timeout=timeout)
            except BaseException as error:
                signal_group(process)
                process.communicate()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise HostUnreachable(f"{self.place} did not answer within {timeout:g} s") from None
                raise
            err.seek(0)
            done = Completed(process.returncode, out, err.read())
        if self.ssh and done.code == SSH_FAILED:
            raise HostUnreachable(self.explain(done.err))
        return done

    def popen(self, argv: Sequence[str], *, tty: bool = False, stdin: int | None = None, stdout: int | None = None,
              stderr: int | None = None) -> subprocess.Popen[bytes]:
        """Start a command on the host, with a terminal there if `tty`; the streams are as for Popen."""
        return subprocess.Popen(self.command_line(argv, tty=tty), stdin=stdin, stdout=stdout, stderr=stderr)

    def command_line(self, argv: Sequence[str], *, tty: bool = False) -> list[str]:
        if not self.ssh:
            return list(argv)
        return self._ssh(f"exec {shlex.join(argv)}", tty=tty)

    def _ssh(self, script: str, *, tty: bool = False, **more: str) -> list[str]:
        return [*self._program(tty=tty, **more), "--", self.ssh, for_any_shell(script)]

    def _program(self, *, tty: bool = False, **more: str) -> list[str]:
        options = {**self._options, "ControlMaster": "no", **more}
        if options["ControlPath"] == "none":
            options |= {"ControlMaster": "no", "ControlPersist": "no"}
        words = ["ssh", "-tt" if tty else "-T"]
        for name, value in options.items():
            words += ["-o", f"{name}={value}"]
        return words

    @property
    def place(self) -> str:
        return self.ssh or "this machine"

    def explain(self, err: bytes) -> str:
        """Return one line with the remedy for what ssh wrote before it failed."""
        text = err.decode(errors="replace").strip()
        for sign, remedy in TROUBLES:
            if sign in text.lower():
                return f"{self.place} cannot be reached: {remedy.format(ssh=self.ssh)}"
        last = text.splitlines()[-1][:200] if text else "ssh failed without a word"
        return f"{self.place} cannot be reached: {last}"

    # ---- files and repositories

    def copy_in(self, local: Path, remote: str) -> None:
        """Copy a file to an absolute path of the host, as a whole or not at all; GarrisonError if that failed."""
        script = 'umask 077; cat >"$1.part" && mv -f "$1.part" "$1"'
        with local.open("rb") as file:
            done = self.run(["sh", "-c", script, "sh", remote], stdin=file, timeout=COPY_SECONDS)
        if done.code:
            raise GarrisonError(f"{local.name} cannot be copied to {self.place}: {done.last_error}")

    def git_url(self, path: str) -> str:
        """Return git's address of a repository at an absolute path of the host."""
        if not self.ssh:
            return path
        if self.ssh.startswith("ssh://"):
            return f"{self.ssh.rstrip('/')}{quote(path)}"
        user, at, name = self.ssh.rpartition("@")
        return f"ssh://{user}{at}{f'[{name}]' if ':' in name else name}{quote(path)}"

    def git_environment(self) -> dict[str, str]:
        """Return the variables with which git reaches the host as `run` does."""
        variables = {"GIT_TERMINAL_PROMPT": "0"}
        if self.ssh:
            variables |= {"GIT_SSH_COMMAND": shlex.join(self._program()), "GIT_SSH_VARIANT": "ssh"}
        return variables

    # ---- the way back

    def tunnel(self, host_port: int, target: str, argv: Sequence[str]) -> list[str]:
        """Return the command that lets programs of the host reach `target`, host and port at home's side, at a port of
        its loopback, for as long as `argv` runs there; it ends with 255 if the port is taken."""
        words = self._program(ControlPath="none", ExitOnForwardFailure="yes")
        return [*words, "-R", f"127.0.0.1:{host_port}:{target}", "--", self.ssh,
                for_any_shell(f"exec {shlex.join(argv)}")]

    def disconnect(self) -> None:
        """End the shared connection, if there is one."""
        if self.ssh and self._options["ControlPath"] != "none":
            subprocess.run([*self._program(), "-O", "exit", "--", self.ssh], stdin=subprocess.DEVNULL,
                           capture_output=True, check=False, timeout=CONNECT_SECONDS)


def for_any_shell(script: str) -> str:
    """Return a command that runs a POSIX script whatever the login shell is: none of its words needs quoting there."""
    coded = base64.b64encode(script.encode()).decode()
    return f"exec sh -c 'eval \"$(echo {coded} | base64 -d)\"'"


def _guarded(argv: Sequence[str]) -> str:
    return f"{shlex.join(argv)}; code=$?; [ $code -ne {SSH_FAILED} ] || code={SSH_FAILED - 1}; exit $code"
