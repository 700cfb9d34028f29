"""Runtime: home, environment, timing, clock and processes, passed to every process instead of being global."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from garrison.config import Timing
from garrison.errors import NotFound, RecordCorrupt
from garrison.records import atomic, log_retention
from garrison.records import run as run_records
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.sandbox.place import AUTO_VARIABLE, MODE_VARIABLE, Mode
from garrison.supervise.observer import Observer
from garrison.system.clock import SystemClock
from garrison.system.environment import child_environment, typed_environment
from garrison.system.process_control import RealProcesses
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.system.clock import Clock
    from garrison.system.process_control import Processes


class Runtime(Value, dict=True):
    """Environment of a process: everything external that it uses."""

    home: Path
    environ: Mapping[str, str]
    timing: Timing
    clock: Clock
    processes: Processes

    @classmethod
    def real(cls, home: Path, environ: Mapping[str, str] | None = None) -> Runtime:
        environ = typed_environment() if environ is None else environ
        return cls(home, environ, Timing.read(environ), SystemClock(), RealProcesses())

    @cached_property
    def store(self) -> Store:
        return Store(self.home)

    @cached_property
    def observer(self) -> Observer:
        return Observer(self.store, self.processes, self.clock)

    def files(self, run: str) -> RunFiles:
        return RunFiles(self.home, run)

    def begin_log(self, run: str, name: str) -> Path:
        """Return the log of a process that is about to start: shortened, in a folder that exists."""
        log = self.files(run).process_log(name)
        atomic.make_directory(log.parent)
        log_retention.shorten_log(log)
        return log

    def launch(self, run: str) -> Launch:
        """Return a run's launch; NotFound if there is no such run, RecordCorrupt if its launch is lost."""
        files = self.files(run)
        launch = run_records.load_launch(files)
        if launch is None and files.journal.exists():
            raise RecordCorrupt(files.launch, "it is gone, though the run has started")
        if launch is None:
            raise NotFound(f"no run {run} in {self.home}; `garrison status` lists the runs")
        return launch

    def environment(self, launch: Launch, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a run's children: the allow-list, the variables that the launch recorded,
        and `variables`."""
        mode = {MODE_VARIABLE: launch.stated_sandbox_mode} if launch.stated_sandbox_mode else {}
        if launch.is_held_by_landlock:
            mode[AUTO_VARIABLE] = Mode.LANDLOCK
        source = {**mode, **self.environ, **launch.locale,
                  "PATH": launch.path or self.environ.get("PATH", os.defpath)}
        return child_environment(source, launch.env, {"GARRISON_HOME": str(self.home), "GARRISON_TREES": launch.trees,
                                                      **variables})
