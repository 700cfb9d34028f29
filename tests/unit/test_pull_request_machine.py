"""Random walks of a pull request's state machine: whatever people, checks, forge and deaths do, the journal alone leads
to the merge of what was tested, each comment is answered once, and every wait has a reason."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from garrison.config import MergeRule, PullRequestOptions
from garrison.pipeline.flow import Finished
from garrison.pipeline.outcome import SUCCESS, Outcome
from garrison.processes.actions import ActionKind
from garrison.pull_request.facts import (
    CheckResult,
    CommitCheck,
    Facts,
    ForgeStep,
    MergeFacts,
    Relation,
    RequestComment,
    StepKind,
)
from garrison.pull_request.policy import ROWS, PullRequestTurn, PullRequestView, Transition, decide
from garrison.records.events import FlowAdvanced, GuardianSignal, LandingChanged, PullRequestChanged
from garrison.records.pull_request import TRANSITIONS, PullRequestState
from garrison.values import asdict, replace
from policy_support import AT, RUN
from unit.test_landing_policy import LINE, reached_exit

PAGE = Path(__file__).resolve().parents[2] / "docs/generated/states.md"
SEEDS = 150


def _in(old: str, new: str) -> bool:
    """Return whether a commit, named after its changes, is an ancestor of another one."""
    return set(old.split("+")) <= set(new.split("+"))


def _with(*commits: str) -> str:
    return "+".join(sorted({change for commit in commits for change in commit.split("+")}))


class World:
    """A forge, its users, and a run from its exit to the merge."""

    def __init__(self, seed: int, rows: tuple[Transition, ...]) -> None:
        self.table = rows
        self.dice = random.Random(seed)
        self.options = PullRequestOptions(self.dice.choice((MergeRule.FORGE, MergeRule.GARRISON)), settle=0.0)
        self.state = reached_exit(LINE)
        self.tip, self.head, self.base, self.changes = "b+w", "", "b", 0
        self.number, self.is_open, self.is_draft, self.merge = 0, False, False, MergeFacts("", on_base=False)
        self.check, self.approved, self.published = CheckResult.PASSED, "", ""
        self.comments: dict[str, RequestComment] = {}
        self.answered: Counter[str] = Counter()
        self.known_answers: set[str] = set()
        self.body, self.other_base, self.issue_gone, self.is_locked, self.is_renamed = "", "", "", False, False
        self.undo: list[Callable[[], None]] = []
        self.journaled: list[Any] = []
        self.facts: Facts | None = None
        self.wait = self.problem = ""
        self.refused: ForgeStep | None = None
        self.is_calm = self.is_behind = False
        self.rows: Counter[str] = Counter()
        self.tested: set[tuple[str, str]] = set()

    # --- people

    def act(self) -> None:
        """Do or undo something as a user of the forge."""
        acts = (self.comment, self.praise, self.edit, self.delete, self.approve, self.dismiss, self.push, self.force,
                self.remove, self.red, self.pending, self.close, self.draft, self.retarget, self.move, self.rename,
                self.lock, self.drop_issue, self.write, self.restart)
        if self.undo and self.dice.random() < 0.5:
            self.undo.pop()()
        else:
            self.dice.choice(acts)()

    def comment(self) -> None:
        name = f"c{len(self.comments)}"
        kind = self.dice.choice(("line", "named", "changes", "stranger"))
        self.comments[name] = RequestComment(name, "eve", f"why {name}?", kind != "stranger",
                                             "a.py" if kind == "line" else "",
                                             requests_changes=kind == "changes", is_addressed=kind == "named",
                                             owner="a")

    def praise(self) -> None:
        name = f"c{len(self.comments)}"
        self.comments[name] = RequestComment(name, "eve", "LGTM, thanks!", can_write=True)

    def edit(self) -> None:
        for name in list(self.comments)[-1:]:
            self.changes += 1
            self.comments[name] = replace(self.comments[name], text=f"rather {self.changes}")

    def delete(self) -> None:
        for name in list(self.comments)[-1:]:
            self.comments.pop(name)

    def approve(self) -> None:
        self.approved = self.head

    def dismiss(self) -> None:
        self.approved = ""

    def push(self) -> None:
        if self.head and self.is_open:
            self.changes += 1
            self.head = _with(self.head, f"p{self.changes}")

    def force(self) -> None:
        if self.head and self.is_open:
            self.change("head", "b+evil")

    def remove(self) -> None:
        if self.head and self.is_open:
            self.change("head", "")

    def red(self) -> None:
        self.check = CheckResult.FAILED

    def pending(self) -> None:
        self.check = CheckResult.PENDING

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.undo.append(self.reopen)

    def reopen(self) -> None:
        self.is_open = self.number > 0 and not self.merge.commit

    def change(self, name: str, value: object) -> None:
        """Set an attribute until it is undone."""
        before = getattr(self, name)
        setattr(self, name, value)
        self.undo.append(lambda: setattr(self, name, before))

    def draft(self) -> None:
        if self.is_open and not self.is_draft:
            self.change("is_draft", True)

    def retarget(self) -> None:
        if self.is_open:
            self.change("other_base", "next")

    def move(self) -> None:
        self.changes += 1
        self.base = _with(self.base, f"m{self.changes}")

    def rename(self) -> None:
        self.change("is_renamed", True)

    def lock(self) -> None:
        self.change("is_locked", True)

    def drop_issue(self) -> None:
        self.change("issue_gone", "issue #7 was closed")

    def write(self) -> None:
        self.body = self.body and f"{self.body}!"

    def restart(self) -> None:
        """Kill the guardian: its journal alone is left."""
        before, self.state = self.state, reached_exit(LINE)
        for event in self.journaled:
            self.state.apply_event(event, AT)
        assert self.state.pull_request == before.pull_request and self.state.landing == before.landing
        self.facts, self.refused, self.wait, self.problem = None, None, "", ""
        self.known_answers.clear()

    # --- the run

    def turn(self) -> None:
        """Take a turn of the guardian: another part of the run, a poll, or what the machine decides."""
        landing = self.state.landing
        if landing.status == "landed":
            return
        if landing.status in ("", "refused"):
            self.work()
        elif landing.status == "failed":  # a user has reopened it, and resumes the run
            if self.is_open or self.merge.commit:
                self.journal(GuardianSignal("s", "GUIDANCE", run="running"))
                self.facts = None
        elif landing.status == "requested" and self.dice.random() < 0.5:
            self.tested.add((landing.oid, landing.base))
            self.journal(LandingChanged("tested", landing.attempt, commit="t"))
            self.facts = None
        elif self.facts is None:
            self.ask(None)
        else:
            self.follow()

    def journal(self, event: Any) -> None:
        self.journaled.append(event)
        self.state.apply_event(event, AT)

    def work(self) -> None:
        """Finish the active nodes, with or without a change; at the exit request the landing."""
        flow = self.state.flow
        for place in list(flow.places.values()):
            if self.dice.random() < 0.8:
                self.changes += 1
                self.tip = _with(self.tip, f"w{self.changes}")
            self.journal(FlowAdvanced(asdict(Finished(place.id, Outcome(SUCCESS), place.attempt)), place.node))
        if not flow.places:
            self.journal(LandingChanged("requested", self.state.landing.attempt + 1, oid=self.tip, base=self.base))
        self.facts = None

    def ask(self, step: ForgeStep | None) -> None:
        """Poll, or take a step; the forge may fail before or after it, or refuse it."""
        self.facts, fault = None, ""
        if not self.is_calm and self.dice.random() < 0.2:
            fault = self.dice.choice(("5xx", "lost", "limit", "403", "404"))
        self.wait = self.problem = ""
        if fault in ("5xx", "limit"):
            self.wait = fault
        elif fault in ("403", "404"):
            self.problem, self.refused = fault, step
        elif step is None:
            self.facts = self.seen = self.look()
            if self.is_calm or self.dice.random() < 0.3:
                self.refused = None
        else:
            self.take(step)
            self.wait = "no answer" if fault else ""

    def look(self) -> Facts:
        known, tip, head = self.state.pull_request.head, self.tip, self.head
        merge, is_open = (MergeFacts("", on_base=False), True) if self.is_behind else (self.merge, self.is_open)
        self.is_behind = False
        relation = Relation.ABSENT if not head else Relation.REWRITTEN if known and not _in(known, head) else \
            Relation.SAME if head == tip else Relation.BEHIND if _in(head, tip) else Relation.REWRITTEN if not known \
            else Relation.AHEAD if _in(tip, head) else Relation.DIVERGED
        base = "" if self.is_renamed else self.base
        comments = tuple(replace(each, answered=bool(self.answered[each.key]) or each.key in self.known_answers)
                         for each in self.comments.values())
        return Facts(relation, head, base, self.number, "u" if self.number else "", is_open, self.is_draft,
                     merge if merge.commit else None, body=self.body, tip=tip, comments=comments,
                     checks=(CommitCheck("ci", self.check, head, owner="a"),), approvals=int(bool(head) and
                                                                                             self.approved == head),
                     published=self.published.split()[0] if self.published.endswith(f" {head}") else "",
                     is_on_base=bool(base) and _in(tip, base), other_base=self.other_base,
                     renamed="trunk" if self.is_renamed else "", issue_gone="" if self.merge.commit else
                     self.issue_gone)

    def take(self, step: ForgeStep) -> None:
        match step.kind:
            case StepKind.PUSH if self.head == step.lease:  # else the lease refuses it
                assert not step.lease or _in(step.lease, step.head), "a push loses commits of people"
                self.head = step.head
            case StepKind.OPEN if not self.number:
                self.number, self.is_open, self.is_draft, self.body = 1, True, True, "section"
            case StepKind.EDIT:
                self.body = "section"
            case StepKind.READY:
                self.is_draft = False
            case StepKind.TAKE_IN:
                self.tip = _with(self.tip, step.head)
            case StepKind.REPLY if not self.answered[step.comment]:  # the marker ensures that
                self.known_answers.add(step.comment)
                self.answered[step.comment] += not self.is_locked
            case StepKind.STATUS:
                self.published = f"{step.text} {step.head}"
            case StepKind.MERGE if (self.head, self.base) == (step.head, step.lease) and self.is_open \
                    and not self.is_draft and not self.other_base:  # else the forge refuses it
                self.land(step)

    def land(self, step: ForgeStep) -> None:
        assert (step.head, step.lease) in self.tested, "what is merged was not tested"
        assert self.seen.approvals and self.seen.checks[0].result is CheckResult.PASSED, "it is approved and green"
        self.heard = self.seen
        before, self.base = self.base, _with(self.base, self.head)
        self.merge = MergeFacts("m", on_base=True, tree=f"{step.head} on {before}", parent=before)
        self.is_open, self.is_behind = False, self.dice.random() < 0.5

    def follow(self) -> None:
        """Do what the machine decides by its table."""
        landing, facts = self.state.landing, self.facts
        tree = f"{landing.oid} on {landing.base}" if landing.status == "tested" else ""
        body = self.body and re.sub("!", "", self.body)
        view = PullRequestView(self.tip, self.options, facts, tree, self.problem, self.refused, self.wait, "section",
                               body, silence=100.0)
        turn = PullRequestTurn(self.state, RUN, view, facts, 99)
        row, actions = decide(turn, self.table)
        assert actions == view.follow(self.state, RUN, 99)
        self.rows[row.when] += 1
        if not actions:
            assert self.state.pull_request.describe(), f"it waits without a reason: {row.when}"
            self.facts = None
        for action in actions:
            if action.kind is ActionKind.ASK_FOLLOWER:
                self.ask(action.expect(ForgeStep))
                continue
            if action.kind is ActionKind.CHANGE_PULL_REQUEST:
                event = action.expect(PullRequestChanged)
                assert event.state in (*row.states, turn.current), f"{row.when}: {event.state}"
            self.journal(action.payload)
            if action.kind is ActionKind.CHANGE_LANDING or action.payload.flow:
                self.facts = None

    # --- the story

    def tell(self) -> None:
        for _ in range(self.dice.randrange(10, 60)):
            self.turn()
            if self.dice.random() < 0.3:
                self.act()
        self.is_calm = True
        for _ in range(400):
            while self.undo:
                self.undo.pop()()
            self.check = CheckResult.PASSED
            if self.is_open and self.head == self.tip:
                self.approve()
            self.turn()
            if self.state.landing.status == "landed":
                break
        assert self.state.landing.status == "landed", (self.state.landing, self.state.pull_request)
        asked = [each for each in self.heard.comments if each.asks and each.can_write]  # not what came after the merge
        late = {each.key for each in asked} - set(self.state.pull_request.taken)
        assert not late, "a comment was ignored"
        assert max(self.answered.values(), default=0) <= 1, "a comment was answered twice"


def walk(table: tuple[Transition, ...]) -> Counter[str]:
    """Return how often each row was used; raise AssertionError if a walk does not lead to the merge."""
    rows: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = World(seed, table)
        try:
            world.tell()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        rows += world.rows
    return rows


def test_every_walk_leads_to_the_merge() -> None:
    rows = walk(ROWS)
    unused = {row.when for row in ROWS} - set(rows)
    assert {each for each in unused if "auto" not in each and "merged" not in each and "moved during" not in each
            and "not recorded" not in each} == set(), "the walks use each row"


@pytest.mark.parametrize("broken", ["_reply", "_push", "_under_test", "_removed", "_closed", "_send_back"])
def test_the_walk_detects_a_missing_row(broken: str) -> None:
    with pytest.raises((AssertionError, StopIteration)):
        walk(tuple(row for row in ROWS if row.decide.__name__ != broken))


def test_the_page_shows_the_table_of_the_machine() -> None:
    lines = ["| what is found | next step | leads to |", "| --- | --- | --- |", *(
        f"| {row.when} | {row.then} | "
        f"{', '.join(row.states) if len(row.states) < 5 else 'any but merged, closed, reworking'} |"
        for row in ROWS)]
    assert "\n".join(lines) in PAGE.read_text(), "\n".join(lines)
    assert set(TRANSITIONS) == set(PullRequestState)
