"""Start work from the page: a task, a list of tasks, an issue of the forge, or a run again.

Each is one of garrison's own commands with `--detach`, so that the page can start nothing that the terminal cannot. A
command tests the target first, which takes as long as its gate: it runs in the background, and the page polls its
progress. Only repositories that the home knows, or in which the server was started, are offered.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from garrison.agents.registry import installed_agents
from garrison.errors import GarrisonError, NotFound, RecordError, Refused, UsageError
from garrison.launch.own_command import PlanRow, failure_of, program, runs_in
from garrison.pipeline.lint import errors, lint
from garrison.pipeline.parser import parse
from garrison.records.names import check_run
from garrison.records.record import from_data
from garrison.records.run import RunFiles, list_runs, load_launch
from garrison.run.request import read_defaults
from garrison.system.git import validate_repository
from garrison.system.terminal_text import clean
from garrison.values import Value, replace
from garrison.web.actions import text_of

REPOSITORIES = 20
"""Most repositories that are offered."""
PLAN_WAITS = 3
"""Exit code of a plan that waits for the user."""
KEPT = 50
"""Starts that are remembered; the oldest that have ended are forgotten."""
SECONDS = 3600.0
"""Time limit of a start: it may run a set-up and a gate."""
LONGEST = 60_000
"""Characters of a task or a list of tasks."""


class RunDefaults(Value):
    """A repository, and the defaults of a run in it."""

    repo: str
    agent: str = ""
    gate: str = ""
    problem: str = ""
    """Why nothing can be started in it; '' if it can."""


class StartOffer(Value):
    """What can be started."""

    places: tuple[RunDefaults, ...]
    agents: tuple[str, ...]


class OfferedPlan(Value):
    """A plan that waits for approval, or for answers to its questions."""

    plan: str
    tasks: tuple[PlanRow, ...] = ()
    questions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    most_usd: float | None = None
    """US dollars that it may spend at most; None for no limit."""
    graph: str = ""
    """The plan as DOT."""
    one_task: bool = False


class GraphFindings(Value):
    """What is wrong with a graph."""

    errors: tuple[str, ...]
    """Why a launch would refuse it; empty if it can run."""
    warnings: tuple[str, ...] = ()


class Beginning(Value):
    """A command that starts a run: its progress and its result."""

    id: str
    command: str
    """As typed in a terminal."""
    line: str = ""
    """The last line that it printed."""
    run: str = ""
    """The run that it started."""
    problem: str = ""
    """Why it started none."""
    plan: OfferedPlan | None = None
    """The plan that it made, which waits for the user."""

    @property
    def is_over(self) -> bool:
        return bool(self.run or self.problem or self.plan)


class CommandLine(Value):
    """A command's words, what it reads from its standard input, and where it works."""

    words: tuple[str, ...]
    repo: str
    text: str = ""

    @property
    def command(self) -> str:
        """Return the command as the user would type it, with the task in words."""
        words = ["garrison", *(word for word in self.words if word not in ("--json", "--detach", "--file=-"))]
        if "--file=-" not in self.words:
            return shlex.join(words)
        return shlex.join([*words, *(() if "--" in words else ("--",)), self.text])


def read_offer(home: Path, here: Path | None, path: str) -> StartOffer:
    """Return what can be started in the repositories of a home's latest runs, and in the one that is `here`.

    Args:
        here: None if the folder in which the server was started is gone.
        path: the PATH on which programs of agents are looked for.
    """
    seen, found = set[Path](), dict[Path, None]()
    for repo in chain([here] if here is not None else [], _repositories_of(home)):
        if len(found) == REPOSITORIES:
            break
        if repo not in seen:
            seen.add(repo)
            with suppress(UsageError, Refused):  # gone since, or no repository
                found.setdefault(validate_repository(repo))
    return StartOffer(tuple(_place_of(home, repo) for repo in found), tuple(installed_agents(home, path)))


def _repositories_of(home: Path) -> Iterator[Path]:
    """Yield the repository of each run, the latest first; records are read only as far as they are asked for."""
    for run in reversed(list_runs(home)):
        with suppress(RecordError):  # doctor's
            if launch := load_launch(RunFiles(home, run)):
                yield Path(launch.repo)


def _place_of(home: Path, repo: Path) -> RunDefaults:
    try:
        config = read_defaults(home, repo)
    except UsageError as error:
        return RunDefaults(str(repo), problem=str(error))
    return RunDefaults(str(repo), config.agent or "", config.gate or "")


# ------------------------------------------------------------------------------------------------------------- orders


def _task(body: Mapping[str, object]) -> tuple[list[str], str]:
    return ["run", *_options(body, "command", "budget"), "--file=-"], _long_text(body)


def _tasks(body: Mapping[str, object]) -> tuple[list[str], str]:
    return ["run", "--tasks=-", "--yes"], _long_text(body)


def _issue(body: Mapping[str, object]) -> tuple[list[str], str]:
    number = text_of(body, "text", required=True).strip().removeprefix("#")
    if not number.isdecimal():
        raise UsageError(f"{number!r:.40} is not an issue number")
    return ["take", number], ""


def _goal(body: Mapping[str, object]) -> tuple[list[str], str]:
    return ["plan", "--file=-"], _long_text(body)


def _plan(body: Mapping[str, object]) -> tuple[list[str], str]:
    """Return the command that shows a plan, answers its questions, uses its edited graph, or starts it."""
    answers = body.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(each, str) and each.strip() for each in answers):
        raise UsageError("answer each question of the plan")
    text = _long_text(body) if body.get("text") else ""
    return ["plan", f"--continue={check_run(text_of(body, 'plan', required=True))}",
            *(f"--answer={each}" for each in answers),
            *(["--graph=-"] if text else [] if answers or body.get("look") is True else ["--yes"]),
            *(["--no-check"] if body.get("check") is False else [])], text


KINDS: Mapping[str, Callable[[Mapping[str, object]], tuple[list[str], str]]] = {
    "task": _task, "tasks": _tasks, "goal": _goal, "plan": _plan, "issue": _issue}
"""What is started → the words of its command, and its standard input."""


def order_of(body: Mapping[str, object], offer: StartOffer) -> CommandLine:
    """Return the command that starts what a request asks for; UsageError if that is not offered."""
    kind, repo, agent = (text_of(body, key, required=False) for key in ("kind", "repo", "agent"))
    if kind not in KINDS:
        raise UsageError(f"pass kind, one of {', '.join(KINDS)}")
    if repo not in {place.repo for place in offer.places}:
        raise UsageError(f"{repo!r:.200} has no runs here; start its first with `garrison run` in it")
    if agent and agent not in {*offer.agents, *(place.agent for place in offer.places)}:
        raise UsageError(f"agent {agent!r:.60} is not installed here; installed: {', '.join(offer.agents) or 'none'}")
    words, text = KINDS[kind](body)
    given = [*_options(body, "agent", "gate", *(("acceptance",) if kind == "task" else ())),
             *(["--approve"] if body.get("approve") is True else [])]
    first, *rest = words
    return CommandLine((first, *given, *rest, f"--target-dir={repo}",
                        *(("--detach",) if first in ("run", "plan") else ()), "--json"), repo, text)


def order_again(home: Path, run: str) -> CommandLine:
    """Return the command that launches a run's graph again, with the options of its launch."""
    files = RunFiles(home, run)
    launch = load_launch(files)
    if launch is None or launch.adhoc or not files.graph.is_file():
        raise UsageError(f"run {run} has no graph to run again")
    given = [f"--base={launch.remote}:{launch.base}" if launch.remote else f"--base={launch.base}",
             f"--agent={launch.agent}", f"--land={launch.land}",
             f"--gate={launch.gate}" if launch.gate else "--no-gate" if launch.no_gate else "",
             f"--setup={launch.setup}" if launch.setup is not None else "", "--approve" if launch.approve else ""]
    return CommandLine(("launch", str(files.graph), f"--target-dir={launch.repo}",
                        f"--pipeline-id={launch.pipeline_id}", *filter(None, given), "--new", "--detach", "--json"),
                       launch.repo)


def order_added(run: str, body: Mapping[str, object]) -> CommandLine:
    """Return the command that adds a task to an active run."""
    options = _options(body, "after", "agent", "budget")
    return CommandLine(("add", f"--run={run}", *options, "--file=-"), "", _long_text(body))


def order_edited(run: str, node: str, body: Mapping[str, object]) -> CommandLine:
    """Return the command that changes a node which has not started: its task, its agent or its budget."""
    options, text = _options(body, "agent", "budget"), _long_text(body) if body.get("text") else ""
    return CommandLine(("edit", f"--run={run}", *options, *(["--file=-"] if text else []), "--", node), "", text)


def _options(body: Mapping[str, object], *keys: str) -> list[str]:
    return [f"--{key}={value}" for key in keys if (value := text_of(body, key, required=False).strip())]


def _long_text(body: Mapping[str, object]) -> str:
    text = body.get("text", "")
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise UsageError(f"describe the task in words, in at most {LONGEST} characters")
    return text


def lint_graph(body: Mapping[str, object]) -> GraphFindings:
    """Return the errors and warnings of a graph that is being edited. Pure."""
    try:
        found = lint(parse(_long_text(body), "the graph"))
    except GarrisonError as error:
        return GraphFindings((str(error),))
    wrong = errors(found)
    return GraphFindings(tuple(map(str, wrong)), tuple(str(each) for each in found if each not in wrong))


def plan_in(out: str) -> OfferedPlan | None:
    """Return the plan in the JSON of `garrison plan`; None if there is none."""
    try:
        return from_data(OfferedPlan, json.loads(out))
    except ValueError:
        return None


# ---------------------------------------------------------------------------------------------------------- beginnings


class Beginnings:
    """Commands in progress, and the results of the latest."""

    def __init__(self, home: Path) -> None:
        self.home, self._found, self._count = home, dict[str, Beginning](), 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, order: CommandLine) -> Beginning:
        """Start a command in the background; Refused if its repository is gone."""
        if not Path(order.repo).is_dir():
            raise Refused(f"the repository {order.repo} is gone: restore it, or choose another one")
        self._count += 1
        begun = Beginning(str(self._count), order.command)
        self._found[begun.id] = begun
        for old in [each.id for each in self._found.values() if each.is_over][:max(0, len(self._found) - KEPT)]:
            del self._found[old]
        task = asyncio.get_running_loop().create_task(self._follow(begun, order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return begun

    def look(self, name: str) -> Beginning:
        """Return the progress of a start; NotFound if it is unknown or forgotten."""
        if name not in self._found:
            raise NotFound("the server was restarted since; `garrison status` shows what was started")
        return self._found[name]

    async def close(self) -> None:
        """Detach from the commands: the runs that they started continue."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, begun: Beginning, order: CommandLine) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                code, out = await self._run(begun, order)
        except TimeoutError:
            code, out = 1, ""
        begun = self._found[begun.id]
        run = next(iter(runs_in(out)), "")
        plan = plan_in(out) if code == PLAN_WAITS else None
        problem = "" if run or plan else failure_of(code, begun.line)
        self._found[begun.id] = replace(begun, run=run, problem=problem, plan=plan)

    async def _run(self, begun: Beginning, order: CommandLine) -> tuple[int, str]:
        """Run the command to its end; return (exit code, stdout), with its lines noted as they come."""
        argv, environment = program(self.home, order.words)
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment, cwd=order.repo, start_new_session=True)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(order.text.encode("utf-8", "replace"))
        process.stdin.close()
        out = asyncio.ensure_future(process.stdout.read())  # alongside: a full pipe would stop the command
        while not process.stderr.at_eof():
            with suppress(ValueError):  # a line longer than asyncio's buffer: dropped; reading continues
                line = await process.stderr.readline()
                if told := clean(line.decode(errors="replace")).strip():
                    self._found[begun.id] = replace(begun, line=told[:500])
        return await process.wait(), (await out).decode(errors="replace")
