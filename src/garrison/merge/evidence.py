"""Evidence: what the gate runs of a queue say about the entries that wait, on the target's present tip. Pure.

The journal knows each run by the commit of the target on which its entries were merged. As long as the queue alone
has moved the target since, what the run says holds: what has landed is good, and what was rejected explains a red run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.merge.decision import RED_RUNS_NEEDED, Run, RunningSet

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from garrison.merge.state import QueueState, RunningGate
    from garrison.merge.verdicts import SetRun


def list_runs(state: QueueState, key: str, tip: str, waiting: Collection[str],
              unfit: Collection[tuple[str, ...]] = ()) -> Iterator[tuple[Run, SetRun]]:
    """Yield each finished run that says something of the waiting entries, as the decision and the journal have it.

    Args:
        key: of the present gate (`QueueConfig.verdict_key`).
        unfit: entries that give another tree on the tip than was tested: they do not land untested.
    """
    green = state.verdicts.evidence(key).green
    for record in state.verdicts.runs:
        landed = state.landed_since(record.base, tip)
        left = tuple(name for name in record.entries if name in waiting)
        if record.key != key or landed is None or not left:
            continue
        is_whole = all(name in waiting or _has_landed(state, name) for name in record.entries)
        lands = is_whole and set(landed) <= set(record.entries) and left not in unfit
        if record.result == "green":
            yield Run(left, green=True, lands=lands), record
        elif is_whole and record.tree not in green:  # else the gate was flaky
            # An entry's own runs count from the last time that it was queued.
            is_own = len(record.entries) == 1 and state.entries[left[0]].verdict not in ("", "green")
            suspicion = dict(zip(record.entries, record.suspicion, strict=False))
            yield Run(left, False, suspicion, lands, is_own, is_own and record.result == "lost"), record


def count_red_runs(state: QueueState, key: str) -> int:
    """Return how many red runs an entry is rejected for: one more if the gate judged a tree both ways lately."""
    return RED_RUNS_NEEDED + state.verdicts.evidence(key).flaky


def list_running(state: QueueState, key: str, tip: str, gates: Iterable[RunningGate]) -> list[RunningSet | None]:
    """Return the sets under test, None for each whose verdict would say nothing on this tip."""
    found: list[RunningSet | None] = []
    for gate in gates:
        landed = state.landed_since(gate.base, tip)
        left = tuple(name for name in gate.entries if not _has_landed(state, name))
        if landed is None or gate.key != key or not left:
            found.append(None)
        else:
            found.append(RunningSet(left, lands=set(landed) <= set(gate.entries)))
    return found


def _has_landed(state: QueueState, name: str) -> bool:
    entry = state.entries.get(name)
    return entry is not None and entry.status == "landed"
