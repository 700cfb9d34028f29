"""Follow a run in the background: print its progress as its launcher would, until it is over or the reader leaves."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.cli import resolve
from garrison.cli.output import INTERRUPTED, print_message
from garrison.errors import GarrisonError
from garrison.processes.launcher.progress import Progress, closing_lines
from garrison.processes.run_state import EXIT, RunState, describe_landed
from garrison.processes.run_status import FINAL
from garrison.records.journal import Reader
from garrison.records.names import launcher_key

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch

_POLL = 0.2
"""Seconds between two reads."""


def follow_run(runtime: Runtime, launch: Launch, *, as_json: bool = False) -> int:
    """Print the progress of a run until it is over; return its exit code.

    Ctrl-C ends only this: the run goes on, and a line says so. GarrisonError if the launcher dies before the run is
    over.
    """
    run = launch.run_id
    progress, state = Progress(as_json=as_json), RunState()
    progress.run_branch = launch.onto if launch.onto != launch.base else ""
    progress.begin(run)
    reader = Reader(runtime.files(run).journal)
    is_ticking = False
    try:
        while True:
            has_launcher = resolve.is_living(runtime.store, launcher_key(run))  # before reading: its last records count
            for entry in reader.read():
                state.apply(entry)
                progress.show(entry)
            if not has_launcher:
                break
            if launch.tick and state.status in FINAL and not is_ticking:
                is_ticking = True
                print_message(f"ticking {Path(launch.tick).name}, by a commit that the gate tests if git tracks it")
            time.sleep(_POLL)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        print_message(f"run {run} continues in the background; {how_to_follow(run)}")
        return INTERRUPTED
    if not state.over:
        from garrison.views.node_view import first_line  # only here; every launch loads this module
        from garrison.views.run_view import RunReader

        view = RunReader(runtime.home, runtime.environ).read(run, details=False)
        why = [part for part in (first_line(view.reason), view.hint) if part]
        raise GarrisonError(f"run {run} is {view.status}, {view.progress}: "
                            f"{'; '.join(why) or f'`garrison status {run}` shows it'}")
    progress.end(state.status, state.reason, state,
                 describe_landed(state, launch.land, launch.base, launch.onto, len(state.nodes)),
                 closing_lines(state, launch, runtime.files(run).process_log("tick")))
    return EXIT[state.status]


def how_to_follow(run: str) -> str:
    return f"`garrison status {run} --watch` shows it, `garrison stop {run}` stops it"
