"""Lines of all runs of a home, read repeatedly: a run that is over is read again only if its journal changed.

So a home of hundreds of runs, most of them long over, costs little more than the few that are at work.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from garrison.processes.run_status import FINAL
from garrison.records.run import RunFiles
from garrison.views.run_view import RunReader, RunView


class RunLines:
    """Reader of every run's line."""

    def __init__(self, runs: RunReader) -> None:
        self.runs = runs
        self._final: dict[str, tuple[tuple[float, float], RunView]] = {}

    def read(self, in_full: Container[str] = ()) -> list[RunView]:
        """Return all runs, the oldest first; those `in_full` with details."""
        names = self.runs.runs()
        self._final = {run: final for run, final in self._final.items() if run in set(names)}
        return [self._line(run, details=run in in_full) for run in names]

    def _line(self, run: str, *, details: bool) -> RunView:
        files = RunFiles(self.runs.home, run)
        stamp = (_changed_at(files.journal), _changed_at(files.launch))
        final = self._final.get(run)
        if final is not None and final[0] == stamp:
            return final[1]
        view = self.runs.read(run, details=details)
        if view.status in FINAL and not view.details and not view.adhoc and not view.living and not view.waits:
            self._final[run] = (stamp, view)
        return view


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
