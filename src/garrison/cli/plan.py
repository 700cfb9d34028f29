"""`garrison plan`: from a goal to tasks that you approve, and to the run that does them.

Until you approve, nothing but the planner runs. What it hands in is a proposal (`plan/proposal.py`); what you approve
is a graph (`plan/graph.py`), launched like any other. Each step is recorded in the home before the next begins, and the
run's id is the plan's, so that a plan that is continued begins no second run.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from garrison.agents import registry
from garrison.cli.begin import OPTION_GROUPS, choose_agent, launch_options, make_request, read_task, read_text
from garrison.cli.commands import Command
from garrison.cli.output import INTERRUPTED, ask, interruptible, print_json, print_message, print_table
from garrison.cli.sandbox import settle_mode
from garrison.config import read_config
from garrison.directories import find_home
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.launch.own_command import PlanRow
from garrison.pipeline.dot_writer import to_dot
from garrison.pipeline.parser import parse
from garrison.plan import graph as plan_graph
from garrison.plan import history, prompts
from garrison.plan.planner import OpenQuestions, Planner
from garrison.plan.proposal import CHECK, NO_PAST, Past, PlanRules
from garrison.plan.store import PlanAnswer, PlanRecord, Plans, PlanStage
from garrison.processes.runtime import Runtime
from garrison.records import atomic
from garrison.records.costs import spent_by
from garrison.records.identity import Identity
from garrison.records.names import launcher_key
from garrison.records.run import LAND_NODE
from garrison.run.request import LaunchRequest, read_defaults
from garrison.system import failpoint
from garrison.system.git import Git, validate_repository
from garrison.values import fields_of, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.pipeline.graph import Graph
    from garrison.plan.proposal import ProposedPlan
    from garrison.records.run import Launch
    from garrison.run.state import RunState

WAITING = 3
"""Exit code of a plan that waits for the user."""
_PLAN = {"Goal": ("file", "issue", "answer"),
         "Plan": ("planner", "command", "check", "out", "edit", "graph", "no_check", "yes"),
         "Plans": ("again", "shows_all")}


@click.command(cls=Command, option_groups={**_PLAN, **OPTION_GROUPS}, everyday=(
    "file", "issue", "planner", "check", "out", "edit", "yes", "again", "agent", "gate", "detach",
), examples=(
    ('garrison plan "move the settings to TOML and migrate old ones"', "shows the tasks, and asks before they begin"),
    ('garrison plan "split the parser" --out split.dot', "keeps the plan as a graph: edit it, then `garrison launch`"),
    ("garrison plan --continue split-the-parser-3fa9 --yes", "approves a plan that waits, and runs it"),
))
@click.argument("words", nargs=-1, metavar="GOAL...|-")
@click.option("--file", "file", metavar="FILE", type=click.Path(path_type=Path),
              help="File with the goal, for a long one; `-` reads it from standard input.")
@click.option("--issue", type=click.IntRange(1), metavar="N", help="Take the goal from an issue of the forge.")
@click.option("--answer", multiple=True, metavar="TEXT",
              help="Answer to an open question of the plan (repeatable, in their order).")
@click.option("--planner", metavar="NAME",
              help="Agent that plans (default: [plan] agent, else the one that does tasks).")
@click.option("--command", metavar="CMD", help="Command that plans in place of an agent: it prints the plan as JSON.")
@click.option("--check", metavar="CMD", help="Command that checks the goal at the end (default: an agent judges it).")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path),
              help="Write the plan as a graph for `garrison launch`, and begin nothing.")
@click.option("--edit", is_flag=True, help="Edit the plan in your EDITOR before it is shown.")
@click.option("--graph", metavar="FILE", type=click.Path(path_type=Path),
              help="With --continue: take the plan as you have edited it in FILE (`-`: standard input), and show it.")
@click.option("--no-check", is_flag=True,
              help="Leave out the check of a goal that is one task, as `garrison run` does.")
@click.option("--yes", is_flag=True, help="Begin without asking, for at most what the plan shows.")
@click.option("--continue", "again", metavar="PLAN", help="Continue a plan: one that was interrupted, has open "
                                                          "questions, waits for approval, or whose run has failed.")
@click.option("--list", "shows_all", is_flag=True, help="List the plans of the home.")
@launch_options
def plan(words: tuple[str, ...], file: Path | None, issue: int | None, answer: tuple[str, ...], planner: str | None,
         command: str | None, check: str | None, out: Path | None, graph: Path | None, again: str | None,
         home: str | None, target_dir: Path | None, agent: str | None, *, edit: bool, no_check: bool, yes: bool,
         shows_all: bool, detach: bool, dry_run: bool, serve: bool, as_json: bool, **options: Any) -> int | None:
    """Have an agent divide GOAL into tasks on the repository you are in; run them once you approve.

    The planner reads a copy of the last commit and can change nothing. The plan is shown as a table, with what it may
    cost. Exit code 3 if it waits for your answers or your approval and nobody can be asked here.
    """
    runtime = Runtime.real(find_home(home))
    plans = Plans(runtime.home)
    if shows_all:
        _list(plans, as_json=as_json)
        return None
    if serve and detach:
        raise UsageError("--serve ends with this command; with --detach, run `garrison serve` afterwards")
    if again is not None:
        if words or file is not None or issue is not None:
            raise UsageError("--continue PLAN takes no goal: the plan has its own")
        made = plans.read(again)
        validate_repository(Path(made.repo))
        if not made.mends:
            raise Refused(f"plan {made.id} is of an issue: `garrison take` with its number and --plan continues it")
        made = plans.write(replace(made, check=check or made.check, agent=agent or made.agent))
        given = "" if graph is None else read_text(graph)
    else:
        given = ""
        if graph is not None:
            raise UsageError("--graph needs --continue PLAN; `garrison launch FILE` runs a graph by itself")
        here = target_dir or Path.cwd()
        goal = read_task(words, file, "goal") if issue is None else _read_issue(
            runtime, validate_repository(here), issue, options["base"])
        made = plans.begin(_new(runtime, here, goal, planner, command, check, agent,
                                base=options["base"]))
    # A dry run asks nobody: it starts nothing.
    session = PlanSession(runtime, plans, made, answer, yes=yes or dry_run, edit=edit, as_json=as_json,
                          options=options, no_check=no_check)
    with plans.held(made.id), interruptible():
        try:
            if given:
                session.take_graph(given)
            text = session.to_launch(out)
        except OpenQuestions as error:
            session.show_questions(error.questions)
            return WAITING
        run = session.launch(text, dry_run=dry_run) if text else session.created
        if run is None:
            return session.code
        session.start(run, detach=detach, serve=serve)
    return None if detach else session.follow(run)  # the launcher may work on the plan while we follow


def make_plan(runtime: Runtime, here: Path, goal: str, run: str, agent: str | None) -> str:
    """Return the graph of a goal that the user has approved in this terminal; '' if they have not.

    An interrupted plan of the same run is continued. Refused where nobody can be asked.

    Args:
        run: id of the run that the caller begins with it.
    """
    plans = Plans(runtime.home)
    known = next((each for each in plans.list() if each.runs == (run,)), None)
    made = known or plans.begin(replace(_new(runtime, here, goal, None, None, None, agent), runs=(run,),
                                          mends=False))
    with plans.held(made.id), interruptible():
        session = PlanSession(runtime, plans, made, (), yes=False, edit=False, as_json=False, options={})
        try:
            text = session.to_launch(None)
        except OpenQuestions as error:
            session.show_questions(error.questions)
            return ""
        if text:
            session.record_launch(run)
        return text


def _new(runtime: Runtime, here: Path, goal: str, planner: str | None, command: str | None, check: str | None,
         agent: str | None, base: str | None = None) -> PlanRecord:
    """Return the record of a new plan; Refused or UsageError if nobody can plan it or do it."""
    if planner and command:
        raise UsageError("name a --planner or give a --command, not both")
    target, doer = validate_repository(here), choose_agent(runtime, here, agent, "")
    who = "" if command else planner or read_config(runtime.home).plan().agent or doer
    if who:
        registry.find_profile(who, runtime.home)
        registry.check_library(registry.find_profile(who, runtime.home), f"planner {who}")
        registry.check_program(who, runtime.home, runtime.environ, ())
    git = Git(target, home=runtime.home)
    base = base or read_defaults(runtime.home, target).base
    commit = (git.branch_tip(base) if base else None) or git.rev("HEAD")
    if commit is None:
        raise Refused(f"{target} has no commit yet, which a planner could read; commit first")
    return PlanRecord("", goal, str(target), commit, who, runtime.clock.utc(), str(here.resolve()), command or "",
                      check or "", doer)


def _read_issue(runtime: Runtime, target: Path, number: int, base: str | None) -> str:
    from garrison.cli.take import find_forge, write_task

    forge, _, _ = find_forge(runtime, target, base)
    found = forge.read_issue(number)
    if not found.open:
        raise UsageError(f"issue {number} is closed; reopen it, or take another")
    return write_task(found, forge.location)


class PlanSession:
    """Work on one plan in this process, which holds it."""

    def __init__(self, runtime: Runtime, plans: Plans, plan: PlanRecord, answers: Sequence[str], *, yes: bool,
                 edit: bool, as_json: bool, options: dict[str, Any], no_check: bool = False) -> None:
        self.runtime, self.plans, self.plan, self.answers = runtime, plans, plan, list(answers)
        self.yes, self.edit, self.as_json, self.options = yes, edit, as_json, options
        self.no_check = no_check
        self.config = read_config(runtime.home).plan()
        self.code = 0
        """Exit code where nothing is launched."""
        self.created: Launch | None = None
        """Run that was created and never started."""

    @property
    def can_ask(self) -> bool:
        return sys.stdin.isatty() and sys.stderr.isatty() and not self.as_json

    def _write(self, **changes: Any) -> None:
        self.plan = self.plans.write(replace(self.plan, **changes))

    # ---- until approval

    def to_launch(self, out: Path | None) -> str:
        """Return the graph that the user has approved; '' if nothing is to be launched. OpenQuestions, Refused."""
        if self.plan.stage is PlanStage.LAUNCHED or (self.plan.mends and self.plan.runs):
            return self._continue_run()
        if self.plan.stage in (PlanStage.PLANNING, PlanStage.ASKED):
            self._propose()
        text = self.plans.read_graph(self.plan.id)
        if self.edit:
            text = self._edit(text)
        graph = parse(text, self.plan.id)
        if self.no_check:
            graph = self._without_check(graph)
        if out is not None:
            atomic.write(out, to_dot(graph).encode())
            self._write(stage=PlanStage.PROPOSED)
            print_message(f"the plan is in {out}; `garrison launch {out}` runs it, edited or not")
            return ""
        return self._approve(graph)

    def take_graph(self, text: str) -> None:
        """Put a graph that the user has edited in the place of the plan's; Refused if that has begun or cannot run."""
        if self.plan.runs:
            raise Refused(f"plan {self.plan.id} has begun; `garrison edit NODE` changes what has not started")
        self.plans.read_graph(self.plan.id)
        if errors := _errors_of(text, "the graph"):
            raise Refused(f"{errors[0]}; the plan is as it was")
        self.plans.write_graph(self.plan.id, text)
        self._write(notes=())

    def _propose(self) -> None:
        """Have the planner propose, ask what it asks, and keep the graph of what comes of it."""
        settle_mode(self.runtime.home)
        while True:
            self._settle_questions()
            print_message(f"plan {self.plan.id}: {self.plan.planner or 'the command'} reads "
                          f"{Path(self.plan.repo).name} at {self.plan.commit[:10]}")
            planner = self._planner()
            try:
                found = planner.propose(prompts.goal_of(self.plan.goal), lambda proposal: plan_graph.find_errors(
                    plan_graph.to_graph(proposal, self.plan.goal, self.plan.check)) if proposal.tasks else [])
            finally:
                self.plan = planner.plan
            if not found.proposal.questions or (self.yes and found.proposal.tasks and self.plan.answers):
                break
            self._write(stage=PlanStage.ASKED, questions=found.proposal.questions)
        graph = plan_graph.to_graph(found.proposal, self.plan.goal, self.plan.check)
        self.plans.write_graph(self.plan.id, to_dot(graph))
        self._write(stage=PlanStage.PROPOSED, questions=(), notes=found.notes)

    def _planner(self) -> Planner:
        return Planner(self.runtime, self.plans, self.plan, self._rules(), print_message, self._ask)

    def _rules(self) -> PlanRules:
        agents = {self.plan.agent, *self.config.agents}
        budgets = {name: registry.limits_of(name, CHECK, {}, self.runtime.home).node for name in sorted(agents)}
        return PlanRules(self.config.max_tasks, frozenset(agents), frozenset(self.config.commands),
                     {**budgets, "": budgets[self.plan.agent]})

    def _ask(self, question: str) -> str | None:
        """Return the user's answer to a question of the planner; None where nobody can be asked."""
        if self.answers:
            return self.answers.pop(0)
        if not self.can_ask:
            return None
        print_message(f"the planner asks: {question}")
        try:
            return ask("your answer: ").strip() or "Decide it yourself."
        except EOFError:
            return None

    def _settle_questions(self) -> None:
        """Have the user answer what is open; OpenQuestions where that is impossible."""
        while self.plan.questions:
            answer = self._ask(self.plan.questions[0])
            if answer is None:
                raise OpenQuestions(self.plan.questions)
            first, *rest = self.plan.questions
            self._write(questions=tuple(rest), answers=(*self.plan.answers, PlanAnswer(first, answer)))
        if self.plan.stage is PlanStage.ASKED:
            self._write(stage=PlanStage.PLANNING)

    def show_questions(self, questions: Sequence[str]) -> None:
        """Print open questions, and how they are answered."""
        self._write(stage=PlanStage.ASKED, questions=tuple(questions))
        if self.as_json:
            print_json({"plan": self.plan.id, "stage": self.plan.stage, "questions": list(questions)})
            return
        for number, question in enumerate(questions, 1):
            print_message(f"question {number}: {question}")
        answers = " ".join(["--answer TEXT"] * len(questions))
        print_message(f"nothing was started; answer with `garrison plan --continue {self.plan.id} {answers}`")

    def _edit(self, text: str) -> str:
        """Return the text as the user's editor leaves it, once a launch would take it."""
        editor = self.runtime.environ.get("VISUAL") or self.runtime.environ.get("EDITOR") or "vi"
        with TemporaryDirectory(prefix="garrison-plan-") as folder:
            path = Path(folder, f"{self.plan.id}.dot")
            path.write_text(text)
            while True:
                if subprocess.run([*shlex.split(editor), str(path)], check=False, env=dict(os.environ)).returncode:
                    raise Refused(f"{editor} failed; the plan is as it was")
                try:
                    errors = _errors_of(edited := path.read_text(encoding="utf-8"), path.name)
                except UnicodeDecodeError as error:
                    errors = [str(error)]
                if not errors:
                    break
                for line in errors:
                    print_message(line)
                if not self.can_ask or ask("edit it again? [Y/n] ").strip().casefold() in ("n", "no"):
                    raise Refused("the edited graph cannot be run; the plan is as it was")
        self.plans.write_graph(self.plan.id, edited)
        self._write(notes=())
        return edited

    # ---- approval

    def _approve(self, graph: Graph) -> str:
        """Show the plan and ask whether to begin; return its text, '' if not."""
        most = self._bound(graph)
        self._show(graph, most)
        proposal = plan_graph.read_plan(graph)
        is_one = len(proposal.tasks) == 1 and CHECK in graph.nodes and not self.plan.runs
        if is_one and not self.yes:
            print_message("this goal is one task, which `garrison run` does as well: without a check of the goal")
        while not self.yes:
            if not self.can_ask:
                print_message(f"nothing was started; `garrison plan --continue {self.plan.id} --yes` begins it, with "
                              + ("--no-check as `garrison run` would, with " if is_one else "")
                              + "--edit you edit it first, with --out FILE you keep it as a graph")
                self.code = WAITING
                return ""
            try:
                said = ask(f"begin? [y]es, {'[r]un without the check, ' if is_one else ''}[e]dit, [N]o: "
                           ).strip().casefold()
            except EOFError:
                said = ""
            if said in ("r", "run") and is_one:
                graph = self._without_check(graph)
                most = self._bound(graph)
                break
            if said in ("y", "yes"):
                break
            if said in ("e", "edit"):
                return self._approve(parse(self._edit(to_dot(graph)), self.plan.id))
            self._write(stage=PlanStage.DROPPED if said in ("n", "no") else PlanStage.PROPOSED)
            print_message(f"nothing was started; `garrison plan --continue {self.plan.id}` shows it again")
            return ""
        if self.plan.runs and self.plan.mends:  # the first approval's money counts
            self._write(stage=PlanStage.PROPOSED)
        else:
            self._write(stage=PlanStage.PROPOSED, approved=most, planned=self.plans.spent(self.plan.id))
        return to_dot(graph)

    def _without_check(self, graph: Graph) -> Graph:
        """Return a graph of one task as `garrison run` makes it; Refused for several."""
        if (count := len(plan_graph.read_plan(graph).tasks)) != 1:
            raise Refused(f"--no-check is for a goal that is one task, and this is {count}; --edit can remove the node "
                          f"{CHECK}")
        return plan_graph.leave_out_check(graph) if CHECK in graph.nodes else graph

    def _most(self, graph: Graph) -> float | None:
        """Return the US dollars that the nodes of a graph may spend together; None if one has no limit."""
        limits = [registry.limits_of(str(node.attrs.get("agent") or self.plan.agent), node.id, node.attrs,
                                     self.runtime.home).node for node in plan_graph.list_open(graph)]
        return None if None in limits else sum(limit for limit in limits if limit is not None)

    def _bound(self, graph: Graph) -> float | None:
        """Return the US dollars that the run of a graph may spend: its nodes' together, and what bounds the run."""
        whole = self.options.get("budget_run")
        bounds = [self._most(graph), float(whole) if whole not in (None, "none") else None,
                  self._left() if self.plan.mends and self.plan.runs else None]
        return min((bound for bound in bounds if bound is not None), default=None)

    def _show(self, graph: Graph, most: float | None) -> None:
        proposal = plan_graph.read_plan(graph)
        rows = self._rows(proposal, graph)
        if self.as_json and self.yes:  # what is printed is the run alone
            return
        if self.as_json:
            print_json({"plan": self.plan.id, "stage": PlanStage.PROPOSED, "goal": self.plan.goal, "tasks": rows,
                        "edges": [[need.task, task.name, need.what] for task in proposal.tasks for need in task.needs],
                        "notes": list(self.plan.notes), "most_usd": most, "one_task": len(proposal.tasks) == 1,
                        "graph": to_dot(graph)})
            return
        print_table(("node", "title", "after", "files", "agent", "budget", "cost", "time"),
                    [(row.node, row.title, row.needs, row.files, row.agent,
                      "none" if row.budget is None else f"${row.budget:g}", row.cost, row.time) for row in rows])
        for task in proposal.tasks:
            for need in task.needs:
                print_message(f"  {need.task} → {task.name}: {need.what or 'its work'}")
        for line in self.plan.notes:
            print_message(f"warning: {line}")
        spent = self.plans.spent(self.plan.id)
        amount = "any amount, since an agent has no budget" if most is None else f"${most:g} at most"
        print_message(f"it may spend {amount}; planning has cost {f'${spent:.2f}' if spent else 'nothing on record'}")

    def _rows(self, proposal: ProposedPlan, graph: Graph) -> list[PlanRow]:
        past = history.read_history(self.runtime, self.plan.repo)
        rows = []
        for name, title, needs, files, agent in [
                *((task.name, task.title, ", ".join(need.task for need in task.needs), " ".join(task.files), task.agent)
                  for task in proposal.tasks),
                *([(CHECK, "Check the goal", "all", "", "command" if self.plan.check else "")]
                  if CHECK in graph.nodes else [])]:
            who, attrs = agent or self.plan.agent, graph.nodes[name].attrs
            limit = None if attrs.get("command") else registry.limits_of(who, name, attrs, self.runtime.home).node
            known, has_landed = past.get(who), bool(attrs.get("status"))
            rows.append(PlanRow(name, title, needs, files, who, 0.0 if has_landed else limit,
                            "landed" if has_landed else known.cost if known else history.UNKNOWN,
                            "" if has_landed else known.time if known else history.UNKNOWN))
        return rows

    # ---- the run

    def launch(self, text: str, *, dry_run: bool) -> Launch | None:
        """Create the run of an approved graph; None where that is only checked."""
        from garrison.cli import launch as launching  # a plan that is only shown needs nothing of a launch

        # Recorded before it is made: killed in between, --continue finds the id of a run that is not there, and makes
        # it. The other way round it would make a second run of the same tasks.
        run = self.options.get("run") or self._next_run()
        if not dry_run:
            self.plans.write_graph(self.plan.id, text)
            self.record_launch(run)
        created = launching.create(self.runtime, self._request(run, text), dry_run=dry_run, as_json=self.as_json)
        failpoint.here("plan:created")
        return created

    def start(self, created: Launch, *, detach: bool, serve: bool) -> None:
        """Start a run in the background."""
        from garrison.cli import launch as launching

        if serve:
            launching.serve_page(self.runtime, created.run_id)
        pid = launching.start_detached(self.runtime, created, ["--json"] if self.as_json else [])
        if detach:
            launching.announce_detached(created.run_id, pid, as_json=self.as_json)

    def follow(self, created: Launch) -> int:
        """Follow a run, and the one that takes the place of what has failed in it; return the last one's exit code."""
        from garrison.cli.launch import follow_run

        print_message("Ctrl-C leaves it running in the background")
        while True:
            code = follow_run(self.runtime, created, as_json=self.as_json)
            runs = self.plans.read(self.plan.id).runs
            if code == INTERRUPTED or runs[-1] == created.run_id or not self.runtime.files(runs[-1]).launch.exists():
                return code
            created = self.runtime.launch(runs[-1])

    def _request(self, run: str, text: str) -> LaunchRequest:
        """Return the request of the plan's next launch: with the options of the first, where no others are given."""
        made = make_request(Path(plan_graph.plan_name(self.plan.goal)), Path(self.plan.here), **self.options)
        if (first := self.plan.request) is not None:
            default = LaunchRequest(made.pipeline, made.target)
            given = {name: value for name, value in fields_of(made).items() if value != getattr(default, name)}
            if made.gate or made.no_gate:
                given |= {"gate": made.gate, "no_gate": made.no_gate}
            made = replace(first, **given)
        self._write(request=replace(made, run=None, new=False))
        left = self._left() if self.plan.replans and made.budget_run else None
        return replace(made, run=run, text=text, agent=self.plan.agent, new=made.new or self.plan.replans > 0,
                       budget_run=made.budget_run if left is None else plan_graph.amount(left),
                       on_failure=["plan", "--continue", self.plan.id, "--yes", "--detach"] if self._may_mend else [],
                       launcher_env=sorted(registry.required_variables(
                           {name for name in (self.plan.planner, *self._rules().agents) if name},
                           self.runtime.home)) if self._may_mend else [])

    def record_launch(self, run: str) -> None:
        """Record the run of an approved plan, before that begins; each but the first mends the plan."""
        runs = tuple(dict.fromkeys((*self.plan.runs, run)))
        self._write(stage=PlanStage.LAUNCHED, runs=runs, replans=len(runs) - 1)

    def _next_run(self) -> str:
        """Return the id of the next run of the plan: that of one which was not begun, if this was interrupted."""
        runs = self.plan.runs
        if runs and not self.runtime.files(runs[-1]).launch.exists():
            return runs[-1]
        return f"{self.plan.id}-{len(runs) + 1}" if runs else self.plan.id

    def _continue_run(self) -> str:
        """Return what is to be launched of a plan that was approved: the graph that was not begun, or a mended one."""
        from garrison.run.status import Status, read_run_state

        run = self.plan.runs[-1]
        if not self.runtime.files(run).launch.exists():
            return self.plans.read_graph(self.plan.id)
        state = read_run_state(self.runtime, run)
        if state.status == Status.FAILED and self._can_mend():
            return self._mend(state)
        if state.status == Status.NEW and self.runtime.store.read(Identity, launcher_key(run)) is None:
            self.created = self.runtime.launch(run)
            return ""
        print_message(f"plan {self.plan.id} has the run {run}, which is {state.status}; `garrison status {run}` shows "
                      "it")
        return ""

    @property
    def _may_mend(self) -> bool:
        """Return whether the plan is mended if its next, or latest, run fails."""
        return self.plan.mends and self.plan.replans < self.config.replans

    def _can_mend(self) -> bool:
        """Return whether a plan whose run has failed is mended: what its nodes have done is on the target then."""
        return self._may_mend and bool(self.plan.runs) and self.runtime.launch(self.plan.runs[-1]).land == LAND_NODE

    def _mend(self, state: RunState) -> str:
        """Return the graph that takes the place of one whose run has failed; '' if the user does not want it."""
        # as it was launched: an interrupted mending may have written the plan's own already
        launched = self.runtime.files(self.plan.runs[-1]).launched_graph.read_text(encoding="utf-8")
        graph = parse(launched, self.plan.id)
        past = past_of(state, graph)
        if not past.failed:
            return ""
        left = self._left()
        if left is not None and left < 0.01:
            print_message(f"nothing is left of the ${self.plan.approved:g} that were approved: the plan is not mended")
            return ""
        run = self.plan.runs[-1]
        if self.plan.mended == run:  # it waits for approval already
            mended = parse(self.plans.read_graph(self.plan.id), self.plan.id)
        else:
            # The graph before the mark: killed in between, the planner is asked once more. The other way round, the
            # graph that failed would be shown as its own successor.
            mended = self._propose_instead(graph, past, state)
            self.plans.write_graph(self.plan.id, to_dot(mended))
            self._write(mended=run)
        return self._approve(mended)

    def _propose_instead(self, graph: Graph, past: Past, state: RunState) -> Graph:
        """Return the graph in which the planner's successors take the place of what failed, within the budget."""
        print_message(f"{', '.join(sorted(past.failed))} failed: the planner looks for another way "
                      f"({self.plan.replans + 1} of {self.config.replans})")
        base = self.runtime.launch(self.plan.runs[-1]).base
        self._write(commit=Git(Path(self.plan.repo), home=self.runtime.home).branch_tip(base) or self.plan.commit)
        labels = {name: node.label for name, node in graph.nodes.items()}
        planner = self._planner()
        try:
            found = planner.propose(prompts.mending(
                self.plan.goal, [(name, labels[name]) for name in sorted(past.landed)],
                [(name, labels[name], state.nodes[name].reason) for name in sorted(past.failed)]),
                lambda proposal: plan_graph.find_errors(plan_graph.mend(graph, proposal, past)), past)
        finally:
            self.plan = planner.plan
        self._write(notes=found.notes)
        return self._within(plan_graph.mend(graph, found.proposal, past))

    def _left(self) -> float | None:
        """Return the US dollars that are left of the first approval; None for no limit."""
        if self.plan.approved is None:
            return None
        spent = sum(spent_by(self.runtime.home, run) for run in self.plan.runs)
        return self.plan.approved - spent - max(0.0, self.plans.spent(self.plan.id) - self.plan.planned)

    def _within(self, graph: Graph) -> Graph:
        """Return a graph whose nodes may spend no more than what is left of the first approval."""
        most, left = self._most(graph), self._left()
        return graph if left is None or (most is not None and most <= left) else plan_graph.share_budget(graph, left)


def _errors_of(text: str, source: str) -> list[str]:
    """Return why a launch would refuse a graph, a line for each reason. Pure."""
    try:
        return plan_graph.find_errors(parse(text, source))
    except GarrisonError as error:
        return [str(error)]


def past_of(state: RunState, graph: Graph) -> Past:
    """Return what a run has come to, as a planner that mends it needs to know. Pure."""
    nodes = {name: state.nodes[name].status for name, node in graph.nodes.items()
             if node.handler == "codergen" and name in state.nodes}
    landed = frozenset(name for name, status in nodes.items() if status == "validated" and name != CHECK) | frozenset(
        name for name, node in graph.nodes.items() if node.attrs.get("status"))
    failed = frozenset(name for name, status in nodes.items() if status == "failed")
    return replace(NO_PAST, landed=landed, failed=failed, open=frozenset(nodes) - landed - failed - {CHECK})


def _list(plans: Plans, *, as_json: bool) -> None:
    found = plans.list()
    if as_json:
        print_json(found)
        return
    print_table(("plan", "stage", "goal", "run", "cost"), [
        (each.id, each.stage, each.goal.partition("\n")[0][:60], each.runs[-1] if each.runs else "",
         f"${spent:.2f}" if (spent := plans.spent(each.id)) else "") for each in found],
        "no plans yet; `garrison plan GOAL` makes one")
