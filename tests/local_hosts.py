"""Hosts of a test on this machine: second homes without ssh, a real keeper and Temporal server, real services."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from garrison.hosts.keeper import ensure_keeper, is_running, read_state, server_address
from garrison.records import atomic, record
from garrison.records.host_service import HostSettings, settings_path
from garrison.records.hosts import Host, host_path, read_crew, write_host
from garrison.records.remote import look_remote
from support import PROGRAM, PYTHON, Place, UserWorld, git, is_gone, wait_for


class LocalHosts:
    """A place with hosts: the real keeper, and real services."""

    def __init__(self, place: Place, *names: str, slots: int = 1, lease: float = 30.0,
                 temporal: str = "") -> None:
        """`temporal` is the address of a server of the user's own."""
        self.place, self.names, self.slots = place, names, slots
        self.users = {name: UserWorld(place.folder / name) for name in names}
        with (place.home / "config.toml").open("a") as config:  # a busy machine answers late
            config.write(f"[hosts]\nlease = {lease}\n" + (f'temporal = "{temporal}"\n' if temporal else ""))
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        for name, user in self.users.items():
            user.root = place.root
            user.configure()
            command = str(Path(PYTHON).with_name("garrison"))
            write_host(place.home, Host(name, home=str(self.home(name)), command=command, slots=slots))
        ensure_keeper(place.home, environ=place.env)
        address = server_address(place.home)
        for name in names:
            atomic.make_directory(settings_path(self.home(name)).parent)
            atomic.write(settings_path(self.home(name)), record.encode(HostSettings(
                name, read_crew(place.home), address, slots=slots)))
            self.start(name)

    def home(self, name: str) -> Path:
        return self.users[name].home

    def start(self, name: str) -> None:
        """Start the service of a host."""
        env = {**self.place.env, **self.users[name].variables()}
        with (self.place.root / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                [*PROGRAM, "host", "run"], env=env, cwd=self.place.root, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True)

    def kill_keeper(self) -> None:
        """Kill the keeper; its server continues."""
        state = read_state(self.place.home)
        os.kill(state.pid, signal.SIGKILL)
        wait_for("the keeper is dead", lambda: is_gone(state.pid))

    def kill(self, name: str) -> None:
        """Kill the service of a host."""
        self.programs[name].kill()
        self.programs[name].wait()

    def stop(self, name: str) -> None:
        """Stop a host's service with everything of its runs, as a cut and a suspended machine do."""
        self._signal(name, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, signum: int) -> None:
        for pid in [self.programs[name].pid, *self.processes(name)]:
            with suppress(ProcessLookupError):
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
        """End the services, the keeper and its server."""
        for program in self.programs.values():
            program.kill()
            program.wait()
        for name in self.names:
            host_path(self.place.home, name).unlink()  # a keeper without hosts ends
        for name in self.names:
            wait_for(f"nothing of the runs of {name} is left", lambda name=name: not self.processes(name))
        wait_for("the keeper has ended", lambda: not is_running(self.place.home))

    def logs(self) -> str:
        """Return what was printed, for a failure's message."""
        paths = [*(self.place.root / f"{name}.log" for name in self.programs),
                 self.place.home / "hosts/keeper/keeper.log"]
        return self.place.logs() + "".join(f"\n--- {path.name}\n{path.read_text()[-3000:]}" for path in paths
                                           if path.exists())


def refs(repo: Path, prefix: str) -> dict[str, str]:
    return dict(line.split() for line in git(repo, "for-each-ref", "--format=%(refname) %(objectname)",
                                             prefix).splitlines())
