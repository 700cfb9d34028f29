"""Hosts of a test on this machine: second homes without ssh, a real Temporal server, and stand-ins for the services."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from garrison.dispatch.temporal.server import LocalServer
from garrison.records.hosts import Host, write_host
from garrison.records.remote import look_remote
from support import Place, wait_for

STUB = Path(__file__).parent / "host_stub.py"


class LocalHosts:
    """A place with a keeper and some hosts."""

    def __init__(self, place: Place, *names: str, slots: int = 1) -> None:
        self.place, self.names, self.slots = place, names, slots
        place.home.mkdir(exist_ok=True, mode=0o700)
        self.server = LocalServer(place.root / "temporal")
        self.server.start()
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        for name in names:
            self.home(name).mkdir(mode=0o700)
            write_host(place.home, Host(name, home=str(self.home(name)), slots=slots))
        self.start("keeper")
        for name in names:
            self.start(name)

    def home(self, name: str) -> Path:
        return self.place.root / name

    def start(self, name: str) -> None:
        """Start the keeper, or a host's service."""
        own = [self.place.home, self.server.address, "crew"] if name == "keeper" else [
            self.home(name), self.server.address, "crew", name, self.slots, f"host:{name}", "any", "set:box2+box3"]
        env = {**self.place.env, "PYTHONPATH": str(STUB.parent)}
        if name != "keeper":
            env |= {"GARRISON_HOME": str(self.home(name)), "GARRISON_TREES": str(self.home(name) / "trees")}
        with (self.place.root / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                [sys.executable, str(STUB), "keeper" if name == "keeper" else "host", *map(str, own)], env=env,
                cwd=self.place.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def kill(self, name: str) -> None:
        """Kill the keeper, or a host's service."""
        self.programs[name].kill()
        self.programs[name].wait()

    def stop(self, name: str) -> None:
        """Stop a host's service with everything of its runs, as a cut and a suspended machine do."""
        self._signal(name, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, signum: int) -> None:
        for pid in [self.programs[name].pid, *self.processes(name)]:
            os.kill(pid, signum)

    def processes(self, name: str) -> list[int]:
        """Return the living processes of a host's runs."""
        home = f"{self.home(name)}:"
        return [each.pid for each in self.place.living_processes()
                if each.environ.get("GARRISON_LIFE", "").startswith(home)]

    def supervisors(self, name: str) -> list[int]:
        """Return garrison's own processes of a host's runs, by pid."""
        home = f"{self.home(name)}:"
        return sorted(each.pid for each in self.place.living_processes() if "garrison.processes.main" in each.argv
                      and each.environ.get("GARRISON_LIFE", "").startswith(home))

    def state(self, node: str, attempt: int = 1, run: str = "r1") -> Any:
        """Return what the home knows of a node's remote work."""
        return look_remote(self.place.home / "runs" / run / "nodes" / node / str(attempt))

    def wait_until_working(self, node: str, offer: int = 1) -> str:
        """Wait until a host works on an offer; return its name."""
        def host() -> str:
            state = self.state(node)
            return state.host if state is not None and state.offer == offer and state.phase == "working" else ""

        return str(wait_for(f"a host works on offer {offer} of {node}", host))

    def runs(self, name: str) -> list[str]:
        """Return the runs in the home of a host."""
        folder = self.home(name) / "runs"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def close(self) -> None:
        for program in self.programs.values():
            program.kill()
            program.wait()
        self.server.stop()

    def logs(self) -> str:
        """Return what was printed, for a failure's message."""
        paths = [self.place.root / f"{name}.log" for name in self.programs]
        return self.place.logs() + "".join(f"\n--- {path.name}\n{path.read_text()[-3000:]}" for path in paths)


def refs(repo: Path, prefix: str) -> dict[str, str]:
    """Return the refs below a prefix."""
    lines = subprocess.run(["git", "for-each-ref", "--format=%(refname) %(objectname)", prefix], cwd=repo, check=True,
                           capture_output=True, text=True).stdout.splitlines()
    return dict(line.split() for line in lines)


