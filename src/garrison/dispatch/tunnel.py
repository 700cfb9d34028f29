"""Tunnel: the connection by which the programs of a host reach the Temporal server at home.

The command at its other end notes which process of the ssh server serves it, and ends with its standard input: so a
keeper that is killed leaves no tunnel, and a connection that was cut is ended on the host before the next one needs its
port. It also brings the host its settings and starts its service: after a reboot, or when they were changed meanwhile.
"""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

from garrison.dispatch.ssh import HostAccess
from garrison.records.host_service import FOLDER
from garrison.system.processes import probe, signal_group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from garrison.records.hosts import Host

OPENED = "garrison tunnel open"
CONTROL = "garrison.processes.remote.control"
CLEAR = """\
pid=$(cat "$1/tunnel.pid" 2>/dev/null) || exit 0
for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    case "$(cat "/proc/$pid/comm" 2>/dev/null)" in sshd*) ;; *) break ;; esac
    kill "$pid" 2>/dev/null || break
    sleep 0.1
done
rm -f "$1/tunnel.pid"
"""
"""Ends what serves the last tunnel on the host. Only a process of ssh is ended: its pid may be another's by now."""
HOLD = f"""\
umask 077
echo $PPID >"$1/tunnel.pid"
printf '%s\\n' "$2" >"$1/settings.json.part" && mv -f "$1/settings.json.part" "$1/settings.json"
("$3" -P -m {CONTROL} "${{1%/*}}" start </dev/null >"$1/start.log" 2>&1 &)
echo {OPENED}
exec cat >/dev/null
"""
"""What runs on the host while the tunnel is open: of its folder, its settings and its Python."""


class Tunnel:
    """A try to open a tunnel, and the tunnel while it is open."""

    def __init__(self, host: Host, target: str, settings: str, log: Path) -> None:
        access, folder = HostAccess(host.ssh), f"{host.home}/{FOLDER}"
        self._access, self._log = access, log
        self._steps = [
            access.command_line(["sh", "-c", CLEAR, "sh", folder]),
            access.tunnel(host.port, target, ["sh", "-c", HOLD, "sh", folder, settings, host_python(host)])]
        log.write_bytes(b"")
        self._process = self._start(self._steps.pop(0))

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            # Its standard input ends with the keeper, and then the command on the host does.
            return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)

    @property
    def is_open(self) -> bool:
        """Return whether the command on the host has begun, and still runs as far as is known."""
        return not self._steps and self._process.poll() is None and OPENED.encode() in self._log.read_bytes()[:4096]

    def turn(self) -> str | None:
        """Take the next step; return why it failed or ended, None while it goes on."""
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
