"""Tools of the MCP server: read runs as `garrison status` does, and run garrison's own commands.

A client's model is trusted no more than any agent: approvals, reviews and irreversible answers are given on the page or
in a terminal, unless the server was started with `--allow decide`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from garrison.ends import WaitKind
from garrison.errors import NotFound, Refused, UsageError
from garrison.launch.own_command import failure_of, last_message, run_command
from garrison.mcp import run_requests
from garrison.mcp.run_requests import RequestedRun
from garrison.notify.devices import read_serving
from garrison.processes.runtime import Runtime
from garrison.records import journal
from garrison.records.events import RunChanged
from garrison.records.names import check_node, check_run
from garrison.records.run import Launch, RunFiles, list_runs, load
from garrison.run.state import EXIT
from garrison.run.status import read_run_state
from garrison.system.clock import wait_until
from garrison.system.terminal_text import clean
from garrison.values import Value, asdict
from garrison.views.run_view import RunInFull, RunReader
from garrison.views.waits import PersonWait, ShownQuestion, describe_settling

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS, RESUME_SECONDS = 120.0, 15.0
"""Time limits of a command, and of a resumed run until its journal shows it."""
LONGEST = 60_000
"""Characters of a task, a list of tasks or a graph."""
_OPTIONS = {"agent": "agent", "gate": "gate", "acceptance": "acceptance", "budget": "budget-run"}
"""Argument of `run` → option of the command."""
SHOWN = 30_000
"""Characters of a diff or log."""


class SeenNode(Value, omit_defaults=True):
    """A node as a client sees it."""

    node: str
    status: str
    doing: str = ""


class SeenWait(Value, omit_defaults=True):
    """Something that waits for the user."""

    key: str
    """Node, attempt and question."""
    kind: str
    text: str
    how: str
    """How to settle it."""
    node: str = ""
    options: list[str] = msgspec.field(default_factory=list)
    question: str = ""
    """Id of the question that an answer through the client settles; '' if the client cannot settle it."""
    url: str = ""
    is_review: bool = False
    """True for work that waits for approval."""
    attempt: int = 0

    @property
    def where(self) -> str:
        """Return how to settle it, and the URL of the page for it, if there is one."""
        return f"{self.how} or {self.url}" if self.url else self.how


class SeenRun(Value, omit_defaults=True):
    """A run as a client sees it."""

    run: str
    status: str
    progress: str
    since: str
    """What `wait` takes: a digest of all other fields."""
    is_over: bool
    reason: str = ""
    next: str = ""
    nodes: list[SeenNode] = msgspec.field(default_factory=list)
    waits: list[SeenWait] = msgspec.field(default_factory=list)
    usd: float | None = None

    def wait_of(self, node: str) -> SeenWait | None:
        return next((wait for wait in self.waits if wait.node == node), None)


class ClientRuns:
    """The runs of a home, for the repositories that the server was started for."""

    def __init__(self, home: Path, repos: Sequence[Path], *, may_decide: bool = False, inside: str = "") -> None:
        self.home, self.repos, self.may_decide, self.inside = home, tuple(map(str, repos)), may_decide, inside
        self._reader = RunReader(home, os.environ, with_costs=True)

    # ---- start

    def start(self, given: Mapping[str, str], request: str) -> str:
        """Start what a client asks for; return the run's id. A repeated request returns its run.

        Args:
            given: `task`, `tasks` or `graph`, and `agent`, `gate`, `acceptance`, `budget`, `repo`; empty for none.
        """
        self._check(request)
        kinds = [kind for kind in ("task", "tasks", "graph") if given.get(kind, "").strip()]
        if len(kinds) != 1:
            raise UsageError("give one of task, tasks and graph")
        text, repo = given[kinds[0]], self._repo(given.get("repo", ""))
        if len(text) > LONGEST:
            raise UsageError(f"{kinds[0]} has more than {LONGEST} characters")
        options = [f"--{option}={value}" for name, option in _OPTIONS.items() if (value := given.get(name, "").strip())]
        if kinds[0] == "graph" and given.get("acceptance"):
            raise UsageError("a graph sets the acceptance of its nodes itself; give acceptance with task or tasks only")
        words = {"task": ["run", *options, "--file=-"], "tasks": ["run", *options, "--tasks=-", "--yes"],
                 "graph": ["launch", *options, "/dev/stdin"]}[kinds[0]]
        first_line = next((line for line in text.splitlines() if line.strip()), "")
        name = first_line if kinds[0] == "task" else kinds[0]
        return run_requests.start(self.home, request, [*words, f"--target-dir={repo}"], text, repo, name).run

    def _check(self, request: str) -> None:
        if self.inside:
            raise Refused(f"a run cannot start another run: this server runs inside {self.inside}")
        if not request:
            raise UsageError("give request_id, such as a UUID: the same id never starts a second run")

    def plan(self, given: Mapping[str, str], answers: Sequence[str], request: str, *, approve: bool) -> RequestedRun:
        """Have a goal planned, or continue a plan; return the request, which `find` shows until it is over.

        Args:
            given: `goal` or `plan`, and `planner`, `agent`, `check`, `gate`, `repo`; empty for none.
            answers: answers to the plan's open questions.
            approve: start what is planned; Refused unless the server may decide.
        """
        self._check(request)
        goal, plan = given.get("goal", "").strip(), given.get("plan", "").strip()
        if bool(goal) == bool(plan) or len(goal) > LONGEST:
            raise UsageError(f"give a goal of at most {LONGEST} characters, or the id of a plan")
        if approve and not self.may_decide:
            raise Refused(f"this server may not decide (--allow decide); `garrison plan --continue {plan or 'PLAN'} "
                          "--yes` starts it")
        repo = self._repo(given.get("repo", ""))
        options = [f"--{name}={value}" for name in ("planner", "agent", "check", "gate")
                   if (value := given.get(name, "").strip())]
        of = ["--file=-", f"--target-dir={repo}"] if goal else [f"--continue={plan}"]
        words = [run_requests.PLAN, *of, *options, *(f"--answer={each}" for each in answers),
                 *(["--yes"] if approve else [])]
        name = goal.splitlines()[0] if goal else plan
        return run_requests.start(self.home, f"plan {request}", words, goal, repo, name)

    def find_plan(self, requested: RequestedRun) -> RequestedRun:
        """Return a request for a plan as it is now."""
        return run_requests.find(self.home, requested.run) or requested

    def _repo(self, asked: str) -> str:
        if asked and asked not in self.repos:
            raise Refused(f"this server serves {', '.join(self.repos)}; start it with --repo {asked} to add that one")
        if not self.repos:
            raise Refused("start the server in a git repository, or with --repo DIR")
        return asked or self.repos[0]

    # ---- read

    def look(self, run: str) -> SeenRun:
        """Return a run as it is now; without an id, the latest one of these repositories."""
        run = self._own(run) if run else self._latest()
        if not RunFiles(self.home, run).launch.exists():
            requested = run_requests.find(self.home, run)
            if requested is None:
                raise NotFound(f"there is no run {run}")
            problem, status = requested.problem, "failed" if requested.problem else "starting"
            return _digested(SeenRun(run, status, "", "", bool(problem), problem or "its target is being tested"))
        view = self._reader.read(run, details=True)
        assert isinstance(view, RunInFull)
        asks = any(wait.kind is WaitKind.ASKS for wait in view.waits)  # else their ids need no journal
        questions = read_run_state(Runtime.real(self.home), run).questions if asks else {}
        waits = [self._wait(run, wait, {node: each.id for node, each in questions.items()},
                            {node.node: node.attempt for node in view.nodes}) for wait in view.waits]
        return _digested(SeenRun(
            run, view.status, view.progress, "", view.status in EXIT, view.reason, view.hint,
            [SeenNode(node.node, node.state, node.doing) for node in view.nodes], waits, view.usd))

    def _own(self, run: str) -> str:
        """Return a run's id; Refused if the server does not serve its repository."""
        launch = load(Launch, RunFiles(self.home, check_run(run)).launch)
        if launch is not None and self.repos and launch.repo not in self.repos:
            raise Refused(f"run {run} belongs to {launch.repo}; this server serves {', '.join(self.repos)} (--repo)")
        return run

    def _latest(self) -> str:
        """Return the run that started last, or is about to."""
        waiting = [each for each in run_requests.unfinished(self.home) if each[1].repo in self.repos or not self.repos]
        found = max(waiting, key=lambda each: each[0], default=None)
        for run in reversed(list_runs(self.home)):
            if self._reader.read(run, details=False).repo in self.repos or not self.repos:
                is_last = found is None or found[0] <= RunFiles(self.home, run).launch.stat().st_mtime
                return run if is_last or found is None else found[1].run
        if found is None:
            raise NotFound("there is no run yet; start one with `run`")
        return found[1].run

    def _wait(self, run: str, wait: PersonWait, questions: Mapping[str, str], attempts: Mapping[str, int]) -> SeenWait:
        gate, question = wait.gate, ""
        if wait.kind is WaitKind.ASKS:
            question = questions.get(wait.node, "")
        elif gate is not None and not gate.is_review and not is_final(gate):
            question = gate.gate
        serving = read_serving(self.home)
        url = f"{serving.origin}/?run={run}&node={wait.node}" if serving is not None and not question else ""
        text = gate.question if gate is not None else wait.text
        # With the attempt: the same question in a later attempt is a new one, and the client is asked again.
        key = f"{wait.node}/{attempts.get(wait.node, 0)}/{question or wait.kind}"
        return SeenWait(key, wait.kind, clean(text), describe_settling(wait, run), wait.node,
                        [choice.label for choice in gate.choices] if gate is not None else [], question, url,
                        gate is not None and gate.is_review, attempts.get(wait.node, 0))

    # ---- act

    def answer(self, run: str, node: str, text: str, by: str, question: str = "") -> str:
        """Answer a question; irreversible answers and approvals are refused here."""
        found = self.look(run).wait_of(node)
        if found is not None and not found.question and not self.may_decide:
            raise Refused(f"{node} waits for a decision that cannot be made here: {found.where}")
        chosen = question or (found.question if found is not None else "")
        to = [f"--question={chosen}"] if chosen else []
        return self.command(["answer", f"--run={run}", f"--by={by}", *to, "--", check_node(node), text])

    def decide(self, run: str, node: str, choice: str, reason: str, by: str) -> str:
        """Approve or reject work, or answer a question, if the server may."""
        if not self.may_decide:
            found = self.look(run).wait_of(node)
            how = "nothing waits there" if found is None else found.where
            raise Refused(f"this server may not decide (--allow decide); {how}")
        of = f"--run={self._own(run)}"
        if choice in ("approve", "reject"):
            return self.command(["review", of, f"--{choice}", *([f"--reason={reason}"] if reason else []),
                                 "--", check_node(node)])
        return self.command(["answer", of, f"--by={by}", "--", check_node(node), choice])

    def control(self, run: str, action: str, node: str = "") -> str:
        """Stop or resume a run, or put a node's work into the queue again."""
        words = {"stop": ["stop", self._own(run)], "resume": ["resume", run, "--detach", "--json"],
                 "retry": ["agents", "retry", f"--run={run}", "--", check_node(node or "_")]}.get(action)
        if words is None or (action == "retry" and not node):
            raise UsageError("action should be stop, resume, or retry with a node")
        # A run that is still in its pre-flight has no launcher to stop: its worker stops it once there is one.
        if action == "stop" and run_requests.cancel(self.home, run):
            return f"run {run} will be stopped as soon as it has started"
        # Counted before the command: a run that ends again at once must not be waited for.
        ends = self._ends(run) if action == "resume" else 0
        told = self.command(words)
        if action == "resume":  # the launcher is there before the journal says so, and until then the run looks ended
            wait_until(lambda: not self.look(run).is_over or self._ends(run) > ends, RESUME_SECONDS)
        return told

    def _ends(self, run: str) -> int:
        """Return the number of the journal's last record that changed the run's status, 0 for none."""
        entries = journal.read_all(RunFiles(self.home, run).journal)
        return max((entry.seq for entry in entries if entry.kind == RunChanged.kind), default=0)

    def tell(self, run: str, node: str, text: str) -> str:
        """Send a message to a node's session for its next turn."""
        return self.command(["tell", f"--run={self._own(run)}", "--", check_node(node), text])

    def why(self, run: str, node: str) -> str:
        """Explain what happened to a node, or to a run."""
        of = [f"--run={self._own(run)}", "--", check_node(node)] if node else [self._own(run)]
        return self.command(["why", *of], whole=True)

    def show(self, run: str, node: str, what: str) -> str:
        """Return the diff of a node's work, or the end of its agent's output."""
        if what not in ("diff", "log"):
            raise UsageError("what should be diff or log")
        words = ["review"] if what == "diff" else ["logs", "--tail=200"]
        return self.command([*words, f"--run={self._own(run)}", "--", check_node(node)], whole=True)

    def command(self, words: Sequence[str], *, whole: bool = False) -> str:
        """Run one of garrison's commands; return its last line, or its whole output; Refused if it failed."""
        done = run_command(self.home, words, SECONDS, cwd=str(self.home))
        if not done.ok:
            raise Refused(failure_of(done.code, done.err, done.out, done.why))
        if not whole:
            return last_message(done.err, done.out)
        text = "\n".join(map(clean, done.out.splitlines()))
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}\n… ({len(text) - SHOWN} characters more)"


def is_final(gate: ShownQuestion) -> bool:
    """Return whether a gate has an irreversible answer."""
    return any(choice.irreversible for choice in gate.choices)


def _digested(seen: SeenRun) -> SeenRun:
    # Without what nodes are doing and have cost: both change every second, and `wait` would return as often.
    told = {**asdict(seen), "nodes": [[node.node, node.status] for node in seen.nodes], "usd": None}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode(errors="surrogatepass")).hexdigest()
    return msgspec.structs.replace(seen, since=digest[:12])

