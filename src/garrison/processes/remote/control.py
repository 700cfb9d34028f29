"""Control of a host's service, on the host: `python -P -m garrison.processes.remote.control HOME start|stop|probe`.

A user manager of systemd runs the service if one answers; else a shell of its own session does, which starts it again
when it dies. Both end when the service ends by itself. `probe` prints a line of JSON that `garrison host list` shows.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import GarrisonError
from garrison.records import atomic
from garrison.records.host_service import FOLDER, life_path, read_settings, read_status
from garrison.records.life_lock import is_held
from garrison.system import processes, systemd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOOP = """\
echo $$ >"$2/host/supervisor.pid"
while :; do
    "$1" host run --home "$2"
    code=$?
    [ $code -eq 0 ] && exit 0
    if [ $code -lt 128 ]; then sleep 5; fi
done
"""
"""Runs the service again when it was killed, and after a while when it failed."""
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
    """Start the service of a home unless it runs; return how it is kept running, with what a person should know."""
    settings = read_settings(home)
    if is_held(life_path(home)):
        return "it runs"
    variables = {**environ, "PATH": login_path(environ)}
    unit = unit_name(home)
    manager = systemd.find_manager(environ)
    if manager is not None and manager.systemctl:
        file = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd/user" / unit
        atomic.make_directory(file.parent)
        path = variables["PATH"].replace("%", "%%")
        atomic.write(file, UNIT.format(crew=settings.crew, command=_word(command_path()), home=_word(home),
                                       path=_word(f"PATH={path}", is_escaped=True)).encode())
        if _call(manager, "daemon-reload") and _call(manager, "enable", "--now", unit) and _wait(home, is_up=True):
            return "kept by systemd" + _linger(manager)
        _call(manager, "disable", "--now", unit)
        file.unlink(missing_ok=True)
    log = home / FOLDER / "service.log"
    with log.open("ab") as output:
        subprocess.Popen(["sh", "-c", LOOP, "sh", str(command_path()), str(home)], env=variables, cwd="/",
                         stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    if not _wait(home, is_up=True):
        raise GarrisonError(f"the service does not begin; the end of its log: {_tail(log)}")
    return "kept by a shell of its own (no user manager of systemd answers here): it is started after a reboot when " \
           "home connects"


def stop(home: Path, environ: Mapping[str, str]) -> str:
    """End the service of a home and what is at work there; it stays ended until `start`."""
    unit, manager = unit_name(home), systemd.find_manager(environ)
    if manager is not None and manager.systemctl:
        _call(manager, "disable", "--now", unit)
        file = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd/user" / unit
        file.unlink(missing_ok=True)
    supervisor = (atomic.read(home / FOLDER / "supervisor.pid") or b"").decode(errors="replace").strip()
    if supervisor.isdigit():
        _signal(int(supervisor), home, signal.SIGKILL)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        status = read_status(home)
        if not is_held(life_path(home)):
            break
        if status is not None and status.pid:
            _signal(status.pid, home, signum)
        _wait(home, is_up=False)
    if is_held(life_path(home)):
        raise GarrisonError("its service does not end; look for `garrison host run` on the host")
    return "stopped"


def probe(home: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what home shows of this host."""
    from garrison.agents.presets import PRESETS

    status = read_status(home)
    search = {**environ, "PATH": login_path(environ)}
    agents: list[dict[str, Any]] = []
    for preset in PRESETS:
        if preset.find(search["PATH"]) and all(preset.program != known["program"] for known in agents):
            agents.append({"program": preset.program, "ready": preset.has_access(search),
                           "access": preset.access(search)})
    disk = shutil.disk_usage(home)
    return {"version": version("garrison"), "running": is_held(life_path(home)),
            "connected": bool(status and status.connected), "why": status.why if status else "",
            "contact_at": status.contact_at if status else "", "state": status.state if status else "",
            "slots": status.slots if status else 0, "working": list(status.working) if status else [],
            "load": os.getloadavg()[0], "cores": os.cpu_count() or 1, "disk_free": disk.free, "time": time.time(),
            "agents": agents, "kept_by": "systemd" if _unit_is_active(home, environ) else "shell"}


def login_path(environ: Mapping[str, str]) -> str:
    """Return the PATH of the user's login shell: ssh starts commands with a shorter one, without users' programs."""
    own = environ.get("PATH", os.defpath)
    try:
        done = subprocess.run([environ.get("SHELL") or "sh", "-lc", 'echo; echo "$PATH"'], env=dict(environ), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=SHELL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return own
    lines = done.stdout.rstrip("\n").split("\n")
    words = [word for word in lines[-1].split(":") if word.startswith("/")]
    return ":".join(dict.fromkeys([*words, *own.split(":")])) if done.returncode == 0 else own


def unit_name(home: Path) -> str:
    import hashlib

    return f"garrison-host-{hashlib.sha256(str(home).encode()).hexdigest()[:12]}.service"


def _word(text: object, *, is_escaped: bool = False) -> str:
    escaped = str(text) if is_escaped else str(text).replace("%", "%%")
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _call(manager: systemd.Manager, *words: str) -> bool:
    try:
        done = subprocess.run([manager.systemctl, "--user", *words], env=systemd.environment(manager, os.environ),
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=systemd.CALL_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _unit_is_active(home: Path, environ: Mapping[str, str]) -> bool:
    manager = systemd.find_manager(environ)
    return manager is not None and bool(manager.systemctl) and _call(manager, "is-active", unit_name(home))


def _linger(manager: systemd.Manager) -> str:
    if systemd.is_lingering(manager) is not False:
        return ""
    if manager.loginctl:
        subprocess.run([manager.loginctl, "enable-linger"], env=systemd.environment(manager, os.environ), check=False,
                       stdin=subprocess.DEVNULL, capture_output=True, timeout=systemd.CALL_TIMEOUT)
    if systemd.is_lingering(manager):
        return ""
    return "; it ends when you log out there: run `sudo loginctl enable-linger $USER` on the host"


def _wait(home: Path, *, is_up: bool) -> bool:
    end = time.monotonic() + (START_SECONDS if is_up else STOP_SECONDS)
    while is_held(life_path(home)) is not is_up:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _signal(pid: int, home: Path, signum: int) -> None:
    """Signal a process of the service, unless the pid is another's by now."""
    found = processes.probe(pid)
    if found is not None and str(home) in _command_line(pid):
        processes.send(pid, found.ticks, signum)


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1][:300] if lines else "it is empty"


def main(argv: Sequence[str]) -> int:
    """Start, stop or probe the service of a home."""
    try:
        match argv:
            case [home, "start"]:
                print(start(Path(home), os.environ))
            case [home, "stop"]:
                print(stop(Path(home), os.environ))
            case [home, "probe"]:
                print(json.dumps(probe(Path(home), os.environ)))
            case _:
                print("usage: python -P -m garrison.processes.remote.control HOME start|stop|probe", file=sys.stderr)
                return 2
    except (GarrisonError, OSError) as error:
        print(f"garrison: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
