"""What a layer is given: the home, its clock and processes, and how children are started. No layer asks by itself."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from garrison.config import Timing
from garrison.errors import NotFound
from garrison.records import atomic
from garrison.records import run as run_records
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.supervise.observer import Observer
from garrison.supervise.start import start_incarnation
from garrison.system import disk_space
from garrison.system.clock import SystemClock
from garrison.system.environment import child_environment
from garrison.system.processes import RealProcesses

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.records.identity import Identity
    from garrison.records.names import Key
    from garrison.supervise.lease import SpawnRequest
    from garrison.system.clock import Clock
    from garrison.system.processes import Processes


@dataclass(frozen=True)
class Runtime:
    """The outside of a layer."""

    home: Path
    environ: Mapping[str, str]
    timing: Timing
    clock: Clock
    processes: Processes

    @classmethod
    def real(cls, home: Path, environ: Mapping[str, str] | None = None) -> Runtime:
        """The real machine."""
        environ = dict(os.environ) if environ is None else environ
        return cls(home, environ, Timing.read(environ), SystemClock(), RealProcesses())

    @cached_property
    def store(self) -> Store:
        """The home's records."""
        return Store(self.home)

    @cached_property
    def observer(self) -> Observer:
        """The judge of identities."""
        return Observer(self.store, self.processes, self.clock)

    def files(self, run: str) -> RunFiles:
        """A run's paths."""
        return RunFiles(self.home, run)

    def launch(self, run: str) -> Launch:
        """What a run was launched with; NotFound if there is no such run."""
        launch = run_records.load(Launch, self.files(run).launch)
        if launch is None:
            raise NotFound(f"no run {run} in {self.home}; `garrison status` lists the runs")
        return launch

    def environment(self, launch: Launch, own: Mapping[str, str]) -> dict[str, str]:
        """The environment of a run's children: the allow-list, the launch's PATH and locale, and `own`."""
        source = {**self.environ, **launch.locale, "PATH": launch.path or self.environ.get("PATH", os.defpath)}
        return child_environment(source, launch.env, {"GARRISON_HOME": str(self.home), "GARRISON_TREES": launch.trees,
                                                      **own})

    def start_layer(self, wish: SpawnRequest, launch: Launch, extra: list[str] | None = None) -> Identity:
        """Begin the life of a Python layer as a detached process; its output goes to the layer's log. OSError (ENOSPC)
        on a full disk, where it could not register, and would count as a death."""
        disk_space.require_space(self.home)
        key = wish.key

        def spawn(identity: Identity, life: str) -> None:
            argv = process_argv(key, self.home, identity.incarnation, extra)
            log = self.files(key.run).layer_log(f"{key.role}-{key.name}")
            atomic.make_directory(log.parent)
            env = self.environment(launch, {"GARRISON_LIFE": life, "GARRISON_INCARNATION": str(identity.incarnation)})
            child = self.processes.spawn(argv, env=env, cwd=str(self.home), log=log)
            child.close()

        return start_incarnation(self.observer, wish, self.timing.spawn_deadline, spawn)


def process_argv(key: Key, home: Path, incarnation: int, extra: list[str] | None = None) -> list[str]:
    """The command line of a layer's process."""
    # -P: the working directory may hold a module of any name and must not shadow ours.
    return [sys.executable, "-P", "-m", "garrison.processes.main", key.role, "--home", str(home), "--run", key.run,
            "--name", key.name, "--incarnation", str(incarnation), *(extra or [])]
