"""Peers of `supervision.py`: where to get each supervisor, how to start it, how to find its children.

Python's come from the package index into a virtual environment, Debian's are downloaded and unpacked (nothing is
installed on the machine), pm2 comes from npm; all in a temporary folder. One that is on the PATH is used as it is. The
watched child is a shell script that first writes its name and pid into a pipe; all defaults are the peers' own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRIVIAL = 'echo "NAME $$" > PIPE\nexec sleep 98765\n'
PARENT = 'echo "NAME $$" > PIPE\nsleep 98764 &\necho "NAME-below $!" > PIPE\nwait\n'
INSTALL_SECONDS = 180
DEBIAN = {"runsv": ("runit",), "monit": ("monit",),
          "s6-supervise": ("s6", "execline", "libs6-2.11", "libskarnet2.13", "libexecline2.9")}
PLACES = ("debian/usr/bin", "debian/usr/sbin", "venv/bin", "npm/node_modules/.bin")


class Missing(Exception):
    """Why a peer is unavailable."""


@dataclass
class Tools:
    """Programs of the peers; a missing one is fetched once into `root`."""

    root: Path
    fetch: bool = True
    system: bool = False
    """Whether Debian's packages may be installed on this machine instead of unpacked here (as root)."""

    def find(self, program: str) -> str:
        """Return the program's path; Missing with the reason."""
        got = shutil.which(program)
        if got:
            return got
        known = [path for place in PLACES if (path := self.root / place / program).is_file()]
        if known:
            return str(known[0])
        if not self.fetch:
            raise Missing(f"{program} is not on the PATH, and fetching is off (--no-fetch)")
        if program in DEBIAN:
            return self._debian(program)
        return self._npm() if program == "pm2" else self._python(program)

    def _run(self, what: str, *argv: str, cwd: Path | None = None) -> None:
        try:
            done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except FileNotFoundError as error:
            raise Missing(f"{what}: {argv[0]} is not on this machine") from error
        except subprocess.TimeoutExpired as error:
            raise Missing(f"{what}: not within {INSTALL_SECONDS} s") from error
        if done.returncode:
            raise Missing(f"{what}: {(done.stderr.strip() or 'no reason given').splitlines()[-1][:120]}")

    def _python(self, program: str) -> str:
        package = {"supervisord": "supervisor", "circusd": "circus"}[program]
        venv = self.root / "venv"
        if not venv.is_dir():
            self._run("a virtual environment", sys.executable, "-m", "venv", str(venv))
        self._run(package, str(venv / "bin/python"), "-m", "pip", "install", "-q", package)
        return str(venv / "bin" / program)

    def _debian(self, program: str) -> str:
        packages = DEBIAN[program]
        if self.system:
            self._run(packages[0], "apt-get", "install", "-qy", "--no-install-recommends", packages[0])
            return shutil.which(program) or program
        unpacked, downloaded = self.root / "debian", self.root / "debs"
        downloaded.mkdir(parents=True, exist_ok=True)
        downloaded.chmod(0o777)
        self._run(packages[0], "apt-get", "download", *packages, cwd=downloaded)
        for file in downloaded.glob("*.deb"):
            self._run(packages[0], "dpkg", "-x", str(file), str(unpacked))
        found = next((path for place in PLACES if (path := self.root / place / program).is_file()), None)
        if found is None:
            raise Missing(f"{program} is not in the package {packages[0]}")
        return str(found)

    def _npm(self) -> str:
        self._run("pm2", "npm", "install", "--no-audit", "--no-fund", "--prefix", str(self.root / "npm"), "pm2")
        return str(self.root / "npm/node_modules/.bin/pm2")

    def env(self) -> dict[str, str]:
        """Return the environment of the peers."""
        libraries = [str(path) for path in (self.root / "debian").glob("usr/lib/*-linux-gnu")]
        path = f"{self.root}/debian/usr/bin:{os.environ.get('PATH', os.defpath)}"
        return {**{name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}, "PATH": path,
                **({"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {})}


@dataclass
class Peer:
    """Supervisor of one child, in its own folder."""

    name: str
    folder: Path
    pipe: Path
    tools: Tools
    script: str = TRIVIAL
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def prepare(self) -> None:
        """Write the child's script."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.child = self.folder / "child"
        self.child.write_text("#!/bin/sh\n" + self.script.replace("NAME", self.name).replace("PIPE", str(self.pipe)))
        self.child.chmod(0o755)

    def run(self, *argv: object, **env: str) -> subprocess.Popen[bytes]:
        """Start one of its processes."""
        with (self.folder / "log").open("ab") as log:
            child = subprocess.Popen([str(word) for word in argv], cwd=self.folder, env={**self.tools.env(), **env},
                                     stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(child)
        return child

    def start(self) -> None:
        """Start the supervisor, also again after its death. Missing if it is unavailable."""
        STARTS[self.name](self)

    def supervisor(self) -> int:
        """Return the supervisor's pid."""
        file = self.folder / "pm2/pm2.pid"
        return int(file.read_text()) if file.exists() else self.processes[-1].pid

    def config(self, name: str, text: str, mode: int = 0o644) -> Path:
        """Write a file of its configuration."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path


def _garrison(one: Peer) -> None:
    one.run(sys.executable, "-P", ROOT / "benchmarks/mechanism.py", one.folder / "home", one.child)


def _polling(one: Peer) -> None:
    loop = ("import subprocess, sys, time\n"
            "while True:\n    child = subprocess.Popen(sys.argv[1])\n"
            "    while child.poll() is None:\n        time.sleep(0.05)\n")
    one.run(sys.executable, "-c", loop, one.child)


def _supervisord(one: Peer) -> None:
    program = one.tools.find("supervisord")
    one.run(program, "-n", "-c", one.config("supervisord.conf", (
        f"[supervisord]\nlogfile={one.folder}/own.log\npidfile={one.folder}/pid\n"
        f"[program:child]\ncommand={one.child}\nautorestart=true\nstartsecs=0\n")))


def _circus(one: Peer) -> None:
    program = one.tools.find("circusd")
    ends = [f"{key} = ipc://{one.folder}/{key}" for key in ("endpoint", "pubsub_endpoint")]
    one.run(program, one.config("circus.ini", "\n".join(
        ["[circus]", *ends, "[watcher:child]", f"cmd = {one.child}", "max_retry = -1", ""])))


def _runit(one: Peer) -> None:
    program = one.tools.find("runsv")
    one.config("service/run", f"#!/bin/sh\nexec {one.child}\n", 0o755)
    one.run(program, one.folder / "service")


def _s6(one: Peer) -> None:
    program = one.tools.find("s6-supervise")
    # Without readiness it waits a second before each start.
    one.config("service/notification-fd", "3\n")
    one.config("service/run", f"#!/bin/sh\necho >&3\nexec {one.child} 3>&-\n", 0o755)
    one.run(program, one.folder / "service")


def _monit(one: Peer) -> None:
    program = one.tools.find("monit")
    begin = f"#!/bin/sh\n/bin/sh {one.child} >/dev/null 2>&1 &\necho $! > {one.folder}/child.pid\n"
    daemon = one.config("daemon", begin, 0o755)
    one.run(program, "-I", "-c", one.config("monitrc", (
        f"set daemon 1\nset pidfile {one.folder}/monit.pid\nset idfile {one.folder}/id\n"
        f"set statefile {one.folder}/state\n"
        f'check process child with pidfile {one.folder}/child.pid\n  start program = "{daemon}"\n'
        '  stop program = "/bin/true"\n'), 0o600))


def _pm2(one: Peer) -> None:
    program = one.tools.find("pm2")
    home = {"PM2_HOME": str(one.folder / "pm2"), "HOME": str(one.folder)}
    if (one.folder / "pm2/dump.pm2").exists():
        one.run(program, "resurrect", **home).wait(60)
        return
    one.run(program, "start", one.child, "--name", "child", "--interpreter", "/bin/sh", **home).wait(60)
    one.run(program, "save", **home).wait(60)


STARTS: dict[str, Callable[[Peer], None]] = {
    "garrison": _garrison, "runit": _runit, "s6": _s6, "pm2": _pm2, "polling 50 ms": _polling, "monit": _monit,
    "supervisord": _supervisord, "circus": _circus,
}
"""Name → how it is started."""


def reap(peers: list[Peer]) -> None:
    """Collect what has ended."""
    for one in peers:
        for child in one.processes:
            with contextlib.suppress(OSError):
                child.poll()
