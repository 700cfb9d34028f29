"""Target watch: notice moves of a run's target that no merge queue made, from the launch on.

The queue journals each landing before it swaps the target, so a commit on the target that no landing names
was put there by somebody else. `find_foreign_move` (pure) compares; the last explained commit is journaled
with each foreign move, so that none is reported twice and none is missed while no guardian is alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.merge.config import QueueConfig
from garrison.merge.entry import TRAILER
from garrison.records.events import ForeignMove, Warned
from garrison.records.run import LAND_NONE
from garrison.system.git import GitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.merge.queue import MergeQueue
    from garrison.records.run import Launch


def find_foreign_move(known: str, tip: str, landings: Mapping[str, str]) -> str:
    """Return the commit to which somebody else moved the target since `known`; '' if only landings did. Pure.

    `landings` maps the target's new commit of each landing to its old one.
    """
    commit, seen = tip, set[str]()
    while commit != known and commit in landings and commit not in seen:
        seen.add(commit)
        commit = landings[commit]
    return "" if commit == known else commit


class TargetWatch:
    """Watches the target of one run; `known` is its last explained commit, '' if there is none yet."""

    def __init__(self, queue: MergeQueue, branch: str, known: str) -> None:
        self.queue, self.branch, self.known = queue, branch, known

    @property
    def path(self) -> str:
        """Return the file that changes with the target, unless its ref is packed."""
        return str(self.queue.git.common / "refs" / "heads" / self.branch)

    def poll(self, at_work: Sequence[str]) -> ForeignMove | None:
        """Return a move by somebody else since the last call, with the nodes `at_work`; None for none."""
        tip = self.queue.git.branch_tip(self.branch)  # before the journal: a landing is recorded before its swap
        if tip is None or tip == self.known:
            return None
        known, self.known = self.known, tip
        foreign = find_foreign_move(known, tip, self.queue.state.moves) if known else ""
        if not foreign or self._are_landings(known, foreign):
            return None
        self.queue.notice_undone()
        return ForeignMove(self.branch, known, tip, list(at_work), self._subject(foreign),
                           rewritten=not self._is_ancestor(known, tip))

    def _are_landings(self, old: str, new: str) -> bool:
        """Return whether every commit of the target between the two was made by a merge queue."""
        form = f"--format=%(trailers:key={TRAILER},valueonly,separator=%x2C)|"
        answer = self.queue.git.run("log", "--first-parent", form, f"{old}..{new}", "--", check=False)
        lines = answer.out.splitlines()
        return answer.code == 0 and bool(lines) and all(line.strip() != "|" for line in lines) \
            and self._is_ancestor(old, new)

    def _subject(self, commit: str) -> str:
        return self.queue.git.run("log", "-1", "--format=%s (%an)", commit, "--", check=False).out.strip()[:120]

    def _is_ancestor(self, old: str, new: str) -> bool:
        try:
            return self.queue.git.is_ancestor(old, new)
        except GitError:  # the old commit is gone
            return False


# ---- gate watch ------------------------------------------------------------------------------------------------------

# Gate watch: notice that the user changed how the target's queue tests and lands, since the launch.
#
# The queue tests with its recorded configuration: from the launch, or from `garrison merge-queue config` since. Such a
# change is reported in the run whose nodes it then affects.

GATE = "gate"
"""`Warned.about` of a change of the queue's gate."""


def describe_tests(config: QueueConfig) -> str:
    """Describe the tests of a landing in one line. Pure."""
    return f"{config.describe()}{', asking the reference-transaction hook' if config.hooks else ''}"


def describe_gate(config: QueueConfig) -> str:
    """Describe everything that decides on a landing in one line. Pure."""
    return f"{describe_tests(config)}; strategy {config.strategy}, at most {config.timeout:g} s"


class GateWatch:
    """Watches the configuration of the target's queue; `told` is the last reported one, '' for the launch's own."""

    def __init__(self, queue: MergeQueue, launch: Launch, told: str) -> None:
        # Strategy and time limit are the queue's, and not reported by a launch or by an older version.
        self.queue, self._known = queue, told or describe_tests(QueueConfig.from_launch(launch))
        self._is_on = launch.land != LAND_NONE and not launch.adhoc and (launch.no_gate or bool(launch.gate))

    def poll(self, at_work: Sequence[str]) -> Warned | None:
        """Return a change since the last call, with the nodes `at_work`; None for none."""
        config = self.queue.state.config if self._is_on else None
        if config is None or (now := describe_gate(config)) == self._known:
            return None
        if describe_tests(config) == self._known:
            self._known = now
            return None
        before, self._known = self._known, now
        return Warned(GATE, f"the user changed how {self.queue.target} is tested: from {before} to {now}",
                      list(at_work), now)
