"""`garrison plan`: turn a goal into tasks that you approve, and a run that does them.

Until you approve, only the planner runs. It submits a proposal (`plan/proposal.py`); you approve a graph
(`plan/graph.py`), which is launched like any other. Each step is recorded in the home before the next one starts, and
the run has the plan's id, so that continuing a plan does not start a second run.
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
    ('garrison plan "move the settings to TOML and migrate old ones"', "shows the tasks, and asks before they start"),
    ('garrison plan "split the parser" --out split.dot', "keeps the plan as a graph: edit it, then `garrison launch`"),
    ("garrison plan --continue split-the-parser-3fa9 --yes", "approves a waiting plan and runs it"),
))
@click.argument("words", nargs=-1, metavar="GOAL...|-")
@click.option("--file", "file", metavar="FILE", type=click.Path(path_type=Path),
              help="File with the goal, for a long one; `-` reads it from standard input.")
@click.option("--issue", type=click.IntRange(1), metavar="N", help="Take the goal from an issue of the forge.")
@click.option("--answer", multiple=True, metavar="TEXT",
              help="Answer to an open question of the plan (repeatable, in order).")
@click.option("--planner", metavar="NAME",
              help="Agent that plans (default: [plan] agent, else the one that does tasks).")
@click.option("--command", metavar="CMD", help="Command that plans instead of an agent and prints the plan as JSON.")
@click.option("--check", metavar="CMD", help="Command that checks the goal at the end (default: an agent judges it).")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path),
              help="Write the plan as a graph for `garrison launch` without starting it.")
@click.option("--edit", is_flag=True, help="Edit the plan in your EDITOR before it is shown.")
@click.option("--graph", metavar="FILE", type=click.Path(path_type=Path),
              help="With --continue: use and show your edited plan in FILE (`-`: standard input).")
@click.option("--no-check", is_flag=True,
              help="Leave out the check of a goal that is one task, like `garrison run`.")
@click.option("--yes", is_flag=True, help="Start without asking, within the shown budget.")
@click.option("--continue", "again", metavar="PLAN", help="Continue a plan that was interrupted, has open questions, "
                                                          "waits for approval, or whose run has failed.")
@click.option("--list", "shows_all", is_flag=True, help="List the plans of the home.")
@launch_options
def plan(words: tuple[str, ...], file: Path | None, issue: int | None, answer: tuple[str, ...], planner: str | None,
         command: str | None, check: str | None, out: Path | None, graph: Path | None, again: str | None,
         home: str | None, target_dir: Path | None, agent: str | None, *, edit: bool, no_check: bool, yes: bool,
         shows_all: bool, detach: bool, dry_run: bool, serve: bool, as_json: bool, **options: Any) -> int | None:
    """Have an agent divide GOAL into tasks for the repository you are in; run them once you approve.

    The planner reads a copy of the last commit and cannot change anything. The plan is shown as a table with its
    budget. Exit code 3 if it waits for your answers or approval and nobody can be asked here.
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
            raise Refused(f"plan {made.id} is for an issue: `garrison take` with its number and --plan continues it")
        made = plans.write(replace(made, check=check or made.check, agent=agent or made.agent))
        given = "" if graph is None else read_text(graph)
    else:
        given = ""
        if graph is not None:
            raise UsageError("--graph needs --continue PLAN; `garrison launch FILE` runs a graph without a plan")
        here = target_dir or Path.cwd()
        goal = read_task(words, file, "goal") if issue is None else _read_issue(
            runtime, validate_repository(here), issue, options["base"])
        made = plans.begin(_new(runtime, here, goal, planner, command, check, agent,
                                base=options["base"]))
    # a dry run does not ask, since it starts nothing
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
    """Return the graph of a goal if the user approves it in this terminal, else ''.

    Continues an interrupted plan of the same run. Refused if nobody can be asked.

    Args:
        run: id of the caller's run for it.
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
    """Return the record of a new plan; Refused or UsageError without a planner or an agent."""
    if planner and command:
        raise UsageError("pass either --planner or --command")
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
        raise Refused(f"{target} has no commit yet for a planner to read; commit first")
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
    """Work on one plan in this process, which has locked it."""

    def __init__(self, runtime: Runtime, plans: Plans, plan: PlanRecord, answers: Sequence[str], *, yes: bool,
                 edit: bool, as_json: bool, options: dict[str, Any], no_check: bool = False) -> None:
        self.runtime, self.plans, self.plan, self.answers = runtime, plans, plan, list(answers)
        self.yes, self.edit, self.as_json, self.options = yes, edit, as_json, options
        self.no_check = no_check
        self.config = read_config(runtime.home).plan()
        self.code = 0
        """Exit code if nothing is launched."""
        self.created: Launch | None = None
        """Run that was created but not started."""

    @property
    def can_ask(self) -> bool:
        return sys.stdin.isatty() and sys.stderr.isatty() and not self.as_json

    def _write(self, **changes: Any) -> None:
        self.plan = self.plans.write(replace(self.plan, **changes))

    # ---- until approval

    def to_launch(self, out: Path | None) -> str:
        """Return the approved graph; '' if nothing is to be launched. OpenQuestions, Refused."""
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
        """Replace the plan's graph by the user's edited one; Refused if the plan has started, or it cannot run."""
        if self.plan.runs:
            raise Refused(f"plan {self.plan.id} has started; `garrison edit NODE` changes unstarted nodes")
        self.plans.read_graph(self.plan.id)
        if errors := _errors_of(text, "the graph"):
            raise Refused(f"{errors[0]}; the plan is unchanged")
        self.plans.write_graph(self.plan.id, text)
        self._write(notes=())

    def _propose(self) -> None:
        """Get a proposal from the planner, relay its questions, and keep the resulting graph."""
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
        """Return the user's answer to a question of the planner; None if nobody can be asked."""
        if self.answers:
            return self.answers.pop(0)
        if not self.can_ask:
            return None
        print_message(f"the planner asks: {question}")
        try:
            return ask("your answer: ").strip() or "Decide yourself."
        except EOFError:
            return None

    def _settle_questions(self) -> None:
        """Have the user answer open questions; OpenQuestions if that is impossible."""
        while self.plan.questions:
            answer = self._ask(self.plan.questions[0])
            if answer is None:
                raise OpenQuestions(self.plan.questions)
            first, *rest = self.plan.questions
            self._write(questions=tuple(rest), answers=(*self.plan.answers, PlanAnswer(first, answer)))
        if self.plan.stage is PlanStage.ASKED:
            self._write(stage=PlanStage.PLANNING)

    def show_questions(self, questions: Sequence[str]) -> None:
        """Print open questions, and how to answer them."""
        self._write(stage=PlanStage.ASKED, questions=tuple(questions))
        if self.as_json:
            print_json({"plan": self.plan.id, "stage": self.plan.stage, "questions": list(questions)})
            return
        for number, question in enumerate(questions, 1):
            print_message(f"question {number}: {question}")
        answers = " ".join(["--answer TEXT"] * len(questions))
        print_message(f"nothing was started; answer with `garrison plan --continue {self.plan.id} {answers}`")

    def _edit(self, text: str) -> str:
        """Return the text from the user's editor once a launch would accept it."""
        editor = self.runtime.environ.get("VISUAL") or self.runtime.environ.get("EDITOR") or "vi"
        with TemporaryDirectory(prefix="garrison-plan-") as folder:
            path = Path(folder, f"{self.plan.id}.dot")
            path.write_text(text)
            while True:
                if subprocess.run([*shlex.split(editor), str(path)], check=False, env=dict(os.environ)).returncode:
                    raise Refused(f"{editor} failed; the plan is unchanged")
                try:
                    errors = _errors_of(edited := path.read_text(encoding="utf-8"), path.name)
                except UnicodeDecodeError as error:
                    errors = [str(error)]
                if not errors:
                    break
                for line in errors:
                    print_message(line)
                if not self.can_ask or ask("edit it again? [Y/n] ").strip().casefold() in ("n", "no"):
                    raise Refused("the edited graph cannot be run; the plan is unchanged")
        self.plans.write_graph(self.plan.id, edited)
        self._write(notes=())
        return edited

    # ---- approval

    def _approve(self, graph: Graph) -> str:
        """Show the plan and ask whether to start it; return its text, '' if not."""
        most = self._bound(graph)
        self._show(graph, most)
        proposal = plan_graph.read_plan(graph)
        is_one = len(proposal.tasks) == 1 and CHECK in graph.nodes and not self.plan.runs
        if is_one and not self.yes:
            print_message("this goal is a single task: `garrison run` does it without a check of the goal")
        while not self.yes:
            if not self.can_ask:
                print_message(f"nothing was started; `garrison plan --continue {self.plan.id} --yes` starts it, with "
                              + ("--no-check as `garrison run` would, with " if is_one else "")
                              + "--edit you edit it first, with --out FILE you save it as a graph")
                self.code = WAITING
                return ""
            try:
                said = ask(f"start? [y]es, {'[r]un without the check, ' if is_one else ''}[e]dit, [N]o: "
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
        if self.plan.runs and self.plan.mends:  # the budget of the first approval counts
            self._write(stage=PlanStage.PROPOSED)
        else:
            self._write(stage=PlanStage.PROPOSED, approved=most, planned=self.plans.spent(self.plan.id))
        return to_dot(graph)

    def _without_check(self, graph: Graph) -> Graph:
        """Return the graph of a single task as in `garrison run`; Refused for several tasks."""
        if (count := len(plan_graph.read_plan(graph).tasks)) != 1:
            raise Refused(f"--no-check is for a goal that is one task, and this is {count}; --edit can remove the node "
                          f"{CHECK}")
        return plan_graph.leave_out_check(graph) if CHECK in graph.nodes else graph

    def _most(self, graph: Graph) -> float | None:
        """Return the total budget of a graph's nodes in US dollars; None if one has no limit."""
        limits = [registry.limits_of(str(node.attrs.get("agent") or self.plan.agent), node.id, node.attrs,
                                     self.runtime.home).node for node in plan_graph.list_open(graph)]
        return None if None in limits else sum(limit for limit in limits if limit is not None)

    def _bound(self, graph: Graph) -> float | None:
        """Return the US dollars that the run of a graph may spend: the nodes' total, bounded by the run's limit."""
        whole = self.options.get("budget_run")
        bounds = [self._most(graph), float(whole) if whole not in (None, "none") else None,
                  self._left() if self.plan.mends and self.plan.runs else None]
        return min((bound for bound in bounds if bound is not None), default=None)

    def _show(self, graph: Graph, most: float | None) -> None:
        proposal = plan_graph.read_plan(graph)
        rows = self._rows(proposal, graph)
        if self.as_json and self.yes:  # print only the run
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
        """Create the run of an approved graph; None if it is only checked."""
        from garrison.cli import launch as launching  # imported late: not needed to show a plan

        # Record before creating: after a kill in between, --continue finds the id of a missing run and creates it. The
        # other way round it would create a second run of the same tasks.
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
        """Follow a run, and the run that repairs its failures; return the last one's exit code."""
        from garrison.cli.launch import follow_run

        print_message("Ctrl-C leaves it running in the background")
        while True:
            code = follow_run(self.runtime, created, as_json=self.as_json)
            runs = self.plans.read(self.plan.id).runs
            if code == INTERRUPTED or runs[-1] == created.run_id or not self.runtime.files(runs[-1]).launch.exists():
                return code
            created = self.runtime.launch(runs[-1])

    def _request(self, run: str, text: str) -> LaunchRequest:
        """Return the request of the plan's next launch, with the first one's options as defaults."""
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
        """Record the run of an approved plan before it starts; each one after the first repairs the plan."""
        runs = tuple(dict.fromkeys((*self.plan.runs, run)))
        self._write(stage=PlanStage.LAUNCHED, runs=runs, replans=len(runs) - 1)

    def _next_run(self) -> str:
        """Return the id of the plan's next run: that of an unstarted one after an interruption."""
        runs = self.plan.runs
        if runs and not self.runtime.files(runs[-1]).launch.exists():
            return runs[-1]
        return f"{self.plan.id}-{len(runs) + 1}" if runs else self.plan.id

    def _continue_run(self) -> str:
        """Return the graph to launch for an approved plan: the unstarted one, or a repaired one."""
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
        """Return whether the plan is repaired if its next, or latest, run fails."""
        return self.plan.mends and self.plan.replans < self.config.replans

    def _can_mend(self) -> bool:
        """Return whether a plan with a failed run can be repaired, since its nodes' work is on the target."""
        return self._may_mend and bool(self.plan.runs) and self.runtime.launch(self.plan.runs[-1]).land == LAND_NODE

    def _mend(self, state: RunState) -> str:
        """Return the successor of a graph whose run has failed; '' if the user declines it."""
        # as launched: an interrupted repair may already have replaced the plan's graph
        launched = self.runtime.files(self.plan.runs[-1]).launched_graph.read_text(encoding="utf-8")
        graph = parse(launched, self.plan.id)
        past = past_of(state, graph)
        if not past.failed:
            return ""
        left = self._left()
        if left is not None and left < 0.01:
            print_message(f"nothing is left of the approved ${self.plan.approved:g}: the plan is not repaired")
            return ""
        run = self.plan.runs[-1]
        if self.plan.mended == run:  # it already waits for approval
            mended = parse(self.plans.read_graph(self.plan.id), self.plan.id)
        else:
            # The graph before the mark: after a kill in between, the planner is asked again. The other way round, the
            # failed graph would be shown as its own successor.
            mended = self._propose_instead(graph, past, state)
            self.plans.write_graph(self.plan.id, to_dot(mended))
            self._write(mended=run)
        return self._approve(mended)

    def _propose_instead(self, graph: Graph, past: Past, state: RunState) -> Graph:
        """Return the graph with the planner's replacements for failed tasks, within the budget."""
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
        """Return the US dollars left of the first approval; None for no limit."""
        if self.plan.approved is None:
            return None
        spent = sum(spent_by(self.runtime.home, run) for run in self.plan.runs)
        return self.plan.approved - spent - max(0.0, self.plans.spent(self.plan.id) - self.plan.planned)

    def _within(self, graph: Graph) -> Graph:
        """Return a graph whose nodes may only spend the rest of the first approval."""
        most, left = self._most(graph), self._left()
        return graph if left is None or (most is not None and most <= left) else plan_graph.share_budget(graph, left)


def _errors_of(text: str, source: str) -> list[str]:
    """Return the reasons for which a launch would refuse a graph, one per line. Pure."""
    try:
        return plan_graph.find_errors(parse(text, source))
    except GarrisonError as error:
        return [str(error)]


def past_of(state: RunState, graph: Graph) -> Past:
    """Return the results of a run, for a planner that repairs it. Pure."""
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
        "no plans yet; `garrison plan GOAL` creates one")
