"""Control of a host's service, on the host: `python -P -m garrison.hosts.control HOME start|stop|probe|guard`.

A user manager of systemd runs the service if one answers; else its own shell session does, which restarts it
when it dies. Both end when the service ends by itself. `probe` prints a line of JSON that `garrison host list` shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison import __version__
from garrison.errors import GarrisonError
from garrison.records import atomic
from garrison.records.host_service import (
    FOLDER,
    AgentOnHost,
    HostProbe,
    life_path,
    read_settings,
    read_status,
)
from garrison.records.identity import Identity
from garrison.records.life_lock import is_held
from garrison.records.names import parse_marker
from garrison.records.store import Store
from garrison.system import command, processes, systemd
from garrison.system.clock import wait_until
from garrison.system.command import start_detached
from garrison.system.process_control import walk_down
from garrison.values import replace, to_builtins

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from garrison.system.processes import ProcessId, ProcessRow

LOOP = """\
echo $$ >"$2/host/supervisor.pid"
while :; do
    "$1" host run --home "$2"
    code=$?
    [ $code -eq 0 ] && exit 0
    if [ $code -lt 128 ]; then sleep 5; fi
done
"""
"""Restarts the service when it was killed, and after a pause when it failed."""
# StartLimitIntervalSec=0: by default systemd gives up a unit that was started five times within ten seconds.
UNIT = """\
[Unit]
Description=garrison: work for {crew} on this host
StartLimitIntervalSec=0

[Service]
ExecStart={command} host run --home {home}
Environment={path}
Restart=on-failure
RestartSec=0.1

[Install]
WantedBy=default.target
"""
START_SECONDS = 20.0
STOP_SECONDS = 15.0
SHELL_SECONDS = 5.0


def command_path() -> Path:
    return Path(sys.executable).with_name("garrison")


def start(home: Path, environ: Mapping[str, str]) -> str:
    """Start the service of a home unless it runs; return how it is kept running, with notes for the user."""
    settings = read_settings(home)
    if is_held(life_path(home)):
        return "it runs"
    variables = {**environ, "PATH": login_path(environ)}
    unit = unit_name(home)
    if (manager := _find_manager(environ)) is not None:
        file = _unit_file(home, environ)
        atomic.make_directory(file.parent)
        path = variables["PATH"].replace("%", "%%")
        atomic.write(file, UNIT.format(crew=settings.crew, command=_word(command_path()), home=_word(home),
                                       path=_word(f"PATH={path}", is_escaped=True)).encode())
        if _call(manager, "daemon-reload") and _call(manager, "enable", "--now", unit) and _wait(home, is_up=True):
            return "kept by systemd" + _linger(manager)
        # A manager that answers may still start nothing, as in a container. Its unit is disabled again: otherwise it
        # might later start a second service, which the lock refuses, ten times a second.
        _call(manager, "disable", "--now", unit)
        file.unlink(missing_ok=True)
    log = home / FOLDER / "service.log"
    start_detached(["sh", "-c", LOOP, "sh", str(command_path()), str(home)], log, env=variables)
    if not _wait(home, is_up=True):
        raise GarrisonError(f"the service does not start; the end of its log: {_tail(log)}")
    return "kept by its own shell (no user manager of systemd answers here): after a reboot it starts when " \
           "home connects"


def stop(home: Path, environ: Mapping[str, str]) -> str:
    """End the service of a home and its work; it stays ended until `start`."""
    if (manager := _find_manager(environ)) is not None:
        _call(manager, "disable", "--now", unit_name(home))
        _unit_file(home, environ).unlink(missing_ok=True)
    supervisor = (atomic.read(home / FOLDER / "supervisor.pid") or b"").decode(errors="replace").strip()
    if supervisor.isdigit():  # first: it would restart the service
        _signal(int(supervisor), home, signal.SIGKILL)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        status = read_status(home)
        if not is_held(life_path(home)):
            break
        if status is not None and status.pid:
            _signal(status.pid, home, signum)
        _wait(home, is_up=False)
    if is_held(life_path(home)):
        raise GarrisonError("its service does not end; find the process `garrison host run` on the host and end it")
    return "stopped"


def probe(home: Path, environ: Mapping[str, str]) -> HostProbe:
    """Return the data on this host that home shows."""
    from garrison.agents.presets import PRESETS

    status = read_status(home)
    search = {**environ, "PATH": login_path(environ)}
    agents: list[AgentOnHost] = []
    for preset in PRESETS:
        if preset.find(search["PATH"]) and all(preset.program != known.program for known in agents):
            agents.append(AgentOnHost(preset.program, preset.has_access(search), preset.access(search)))
    manager = _find_manager(environ)
    is_unit = manager is not None and _call(manager, "is-active", unit_name(home))
    found = HostProbe(
        time.time(), __version__, is_held(life_path(home)), load=os.getloadavg()[0], cores=os.cpu_count() or 1,
        disk_free=shutil.disk_usage(home).free, agents=agents, kept_by="systemd" if is_unit else "shell")
    return found if status is None else replace(
        found, connected=status.connected, why=status.why, contact_at=status.contact_at, state=status.state,
        slots=status.slots, working=list(status.working))


def login_path(environ: Mapping[str, str]) -> str:
    """Return the PATH of the user's login shell: ssh starts commands with a shorter one, without users' programs."""
    own = environ.get("PATH", os.defpath)
    # A profile may print, and end without a line break: the last line is ours.
    done = command.run([environ.get("SHELL") or "sh", "-lc", 'echo; echo "$PATH"'], SHELL_SECONDS, env=environ)
    lines = done.out.rstrip("\n").split("\n")
    words = [word for word in lines[-1].split(":") if word.startswith("/")]
    return ":".join(dict.fromkeys([*words, *own.split(":")])) if done.ok else own


def unit_name(home: Path) -> str:
    return f"garrison-host-{hashlib.sha256(str(home).encode()).hexdigest()[:12]}.service"


def _unit_file(home: Path, environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd/user" / unit_name(home)


def _find_manager(environ: Mapping[str, str]) -> systemd.Manager | None:
    """Return the user manager that accepts units, None without one."""
    manager = systemd.find_manager(environ)
    return manager if manager is not None and manager.systemctl else None


def _word(text: object, *, is_escaped: bool = False) -> str:
    escaped = str(text) if is_escaped else str(text).replace("%", "%%")
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _call(manager: systemd.Manager, *words: str) -> bool:
    return systemd.call(manager, [manager.systemctl, "--user", *words]) is not None


def _linger(manager: systemd.Manager) -> str:
    if systemd.is_lingering(manager) is not False:
        return ""
    if manager.loginctl:
        systemd.call(manager, [manager.loginctl, "enable-linger"])
    if systemd.is_lingering(manager):
        return ""
    return "; it ends when you log out there: run `sudo loginctl enable-linger $USER` on the host"


def _wait(home: Path, *, is_up: bool) -> bool:
    return wait_until(lambda: is_held(life_path(home)) is is_up, START_SECONDS if is_up else STOP_SECONDS)


def _signal(pid: int, home: Path, signum: int) -> None:
    """Signal a process of the service, unless the pid has been reused."""
    found = processes.probe(pid)
    if found is not None and os.fsencode(home) in b" ".join(processes.read_argv(pid)):
        processes.send(pid, found.ticks, signum)


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1][:300] if lines else "it is empty"


# ---- Guard of a host's service: kills the runs of its claims when the service dies, since their leases are no
# longer renewed.
#
# `python -P -m garrison.hosts.control HOME guard` is a child of the service. It reads `+RUN` and `-RUN`, a line
# each, from its standard input, and at its end kills the runs that have started. A restarted service
# would do the same (`service.py`), but perhaps only after a successor of a claim has started.


class ServiceGuard:
    """The service's side; one for each home, started by the first run."""

    _guards: dict[Path, ServiceGuard] = {}  # noqa: RUF012  # one for each home in this process
    _lock = threading.Lock()

    def __init__(self, home: Path) -> None:
        self.home = home
        self.runs: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def of(cls, home: Path) -> ServiceGuard:
        with cls._lock:
            return cls._guards.setdefault(home, cls(home))

    def begin(self, run: str) -> None:
        """Guard a run."""
        with self._lock:
            self.runs.add(run)
            self._tell(f"+{run}")

    def end(self, run: str) -> None:
        """Stop guarding a run: it has no processes left."""
        with self._lock:
            self.runs.discard(run)
            self._tell(f"-{run}")

    def _tell(self, line: str) -> None:
        if self._process is None or self._process.poll() is not None:
            # In its own session: a signal to the service's terminal or group must not end both.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "garrison.hosts.control", str(self.home), "guard"],
                stdin=subprocess.PIPE, start_new_session=True, cwd=self.home)
            # A new guard knows no run: it gets all of them, including this one.
            line = "\n".join(f"+{run}" for run in sorted(self.runs))
        assert self._process.stdin is not None
        with suppress(OSError):  # it was killed: the next run gets another one
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


def follow(lines: Iterable[str]) -> set[str]:
    """Return the runs that have started and not ended by the last line."""
    runs: set[str] = set()
    for line in lines:
        name = line.strip()
        if name.startswith("+"):
            runs.add(name[1:])
        elif name.startswith("-"):
            runs.discard(name[1:])
    return runs


def guard(home: Path) -> int:
    """Wait for the end of the service, and kill the runs that it leaves; return 1 if some do not die."""
    failed = False
    for run in sorted(follow(sys.stdin)):
        try:
            kill_run(home, run)
        except GarrisonError as error:
            print(error, file=sys.stderr)
            failed = True
    return 1 if failed else 0


# ---- Kill a run: every process with one of its markers, and their descendants.
#
# A finished claim leaves no process. The run's processes restart one another, so all processes of one scan are
# killed together, until two consecutive scans find none.


KILL_SECONDS = 20.0
"""Longest wait for the death of killed processes; after it they hang in the kernel."""
_PAUSE = 0.01


def kill_run(home: Path, run: str) -> None:
    """Kill every process of a run in a home; GarrisonError if some do not die."""
    end = time.monotonic() + KILL_SECONDS
    clear = 0
    while clear < 2:
        left = select_processes(list(processes.list_processes()), str(home), run, os.getpid())
        clear = 0 if left else clear + 1
        for each in left:
            processes.send(each.pid, each.ticks, signal.SIGKILL)
        if left and time.monotonic() > end:
            raise GarrisonError(f"processes {', '.join(str(each.pid) for each in left)} of run {run} do not die "
                                "(blocked in the kernel); end them by hand")
        if left:
            time.sleep(_PAUSE)
    end_terminal(home, run)


def end_terminal(home: Path, run: str) -> None:
    """Close the sessions of a killed run, and with the last one the tmux server of its home."""
    from garrison.system.tmux_server import has_socket

    if not has_socket(home / "run"):
        return
    from garrison.system.terminal_choice import choose_terminal  # with libtmux

    with suppress(GarrisonError, OSError):
        terminal, _ = choose_terminal("tmux", home)
        for key in Store(home).keys(Identity):
            if key.run == run and (session := terminal.find(key.full)) is not None:
                terminal.close(session, grace=0.0)
        terminal.shutdown()


def select_processes(rows: Iterable[ProcessRow], home: str, run: str, caller: int = 0) -> list[ProcessId]:
    """Return the processes of a run, and descendants without another marker; no tmux server. Pure."""
    known = list(rows)
    tree = walk_down([row for row in known if _is_of(row.marker, home, run)],
                     [row for row in known if row.ppid != caller],
                     lambda row: row.marker is None or _is_of(row.marker, home, run))
    return [row.id for row in tree if not processes.is_tmux(row.comm) and row.pid != caller]


def _is_of(marker: str | None, home: str, run: str) -> bool:
    parsed = parse_marker(marker) if marker is not None else None
    return parsed is not None and (parsed[0], parsed[1]) == (home, run)


def main(argv: Sequence[str]) -> int:
    """Start, stop, probe or guard the service of a home."""
    try:
        match argv:
            case [home, "start"]:
                print(start(Path(home), os.environ))
            case [home, "stop"]:
                print(stop(Path(home), os.environ))
            case [home, "probe"]:
                print(json.dumps(to_builtins(probe(Path(home), os.environ))))
            case [home, "guard"]:
                return guard(Path(home))
            case _:
                print("usage: python -P -m garrison.hosts.control HOME start|stop|probe|guard", file=sys.stderr)
                return 2
    except (GarrisonError, OSError) as error:
        print(f"garrison: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
