"""Location of a remote node's work, in words, and access to its host."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from garrison.errors import GarrisonError, NotFound, Refused
from garrison.plugins import PluginGroup, load
from garrison.records.placement import describe
from garrison.records.remote import RemotePhase, RemoteWorkState, look_remote
from garrison.system.machine import garrison_argv

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from garrison.records.hosts import Host

NO_TROUBLE: Mapping[str, str] = MappingProxyType({})
_DOING = {"": "preparing", "preparing": "preparing", "planning": "preparing", "executing": "its agent is working",
          "impl_complete": "its work is accepted", "validating": "its work is accepted",
          "merged": "its work is accepted"}
"""Phase reported by a host → description."""


def describe_remote(state: RemoteWorkState | None, cut_off: Mapping[str, str] = NO_TROUBLE) -> str:
    """Return where the work of an attempt is; '' if no host is involved. Pure.

    Args:
        cut_off: unreachable hosts → since when.
    """
    if state is None or state.phase == RemotePhase.ENDED:
        return ""
    if state.phase == RemotePhase.WAITING:
        words = f"waiting for a host ({describe(state.placement)})"
        words += "".join(f"; {name} is cut off{since}" for name, since in sorted(cut_off.items())
                         if name in state.placement.split(","))
    elif state.phase == RemotePhase.COLLECTING:
        words = f"done on {state.host}; fetching its commits"
    else:
        words = f"{_DOING.get(state.work, 'its agent is working')} on {state.host}"
    if state.cancelled:
        words += "; ending it"
    return f"{words}; {state.trouble.splitlines()[0][:200]}" if state.trouble else words


def hosts_cut_off(home: Path) -> dict[str, str]:
    """Return the hosts without a tunnel of the keeper → since when, in words."""
    try:
        # by name: hosts are an extra, which the core must not import
        state = load(PluginGroup.PARTS, "hosts.state")(home)
    except GarrisonError:
        return {}
    return {name: f" since {state.seen[name][11:16]} UTC" if name in state.seen else "" for name in state.troubles}


class EndedCommand(Protocol):
    """Ended command on a host."""

    @property
    def code(self) -> int: ...
    @property
    def out(self) -> bytes: ...
    @property
    def last_error(self) -> str: ...


class HostWay(Protocol):
    """Access to a host for running commands there."""

    @property
    def ssh(self) -> str:
        """Destination for ssh, '' for this machine."""

    def run(self, argv: Sequence[str], *, timeout: float) -> EndedCommand:
        """Run a command to its end, for at most `timeout` seconds."""

    def popen(self, argv: Sequence[str], *, stdin: int | None = None, stdout: int | None = None,
              stderr: int | None = None) -> subprocess.Popen[bytes]:
        """Start a command; streams as for Popen."""

    def command_line(self, argv: Sequence[str], *, tty: bool = False) -> list[str]:
        """Return the local command that runs a command there."""

    def tunnel_in(self, local: str, remote: str, argv: Sequence[str]) -> list[str]:
        """Return the command that forwards a local Unix socket to one there while `argv` runs there."""

    def explain(self, err: bytes) -> str:
        """Return one line with the remedy for an error of ssh."""


def way_to(home: Path, host: Host) -> HostWay:
    way: HostWay = load(PluginGroup.PARTS, "hosts.access").of(home, host)
    return way


def on_host(home: Path, folder: Path, node: str) -> tuple[HostWay, list[str], RemoteWorkState] | None:
    """Return access to the host of an attempt, the prefix of garrison's command there, and the state of the work; None
    if no host has the attempt.

    Refused if its host is no longer registered in this home.
    """
    state = look_remote(folder)
    if state is None or not state.host:
        return None
    from garrison.records.hosts import read_host  # few nodes are on a host

    try:
        host = read_host(home, state.host)
    except NotFound as error:
        raise Refused(f"{node} was on {state.host}, which is no longer a host: {error}") from None
    return way_to(home, host), [*host_command(host.command), "--home", host.home], state


def host_command(command: str) -> Sequence[str]:
    """Return the command that runs garrison on a host."""
    if command:
        return [command]
    return garrison_argv()  # this machine itself, in a test: the same installation
