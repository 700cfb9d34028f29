"""The planner: an agent of any kind that reads a copy of the repository and hands in a proposal.

The copy is the commit that the run would begin at, in the plan's folder: no worktree, no branch, nothing of the user's
checkout. Inside the sandbox it is read-only. Each try is an attempt with its own folder, so that what it cost is kept
whoever is killed; a proposal with faults goes back, in the same session where the agent has one.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import registry
from garrison.agents.base import Assignment
from garrison.errors import GarrisonError, Refused
from garrison.node.instructions import read_instructions
from garrison.node.places import open_network
from garrison.plan import prompts
from garrison.plan.proposal import MAX_ANSWER, NO_PAST, find_faults, find_weaknesses, read_proposal
from garrison.plan.store import PLANNER, TREE
from garrison.records import atomic
from garrison.records.costs import PLANS
from garrison.records.run import Task
from garrison.sandbox.file_system import show_named_programs
from garrison.sandbox.git_view import sandbox_folder
from garrison.sandbox.place import EXCHANGE, Mode, Place, Role
from garrison.sandbox.rights import read_rights
from garrison.system import untrusted
from garrison.system.clock import wait_until
from garrison.system.command import read_tail
from garrison.system.environment import child_environment
from garrison.system.git import Git
from garrison.system.processes import open_verified
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.agents.base import PendingQuestion, Work, WorkResult
    from garrison.plan.proposal import Past, PlanRules, ProposedPlan
    from garrison.plan.store import PlanRecord, Plans
    from garrison.processes.runtime import Runtime
    from garrison.sandbox.network import NetworkPlace

TRIES = 3
"""Proposals of one request that are looked at."""
ANSWER = "plan.json"
"""File of the exchange in which a planner may leave its proposal."""
OUTPUT = "output"
"""Key of a report's context under which a planner may leave its proposal."""
SECONDS = 3600.0
"""Time limit of an attempt."""
_READING = "Read,Glob,Grep"
_POLL = 0.5
_LINES = 20_000


class UsablePlan(Value):
    """A proposal without faults, and what is weak about it or was left out."""

    proposal: ProposedPlan
    notes: tuple[str, ...] = ()


class Planner:
    """Asks the planner of one plan."""

    def __init__(self, runtime: Runtime, plans: Plans, plan: PlanRecord, rules: PlanRules,
                 report: Callable[[str], None], answer: Callable[[str], str | None]) -> None:
        """`report` takes a line on how far it is; `answer` asks the user a question, None where nobody can be asked."""
        self.runtime, self.plans, self.plan, self.rules = runtime, plans, plan, rules
        self._report, self._answer = report, answer
        self.folder = plans.folder(plan.id)
        self.git = Git(Path(plan.repo), home=runtime.home)

    def propose(self, request: str, lint: Callable[[ProposedPlan], list[str]], past: Past = NO_PAST) -> UsablePlan:
        """Return a proposal without faults; Refused if there is none after `TRIES`.

        Args:
            request: what is asked for, as the planner's prompt has it.
            lint: returns what a launch would refuse about the graph of a proposal.
            past: what a plan that is to be mended has come to.
        """
        self._copy_repository()
        reasons: list[str] = []
        weak, first = False, self.plan.tries + 1
        try:
            for number in range(TRIES):
                answer = self._ask(request, reasons, refused=self.plan.tries if number else 0)
                try:
                    proposal = read_proposal(answer)
                    reasons = find_faults(proposal, self.rules, past) or lint(proposal)
                except ValueError as error:
                    reasons = [str(error)]
                if reasons:
                    self._report(f"the plan goes back ({number + 1} of {TRIES}): {'; '.join(reasons)[:300]}")
                    continue
                weaknesses = find_weaknesses(proposal, past)
                if weaknesses and not weak and number + 1 < TRIES:
                    weak, reasons = True, weaknesses
                    self._report(f"the plan goes back once: {'; '.join(weaknesses)[:300]}")
                    continue
                judged = [self.rules.judge(task) for task in proposal.tasks]
                left_out = [line for _, lines in judged for line in lines]
                return UsablePlan(replace(proposal, tasks=tuple(task for task, _ in judged)), (*weaknesses, *left_out))
        finally:
            self.plans.remove_tree(self.plan.id)
        attempts = f"{first} to {self.plan.tries}"
        raise Refused(f"no usable plan in {TRIES} attempts (the last: {'; '.join(reasons)[:300]}); say the goal more "
                      f"precisely, or name another --planner. Attempts {attempts} are in {self.folder / PLANNER}")

    def _copy_repository(self) -> None:
        self.plans.remove_tree(self.plan.id)
        tree, index = atomic.make_directory(self.folder / TREE), str(self.folder / "index")
        try:
            self.git.run("read-tree", self.plan.commit, extra={"GIT_INDEX_FILE": index})
            self.git.run("checkout-index", "--all", "--quiet", f"--prefix={tree}/", extra={"GIT_INDEX_FILE": index})
        finally:
            (self.folder / "index").unlink(missing_ok=True)

    # ---- one attempt

    def _ask(self, request: str, reasons: list[str], refused: int) -> str:
        """Have the planner answer once; return what it says, wherever it says it. Refused if it could not work."""
        self.plan = self.plans.write(replace(self.plan, tries=self.plan.tries + 1))
        plan, home = self.plan, self.runtime.home
        folder = atomic.make_directory(self.folder / PLANNER / str(plan.tries))
        is_command = bool(plan.command)
        name = "command" if is_command else plan.planner
        exchange = folder / EXCHANGE / ANSWER
        back = prompts.go_back(reasons) if reasons else ""
        text = prompts.request(request, plan.answers, str(exchange)) + (f"\n\n{back}" if back else "")
        attributes = {} if is_command else {"tools": _READING, "output_schema": prompts.SCHEMA, "max_idle": "none"} \
            if registry.model_profile(name, home).reads_structure else {}
        task = Task(plan.id, PLANNER, plan.tries, label="Plan", prompt=text, agent=name,
                    command=plan.command or None, goal=plan.goal, attributes=attributes, timeout_s=SECONDS)
        source = self.runtime.environ
        environ = child_environment(source, registry.required_variables({name}, home), {
            "GARRISON_HOME": str(home), "GARRISON_PLAN": plan.id, "GARRISON_PLAN_FILE": str(exchange)})
        place = self._place(task, name)
        told = read_instructions(self.git, "", plan.commit)
        with closing(open_network(self.runtime, task, Role.AGENT, folder, environ, agent=name, place=place,
                                  account=f"{PLANS}/{plan.id}")) as network:
            given = Assignment(task, self.folder / TREE, folder, network.apply(environ), attempts=folder.parent,
                               network_variables=network.names, instructions=told.text,
                               folder_instructions=told.folders, rework=back,
                               refused=self.folder / PLANNER / str(refused) if refused else None)
            given.write_prompt(text)
            if place is not None:
                place = replace(place, mounts=given.mounts())
            else:
                given.mounts()
            given = replace(given, place=network.open_in(place))
            outcome = self._wait(registry.agent(name, home, attributes=attributes).start(given, time.monotonic()),
                                 network)
        return self._answer_of(outcome, given, refused=reasons != [])

    def _place(self, task: Task, name: str) -> Place | None:
        rights = read_rights(self.runtime.home, Role.AGENT, name, self.runtime.environ)
        if rights.mode is Mode.NONE:
            return None
        rights = show_named_programs(rights, task.command or "")
        rights = replace(rights, read=(*rights.read, *rights.write), write=(), push=False)
        tree = self.folder / TREE
        return Place(Role.AGENT, rights, tree, sandbox_folder(tree), worktree_writable=False,
                     secret=(self.git.root, self.git.common))

    def _wait(self, work: Work, network: NetworkPlace) -> WorkResult:
        """Poll the planner to its end; an interrupted wait ends it first."""
        told = ""
        try:
            while (outcome := work.poll(now := time.monotonic())) is None:
                network.keep()
                if (question := work.question) is not None:
                    self._answer_question(work, question)
                if (trouble := work.trouble) is not None and trouble.reason != told:
                    told = trouble.reason
                    self._report(f"the planner waits: {told}")
                self._pause(work, network, now)
        except BaseException:
            work.stop(time.monotonic())
            wait_until(lambda: work.poll(time.monotonic()) is not None, 10.0)
            raise
        return outcome

    def _pause(self, work: Work, network: NetworkPlace, now: float) -> None:
        """Wait for the end of the planner's process, a connection without a proxy, or the next time to look."""
        due, process = work.wake_at(), work.process()
        seconds = _POLL if due is None else max(0.01, min(_POLL, due - now))
        ended = open_verified(*process) if process else None
        watched = [each for each in (ended, network.unserved) if each is not None]
        try:
            select.select(watched, [], [], seconds if ended is not None else min(seconds, 0.05))
        finally:
            if ended is not None:
                os.close(ended)

    def _answer_question(self, work: Work, question: PendingQuestion) -> None:
        answer = self._answer(question.text)
        if answer is None:
            raise OpenQuestions((question.text,))
        work.answer(question.id, answer)

    def _answer_of(self, outcome: WorkResult, given: Assignment, *, refused: bool) -> str:
        """Return what the planner said: in its report, in its file, or at the end of its output."""
        said = outcome.report.get("context_updates", {}).get(OUTPUT)
        if said is not None:
            return prompts.to_json(said)
        with suppress(untrusted.UnsafeFile, OSError):
            if data := untrusted.read(given.exchange, ANSWER, MAX_ANSWER):
                return data.decode(errors="replace")
        if outcome.status != "success":
            again = f"; `garrison plan --continue {self.plan.id}` tries again"
            raise Refused(f"the planner could not plan: {outcome.reason or 'it failed'}{'' if refused else again}")
        return "\n".join([str(outcome.report.get("notes", "")), read_tail(given.output, _LINES, MAX_ANSWER)])


class OpenQuestions(GarrisonError):
    """Questions that only the user can answer, where nobody can be asked."""

    exit_code = 3

    def __init__(self, questions: tuple[str, ...]) -> None:
        self.questions = questions
        super().__init__("the planner has open questions")

