"""Planner: an agent of any kind that reads a copy of the repository (`node.reader`) and submits a proposal.

A faulty proposal is sent back, in the same session if the agent has one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, Refused
from garrison.node.reader import RepositoryReader, exchange_file
from garrison.plan import prompts
from garrison.plan.proposal import NO_PAST, find_faults, find_weaknesses, read_proposal
from garrison.plan.store import PLANNER
from garrison.records import atomic
from garrison.records.costs import PLANS
from garrison.records.run import Task
from garrison.system.git import Git
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.plan.proposal import Past, PlanRules, ProposedPlan
    from garrison.plan.store import PlanRecord, Plans
    from garrison.processes.runtime import Runtime

TRIES = 3
"""Maximum number of proposals per request."""
ANSWER = "plan.json"
"""Exchange file for a planner's proposal."""
SECONDS = 3600.0
"""Time limit of an attempt."""


class UsablePlan(Value):
    """Valid proposal, with its weaknesses and omitted parts."""

    proposal: ProposedPlan
    notes: tuple[str, ...] = ()


class Planner:
    """Asks the planner of one plan."""

    def __init__(self, runtime: Runtime, plans: Plans, plan: PlanRecord, rules: PlanRules,
                 report: Callable[[str], None], answer: Callable[[str], str | None]) -> None:
        """`report` is called with progress lines; `answer` asks the user a question, None if nobody can be asked."""
        self.runtime, self.plans, self.plan, self.rules = runtime, plans, plan, rules
        self._report, self._answer = report, answer
        self.folder = plans.folder(plan.id)
        self.git = Git(Path(plan.repo), home=runtime.home)

    def propose(self, request: str, lint: Callable[[ProposedPlan], list[str]], past: Past = NO_PAST) -> UsablePlan:
        """Return a valid proposal; Refused if there is none after `TRIES`.

        Args:
            request: the request in the planner's prompt.
            lint: returns the reasons for which a launch would refuse a proposal's graph.
            past: results of a plan to repair.
        """
        reasons: list[str] = []
        weak, first = False, self.plan.tries + 1
        with self._reader() as reader:
            for number in range(TRIES):
                answer = self._ask(reader, request, reasons, refused=self.plan.tries if number else 0)
                try:
                    proposal = read_proposal(answer)
                    reasons = find_faults(proposal, self.rules, past) or lint(proposal)
                except ValueError as error:
                    reasons = [str(error)]
                if reasons:
                    self._report(f"the plan goes back ({number + 1} of {TRIES}): {'; '.join(reasons)[:300]}")
                    continue
                weaknesses = find_weaknesses(proposal, past)
                # once, and never with the last try: a weak plan is usable, and the user is warned
                if weaknesses and not weak and number + 1 < TRIES:
                    weak, reasons = True, weaknesses
                    self._report(f"the plan goes back once: {'; '.join(weaknesses)[:300]}")
                    continue
                judged = [self.rules.judge(task) for task in proposal.tasks]
                left_out = [line for _, lines in judged for line in lines]
                return UsablePlan(replace(proposal, tasks=tuple(task for task, _ in judged)), (*weaknesses, *left_out))
        attempts = f"{first} to {self.plan.tries}"
        raise Refused(f"no usable plan in {TRIES} attempts (the last: {'; '.join(reasons)[:300]}); state the goal more "
                      f"precisely, or name another --planner. Attempts {attempts} are in {self.folder / PLANNER}")

    def _reader(self) -> RepositoryReader:
        return RepositoryReader(self.runtime, self.git, self.plan.commit, self.folder, f"{PLANS}/{self.plan.id}",
                                self._reply, lambda reason: self._report(f"the planner waits: {reason}"))

    # ---- one attempt

    def _ask(self, reader: RepositoryReader, request: str, reasons: list[str], refused: int) -> str:
        """Have the planner answer once, in any of its channels. Refused if it could not work."""
        # before the attempt: if it is killed, its folder and costs stay, and the next attempt gets another number
        self.plan = self.plans.write(replace(self.plan, tries=self.plan.tries + 1))
        plan = self.plan
        folder = atomic.make_directory(self.folder / PLANNER / str(plan.tries))
        file = exchange_file(folder, ANSWER)
        back = prompts.go_back(reasons) if reasons else ""
        text = prompts.request(request, plan.answers, str(file)) + (f"\n\n{back}" if back else "")
        task = Task(plan.id, PLANNER, plan.tries, label="Plan", prompt=text,
                    agent="command" if plan.command else plan.planner, command=plan.command or None, goal=plan.goal,
                    timeout_s=SECONDS)
        answer = reader.ask(task, folder, file, {"GARRISON_PLAN": plan.id, "GARRISON_PLAN_FILE": str(file)},
                            schema=prompts.SCHEMA, rework=back,
                            refused=self.folder / PLANNER / str(refused) if refused else None)
        if answer.trouble:
            again = "" if reasons else f"; `garrison plan --continue {plan.id}` tries again"
            raise Refused(f"the planner could not plan: {answer.trouble}{again}")
        return answer.text

    def _reply(self, question: str) -> str:
        answer = self._answer(question)
        if answer is None:
            raise OpenQuestions((question,))
        return answer


class OpenQuestions(GarrisonError):
    """Open questions that only the user can answer."""

    exit_code = 3

    def __init__(self, questions: tuple[str, ...]) -> None:
        self.questions = questions
        super().__init__("the planner has open questions")

