"""Access to a host: its programs, files and repositories, over the user's own ssh, always started at home.

A host without an ssh destination is this machine itself. Calls share one connection (ControlMaster) whose socket is
in the home. They never prompt: a key that needs a password belongs in the user's ssh agent.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from garrison import extras
from garrison.errors import GarrisonError, UsageError
from garrison.hosts.attempts import AttemptId, ClaimToken, base_ref, check_commit, left_ref
from garrison.pipeline.node_status import VALIDATED
from garrison.records import atomic, names
from garrison.records.host_service import FOLDER as HOST_FOLDER
from garrison.records.host_service import queues_path
from garrison.records.hosts import FOLDER, check_host, list_hosts, read_host
from garrison.records.placement import check_placement, queue_of, stated_placement
from garrison.system.command import run
from garrison.system.git import Git, GitError
from garrison.system.processes import probe, signal_group
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from garrison.pipeline.plan import RunPlan
    from garrison.records.hosts import Host

CONNECT_SECONDS = 10
"""Longest wait for a connection."""
ALIVE_SECONDS = 5
"""Time between two keepalives; three without an answer end the connection."""
PERSIST_SECONDS = 120
"""Time for which an idle shared connection is kept."""
COPY_SECONDS = 300.0
LONGEST_SOCKET = 80
"""Bytes of a control socket's path: 107, less the 17-letter suffix of ssh's temporary name, and a margin."""
SSH_FAILED = 255
"""Exit code of ssh itself; a command on the host that ends so is reported as 254."""
# RemoteCommand: where the user's configuration sets one, ssh refuses any other command.
OPTIONS = {
    "BatchMode": "yes", "ConnectTimeout": str(CONNECT_SECONDS), "ServerAliveInterval": str(ALIVE_SECONDS),
    "ServerAliveCountMax": "3", "ForwardAgent": "no", "ForwardX11": "no", "PermitLocalCommand": "no",
    "RemoteCommand": "none", "LogLevel": "ERROR",
}
"""Options of every connection: no prompts, limited waits, and no forwarding from home to the host."""
TROUBLES = (
    ("host key verification failed", "its key has changed, or is not known yet: run `ssh {ssh}` once by hand"),
    ("permission denied", "it accepts none of your keys: `ssh {ssh}` must work without a password"),
    ("could not resolve hostname", "no such name: check it, or its entry in ~/.ssh/config"),
    ("no route to host", "no route: check the network, or a VPN"),
    ("network is unreachable", "no network: check it, or a VPN"),
    ("connection refused", "no ssh server answers there: start it, or check the port"),
    ("remote port forwarding failed", "its tunnel's port is taken there: `garrison host add HOST` takes another"),
    ("timed out", "it does not answer: check that it is on, and the network"),
)
"""Message of ssh (in lower case) → its meaning and the remedy."""
_DESTINATION = re.compile(r"[^\s\x00-\x1f\x7f'\"\\-][^\s\x00-\x1f\x7f'\"\\]*\Z")


class HostUnreachable(GarrisonError):
    """ssh did not deliver a command to the host, or not its result; it is unknown whether it ran there."""


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
        """Return that line without the program name that precedes garrison's messages."""
        return self.last_error.removeprefix("garrison: ")


def check_destination(ssh: str) -> str:
    """Return `ssh` if it can be a destination of ssh, '' included, else raise UsageError."""
    if ssh and not _DESTINATION.match(ssh):
        raise UsageError(f"not a destination of ssh: {names.quote(ssh)}; use an alias, user@host or ssh://user@host:port")
    return ssh


class HostAccess:
    """Access to one host.

    Args:
        ssh: destination for ssh; '' is this machine.
        folder: folder of the shared connection's socket; None: each call makes its own connection.
    """

    def __init__(self, ssh: str, folder: Path | None = None) -> None:
        self.ssh = check_destination(ssh)
        self._options = dict(OPTIONS)
        # %C is 40 hexadecimal digits, a hash of the destination's user, host and port.
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
                # In its own session, whose group is killed: a ProxyCommand is a child of ssh.
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
        last = text.splitlines()[-1][:200] if text else "ssh failed without a message"
        return f"{self.place} cannot be reached: {last}"

    # ---- files and repositories

    def copy_in(self, local: Path, remote: str) -> None:
        """Copy a file atomically to an absolute path of the host; GarrisonError if that failed."""
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

    # ---- tunnels

    def tunnel(self, host_port: int, target: str, argv: Sequence[str]) -> list[str]:
        """Return the command that forwards a port of the host's loopback to `target`, host and port at home's side,
        while `argv` runs there; it ends with 255 if the port is taken."""
        return self._forward("-R", f"127.0.0.1:{host_port}:{target}", argv)

    def tunnel_in(self, local: str, remote: str, argv: Sequence[str]) -> list[str]:
        """Return the command that forwards a Unix socket here to one of the host while `argv` runs there.

        On this machine itself both are the same socket, and the command is `argv`.
        """
        return self._forward("-L", f"{local}:{remote}", argv) if self.ssh else list(argv)

    def _forward(self, way: str, ends: str, argv: Sequence[str]) -> list[str]:
        # Not over the shared connection: its master would keep the port open after the command has ended.
        words = self._program(ControlPath="none", ExitOnForwardFailure="yes", StreamLocalBindMask="0177")
        return [*words, way, ends, "--", self.ssh, for_any_shell(f"exec {shlex.join(argv)}")]

    def disconnect(self) -> None:
        """End the shared connection, if there is one."""
        if self.ssh and self._options["ControlPath"] != "none":
            run([*self._program(), "-O", "exit", "--", self.ssh], CONNECT_SECONDS)


def for_any_shell(script: str) -> str:
    """Return a command that runs a POSIX script under any login shell: none of its words needs quoting."""
    coded = base64.b64encode(script.encode()).decode()
    return f"exec sh -c 'eval \"$(echo {coded} | base64 -d)\"'"


def _guarded(argv: Sequence[str]) -> str:
    return f"{shlex.join(argv)}; code=$?; [ $code -ne {SSH_FAILED} ] || code={SSH_FAILED - 1}; exit $code"


# ---- Tunnel: the connection by which the programs of a host reach the Temporal server at home.
#
# The command at its other end records which process of the ssh server serves it, and ends with its standard input: so
# a killed keeper leaves no tunnel, and a broken connection is ended on the host before the next one
# needs its port. It also brings the host its settings and starts its service, after a reboot or a change of the
# settings.


OPENED = "garrison tunnel open"
CONTROL = """\
import sys
try:
    from garrison.hosts.control import main
except ModuleNotFoundError:  # a host that an earlier version set up
    from garrison.processes.remote.control import main
sys.exit(main(sys.argv[1:]))
"""
CLEAR = """\
pid=$(cat "$1/tunnel.pid" 2>/dev/null) || exit 0
for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    case "$(cat "/proc/$pid/comm" 2>/dev/null)" in sshd*) ;; *) break ;; esac
    kill "$pid" 2>/dev/null || break
    sleep 0.1
done
rm -f "$1/tunnel.pid"
"""
"""Ends the process that serves the last tunnel on the host, only if it is ssh's: the pid may be reused by now."""
HOLD = """\
umask 077
echo $PPID >"$1/tunnel.pid"
printf '%s\\n' "$2" >"$1/settings.json.part" && mv -f "$1/settings.json.part" "$1/settings.json"
("$3" -P -c "$4" "${1%/*}" start </dev/null >"$1/start.log" 2>&1 &)
echo "$5"
exec cat >/dev/null
"""
"""Script on the host while the tunnel is open; arguments: folder, settings, Python, CONTROL and OPENED."""


class Tunnel:
    """An attempt to open a tunnel, and the open tunnel."""

    def __init__(self, host: Host, target: str, settings: str, log: Path) -> None:
        access, folder = HostAccess(host.ssh), f"{host.home}/{HOST_FOLDER}"
        self._access, self._log = access, log
        self._steps = [
            access.command_line(["sh", "-c", CLEAR, "sh", folder]),
            access.tunnel(host.port, target, ["sh", "-c", HOLD, "sh", folder, settings, host_python(host), CONTROL,
                                              OPENED])]
        log.write_bytes(b"")
        self._process = self._start(self._steps.pop(0))

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            # Its standard input ends with the keeper, and so does the command on the host.
            return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)

    @property
    def is_open(self) -> bool:
        """Return whether the command on the host has started, and has not ended as far as is known."""
        return not self._steps and self._process.poll() is None and OPENED.encode() in self._log.read_bytes()[:4096]

    def turn(self) -> str | None:
        """Take the next step; return why it failed or ended, None while it continues."""
        code = self._process.poll()
        if code is None:
            return None
        if self._process.stdin is not None:
            self._process.stdin.close()
        if code == 0 and self._steps:
            self._process = self._start(self._steps.pop(0))
            return None
        return self._access.explain(self._log.read_bytes()[-4096:].replace(OPENED.encode(), b""))

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if probe(self._process.pid) is not None and self._process.poll() is None:
            signal_group(self._process, signal.SIGTERM)
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def host_python(host: Host) -> str:
    return f"{host.command.rpartition('/')[0]}/python"


# ---- Incoming work: the ref under which home keeps a claim's fetched commits.
#
# Each claim has a ref, `refs/garrison/incoming/HOST/RUN/NODE/ATTEMPT-CLAIM`. Nothing reads it by name: the run uses
# the commit in an accepted result. So the work of a worker that lost its claim never mixes with its
# successor's, and never lands. Pure.


NAMESPACE = "refs/garrison/incoming"


def incoming_ref(host: str, token: ClaimToken) -> str:
    return (f"{NAMESPACE}/{check_host(host)}/{token.id.run}/{token.id.node}/"
            f"{token.id.number}-{token.claim}")


# ---- Transport of commits between the run's repository and a host's clone: git over the user's ssh, always started
# at home.
#
# The host needs no connection back, and has no right to write in the run's repository. Fetched commits are put under
# the incoming ref, checked by git's fsck.


CLONES = "clones"
"""Folder of a host's home with its clones."""
SECONDS = 600.0
"""Longest transfer."""
# With protocol 2 a server sends any commit by its id; with earlier ones only tips of refs.
_FETCH = {"fetch.fsckObjects": "true", "transfer.fsckObjects": "true", "fetch.recurseSubmodules": "false",
          "protocol.version": "2"}
_PUSH = {"push.recurseSubmodules": "no", "push.followTags": "false"}


class TransferFailed(GarrisonError):
    """git did not transfer the commits; it can be retried."""


def clone_path(host_home: str, repository: str) -> str:
    return f"{host_home}/{CLONES}/{repository}"


class Transport:
    """Transfers between one repository and its clone on one host."""

    def __init__(self, git: Git, access: HostAccess, host: str, clone: str) -> None:
        self.git, self.access, self.host, self.clone = git, access, host, clone

    def push_base(self, commit: str, id_: AttemptId) -> None:
        """Bring the commit at which an attempt starts to the host; TransferFailed if that is impossible."""
        self._run("push", _PUSH, "--quiet", "--no-verify", self.access.git_url(self.clone),
                  f"+{check_commit(commit)}:{base_ref(id_)}")

    def fetch(self, commit: str, token: ClaimToken) -> str:
        """Fetch exactly that commit, and return the ref that keeps it; TransferFailed if that is impossible."""
        ref = incoming_ref(self.host, token)
        if self.git.rev(check_commit(commit)) != commit or self.git.rev(ref) != commit:
            self._fetch(f"{commit}:{ref}")
        if self.git.rev(ref) != commit:
            raise TransferFailed(f"{self.host} has sent another commit than {commit[:10]}")
        return ref

    def fetch_left(self, token: ClaimToken) -> tuple[str, str]:
        """Fetch the work of a worker that was cut off or stopped; return the commit and the ref that keeps it, two
        empty texts if it left nothing."""
        name = left_ref(token.id)
        if not self._run("ls-remote", _FETCH, self.access.git_url(self.clone), name).strip():
            return "", ""
        ref = incoming_ref(self.host, token)
        self._fetch(f"+{name}:{ref}")
        return self.git.rev(ref) or "", ref

    def _fetch(self, what: str) -> None:
        self._run("fetch", _FETCH, "--quiet", "--no-tags", "--no-write-fetch-head", "--force",
                  self.access.git_url(self.clone), what)

    def _run(self, name: str, settings: Mapping[str, str], *arguments: str) -> str:
        # Settings of this variable come in addition to the numbered ones, which make the call neutral.
        packed = " ".join(f"'{key}'='{value}'" for key, value in settings.items())
        try:
            return self.git.run(name, *arguments, timeout=SECONDS, extra={
                **self.access.git_environment(), "GIT_CONFIG_PARAMETERS": packed}).out
        except GitError as error:
            raise TransferFailed(f"{self.host}: {error}") from None


# ---- Transfer commits between the run's repository and a host: `python -P -m garrison.hosts.access`.
#
# A child of the orchestrator, so that a slow network blocks nothing else. It prints nothing, or one line and exits
# with 1.


PUSH, FETCH, LEFT = "push", "fetch", "left"


def transfer_argv(what: str, home: Path, repo: str, host: str, token: ClaimToken, commit: str) -> list[str]:
    return [sys.executable, "-P", "-m", "garrison.hosts.access", what, "--home", str(home), "--repo", repo,
            "--host", host, "--attempt", str(token.id), "--claim", str(token.claim), "--commit", commit]


def transport_to(home: Path, repo: Path, name: str) -> Transport:
    """Return the transport between a repository and a host; NotFound if the home has no such host."""
    host, git = read_host(home, name), Git(repo, home=home)
    return Transport(git, HostAccess.of(home, host), name, clone_path(host.home, git.key))


def main(argv: Sequence[str] | None = None) -> int:
    """Do one transfer."""
    parser = argparse.ArgumentParser(prog="garrison.hosts.access")
    parser.add_argument("what", choices=(PUSH, FETCH, LEFT))
    for name in ("--home", "--repo", "--host", "--attempt", "--commit"):
        parser.add_argument(name, required=True)
    parser.add_argument("--claim", type=int, required=True)
    given = parser.parse_args(argv)
    try:
        transport = transport_to(Path(given.home), Path(given.repo), given.host)
        id_ = AttemptId.parse(given.attempt)
        if given.what == PUSH:
            transport.push_base(given.commit, id_)
        elif given.what == LEFT:
            if not transport.fetch_left(ClaimToken(id_, given.claim))[0]:
                raise TransferFailed(f"{given.host} has not yet kept its worker's work")
        else:
            transport.fetch(given.commit, ClaimToken(id_, given.claim))
    except (GarrisonError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


# ---- Preflight of a run with hosts: each placement has a host that accepts work, and the dispatcher's SDK is
# installed.


REACH_SECONDS = 20.0
_ADD_LINE = 'mkdir -p "$(dirname "$1")"; grep -qxF "$2" "$1" 2>/dev/null || printf "%s\\n" "$2" >>"$1"'


def check_hosts(home: Path, plan: RunPlan, default: Sequence[str],
                report: Callable[[str], None]) -> int:
    """Return the slots of all hosts that may do a node of the plan.

    MissingExtra without that for hosts; NotFound for a placement without a host.
    """
    placements = {name: stated_placement(task.attrs, default) for name, task in plan.tasks.items()}
    used = {name: words for name, words in placements.items() if words and plan.initial.get(name) != VALIDATED}
    if not used:
        return 0
    extras.require("hosts", f"node {next(iter(used))} is for a host, which")
    hosts = [host for host in list_hosts(home)[0] if host.is_set_up]
    slots: dict[str, int] = {}
    for words in sorted(set(used.values())):
        found = check_placement(f"node {next(name for name in used if used[name] == words)}", words, hosts)
        slots |= {host.name: host.slots for host in found}
        if "," in words:
            for host in found:
                _serve_set(home, host, queue_of(words, hosts), report)
    return sum(slots.values())


def _serve_set(home: Path, host: Host, queue: str, report: Callable[[str], None]) -> None:
    """Let a host also serve the queue of a set of hosts."""
    path = queues_path(Path(host.home))
    try:
        HostAccess.of(home, host).run(["sh", "-c", _ADD_LINE, "sh", str(path), queue], timeout=REACH_SECONDS)
    except GarrisonError as error:
        report(f"note: {host.name} does none of this run's nodes until it can be reached: {error}; launch again then, "
               "or name it alone")


if __name__ == "__main__":
    sys.exit(main())
