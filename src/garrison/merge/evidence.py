"""Evidence: what the gate runs of a queue say about the entries that wait, on the target's present tip. Pure.

The journal knows each run by the commit of the target on which its entries were merged. As long as the queue alone
has moved the target since, what the run says holds: what has landed is good, and what was rejected explains a red run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.merge.decision import STEADY_RUNS, Run, RunningSet, Steadiness, repeats_another

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
    earlier: list[tuple[tuple[str, ...], bool]] = []
    for record in state.verdicts.runs:
        landed = state.landed_since(record.base, tip)
        left = tuple(name for name in record.entries if name in waiting)
        if record.key != key or landed is None:
            continue
        is_green = record.result == "green"
        if not left:
            earlier += [(record.entries, True)] if is_green else []
            continue
        is_whole = all(name in waiting or _has_landed(state, name) for name in record.entries)
        lands = is_whole and set(landed) <= set(record.entries) and left not in unfit
        if is_green:
            earlier.append((record.entries, True))
            yield Run(left, green=True, lands=lands), record
        elif is_whole and record.tree not in green:  # else the gate was flaky
            # An entry's own runs count from the last time that it was queued.
            is_own = len(record.entries) == 1 and state.entries[left[0]].verdict not in ("", "green")
            is_repeat = is_own and repeats_another(left[0], earlier)
            earlier.append((record.entries, False))
            yield Run(left, False, dict(zip(record.entries, record.suspicion, strict=False)), lands, is_own, is_repeat,
                      is_own and record.result == "lost"), record


def judge_gate(state: QueueState, key: str) -> Steadiness:
    """Return whether the gate was flaky lately: it judged a tree both ways, or a set was red whose entries all landed.
    """
    if state.verdicts.evidence(key).flaky or any(
            run.key == key and run.result == "red" and all(_has_landed(state, name) for name in run.entries)
            for run in state.verdicts.runs):
        return Steadiness.FLAKY
    is_known = sum(gate == key for _, gate in state.verdicts.green) >= STEADY_RUNS
    return Steadiness.STEADY if is_known else Steadiness.UNKNOWN


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
