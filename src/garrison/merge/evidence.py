"""Evidence: what the gate runs of a queue say about the entries that wait, on the target's present tip. Pure.

The journal knows each run by the commit of the target on which its entries were merged. As long as the queue alone
has moved the target since, what the run says holds: what has landed is good, and what was rejected explains a red run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.merge.decision import STEADY_RUNS, Run, RunningSet, Trial, convicts

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
    evidence = state.verdicts.evidence(key)
    earlier: list[Trial] = []
    for record in state.verdicts.runs:
        landed = state.landed_since(record.base, tip)
        left = tuple(name for name in record.entries if name in waiting)
        if record.key != key or landed is None:
            continue
        trial = Trial(record.entries, record.tree, record.result == "green")
        if not left:
            earlier += [trial] if trial.green else []
            continue
        is_whole = all(name in waiting or _has_landed(state, name) for name in record.entries)
        lands = is_whole and set(landed) <= set(record.entries) and left not in unfit
        if trial.green:
            earlier.append(trial)
            yield Run(left, green=True, lands=lands), record
        elif is_whole and record.tree not in evidence.green:  # else the gate was flaky
            # An entry's own runs count from the last time that it was queued.
            is_own = len(record.entries) == 1 and state.entries[left[0]].verdict not in ("", "green")
            is_lost = record.result == "lost"  # several times
            is_proof = is_own and (is_lost or convicts(trial, earlier, flaky=evidence.flaky))
            earlier.append(trial)
            yield Run(left, False, dict(zip(record.entries, record.suspicion, strict=False)), lands, is_own,
                      is_proof), record


def is_steady(state: QueueState, key: str) -> bool:
    """Return whether the gate has passed so many trees that it would have been found out if it erred.

    It erred if it judged a tree both ways, or if a set was red of which every entry has landed.
    """
    erred = state.verdicts.evidence(key).flaky or any(
        run.key == key and run.result == "red" and all(_has_landed(state, name) for name in run.entries)
        for run in state.verdicts.runs)
    return not erred and sum(gate == key for _, gate in state.verdicts.green) >= STEADY_RUNS


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
