"""Explanation of an entry's tests for users: its prior probability, and each gate run on it, with which others and why.

Pure; the journal's records are arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.ends import UNREADABLE_GUARD, ChangeKind, Effect
from garrison.merge import records, suspects
from garrison.merge.records import GateStarted, VerdictGiven
from garrison.system.terminal_text import list_some, spell_name
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from garrison.ends import LandingNote
    from garrison.merge.beliefs import Estimate
    from garrison.merge.entry import MergeEntry
    from garrison.records.journal import Entry as Stored

MAX_FAILING = 3
"""Failing tests of a run that are named."""


class GateRunOf(Value):
    """One gate run on an entry: the others tested with it, and how it ended."""

    others: tuple[str, ...]
    result: str = "running"
    failing: tuple[str, ...] = ()
    ratio: float | None = None
    """Likelihood ratio of the log for this entry; None if the log is not informative."""
    why: str = ""
    """Why this set was tested."""

    def describe(self) -> str:
        """Return one line."""
        whom = f"with {', '.join(self.others)}" if self.others else "alone"
        line = f"{whom} ({self.why}): {self.result}" if self.why else f"{whom}: {self.result}"
        if self.failing:
            line += f"; failing: {list_some(self.failing, MAX_FAILING)}"
        return line if self.ratio is None else f"{line}; suspicion ×{self.ratio:.2g}: {suspects.describe(self.ratio)}"


def describe_union(files: Sequence[str]) -> str:
    """Return a note that a landing kept the lines of both sides in these files, where git alone finds a conflict."""
    return f"both sides' lines kept in {', '.join(files)}"


_CHANGES: Mapping[str, str] = {
    ChangeKind.TESTS: "changes {number} test{s}", ChangeKind.DELETED_TESTS: "deletes tests",
    ChangeKind.SKIPPED_TESTS: "skips tests", ChangeKind.SHADOWED_TESTS: "changes what test runners load first",
    ChangeKind.GATE: "changes the gate's own files", ChangeKind.CI: "changes CI",
    ChangeKind.GIT_HOOKS: "changes git hooks", ChangeKind.DEPENDENCIES: "changes dependencies",
    ChangeKind.INSTRUCTIONS: "changes agents' instructions", ChangeKind.SECRETS: "may hold secrets",
    ChangeKind.SIZE: "adds files that hardly belong in a history",
    ChangeKind.NESTED: "has nested repositories without .gitmodules", ChangeKind.REVERTS: "undoes what landed as",
    ChangeKind.OUTSIDE: "changes files that its node's files= does not name",
    ChangeKind.PARTIAL: "is only a part of the task",
    UNREADABLE_GUARD: "was checked by the defaults, since [guard] cannot be read"}
_REMEDIES: Mapping[str, str] = {
    ChangeKind.SECRETS: "leave them out of every commit, or, if it is no secret, name the file in `[guard] allow`",
    ChangeKind.SIZE: "leave them out of every commit, or name them in `[guard] allow`",
    ChangeKind.PARTIAL: "do the rest",
    ChangeKind.NESTED: "add their files (remove the `.git` in them first), or `git submodule add` them"}


def describe_change(change: LandingNote, *, most: int = 5) -> str:
    """Return one finding about work in a few words: `changes 2 tests: a.py, b.py`."""
    words = _CHANGES.get(change.kind, f"{change.kind}").format(number=change.number, s="s" * (change.number != 1))
    more = change.number - len(change.names[:most])
    names = ", ".join(map(spell_name, change.names[:most]))
    return f"{words}: {names}" + (f" and {more:,} more" if more > 0 else "") if names else words


def describe_changes(changes: Iterable[LandingNote] | None, *, most: int = 3) -> str:
    """Return all findings about work on one line, those that need approval first; '' for none."""
    ordered = sorted(changes or (), key=lambda each: each.effect != Effect.ASK)
    return "; ".join(describe_change(change, most=most) for change in ordered)


def describe_refused(changes: Iterable[LandingNote]) -> str:
    """Return why `[guard]` sends work back, and the remedy, for the next attempt and for users."""
    parts = [f"it {describe_change(change)} ({_REMEDIES.get(change.kind, 'leave that out')})" for change in changes]
    return f"[guard] refuses it: {'; '.join(parts)}"


def find_runs(journal: Iterable[Stored], entry: str) -> list[GateRunOf]:
    """Return the gate runs on an entry and verdicts reused for it, oldest first."""
    runs: dict[str, GateRunOf] = {}
    for stored in journal:
        if stored.kind not in (GateStarted.kind, VerdictGiven.kind):
            continue
        record = records.decode(stored.kind, stored.data)
        if not isinstance(record, GateStarted | VerdictGiven) or entry not in record.entries or \
                record.subject != "entry":
            continue
        others = tuple(name for name in record.entries if name != entry)
        if isinstance(record, GateStarted):
            runs[record.job] = GateRunOf(others, why=record.why)
        else:
            result = f"{record.result}, like the same tree before" if record.reused else record.result
            name = record.job or str(stored.seq)
            why = runs[name].why if name in runs else ""
            runs[name] = GateRunOf(others, result, record.failing, record.suspects.get(entry), why)
    return list(runs.values())


def explain_tests(entry: MergeEntry, estimate: Estimate | None, flakes: tuple[int, int], flake: float,
                  runs: Sequence[GateRunOf]) -> list[str]:
    """Return the lines of `merge-queue show --why`; `estimate` is None if the queue does not use its history."""
    lines = [f"{entry.id} is {entry.status}"]
    if estimate is None:
        lines.append("belief: off (`garrison merge-queue config --beliefs`); every entry counts alike")
    else:
        lines.append(f"belief: {estimate.probability:.1%} that it is bad by itself; {estimate.base:.1%} of all entries "
                     "lately were")
        lines += [f"  {factor.describe()}" for factor in estimate.factors]
        lines.append(f"  trust in these factors: {estimate.trust:.0%}, "
                     + ("as they predicted earlier entries better than the share of all did" if estimate.trust else
                        "as they have not predicted earlier entries better than the share of all"))
    lines.append(f"gate: {flake:.1%} of runs on good trees are expected red; {flakes[0]} of {flakes[1]} lately were")
    lines += [f"run {number}: {run.describe()}" for number, run in enumerate(runs, 1)] or ["not tested yet"]
    return lines
