"""Copy of what a run was launched with, from which a damaged or lost launch.json or graph is restored (`repair.py`).

Guardian and launcher keep it in their journals. It takes texts as they are: a launcher parses no graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records import record
from garrison.records.events import LaunchRecorded

if TYPE_CHECKING:
    from garrison.records.run import Launch, RunFiles


def copy_launch(files: RunFiles, launch: Launch) -> LaunchRecorded:
    """Return a copy of launch.json and the graphs for a journal, from which they can be restored."""
    nested = {path.stem: path.read_text(encoding="utf-8") for path in sorted(files.graphs.glob("*.dot"))}
    return LaunchRecorded(record.encode(launch).decode(), files.launched_graph.read_text(encoding="utf-8"), nested)
