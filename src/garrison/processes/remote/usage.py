"""Usage of remote work: what a host reports, as lines of the attempt's usage file at home.

A host reports sums. Each rise is written as that many calls, so that a lost or repeated report changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records import costs
from garrison.records.remote import USAGE

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.dispatch.job import JobProgress

MAX_CALLS = 500
"""Calls that one report can add; the next one adds the rest."""


def record_usage(folder: Path, session: str, progress: JobProgress) -> None:
    """Write what a host's run has used since the last report to the usage file of an attempt.

    Args:
        session: host and run.
    """
    path = folder / USAGE / "usage.jsonl"
    spent = costs.total(each for each in (costs.read_usage(path) if path.exists() else []) if each.session == session)
    more = progress.calls - spent.calls
    usd = max(0.0, progress.usd - spent.usd)
    if more <= 0 and usd < 1e-9:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    now, first = costs.now(), spent.calls
    for number in range(min(max(more, 1), MAX_CALLS)):
        is_last = number == min(max(more, 1), MAX_CALLS) - 1
        costs.append_usage(path, costs.UsageRecord(
            "call", session, now, usd if is_last else 0.0, message=f"{first + number + 1}",
            input=max(0, progress.input - spent.input) if is_last else 0,
            output=max(0, progress.output - spent.output) if is_last else 0))
