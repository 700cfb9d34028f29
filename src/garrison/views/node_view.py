"""Nodes of one run for views: read from records and processes, and described in words.

The words tell who has to act next. They change only on events and contain no times, so that `status --watch` on a pipe
prints one line per event. `NodeFacts` and the functions that describe it are pure.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from garrison.agents.base import NO_REPORT
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.outages import Outage, read_outage
from garrison.config import config_path
from garrison.ends import Effect, with_effect
from garrison.errors import GarrisonError
from garrison.merge.explanation import describe_changes
from garrison.merge.turns import describe_wait
from garrison.pipeline.node_status import LandingWord, lands_nothing
from garrison.records import run as run_records
from garrison.records.events import Kept
from garrison.records.failover import Failover, read_failovers
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.remote import look_remote
from garrison.records.run import Launch, Result, RunFiles, Task
from garrison.run.agent_activity import AgentActivity, is_taken_over, read_waiting
from garrison.run.agent_places import RunPlaces, read_own, record_of
from garrison.run.guardian_view import find_parked
from garrison.run.state import NodeState
from garrison.run.status import UNFINISHED
from garrison.sandbox.place import Role
from garrison.sandbox.proxy.allowed_hosts import HostRights, RefusedHost, describe_permission, refused_in_attempt
from garrison.system import machine
from garrison.system.clock import from_iso
from garrison.system.stamps import file_stamp
from garrison.system.terminal_text import shorten
from garrison.values import Value, fields_of
from garrison.views.limits import Used
from garrison.views.process_view import LatestEvidence, ProcessView, agent_evidence
from garrison.views.remote import describe_remote, hosts_cut_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.state import Pause
    from garrison.pipeline.plan import RunPlan
    from garrison.run.state import RunState
    from garrison.supervise.observer import Observer
    from garrison.views.run_model import RunModel


T = TypeVar("T")


class Parking(Value):
    """Why a node is parked, and when a probe will try it again."""

    by: str
    """`person` or `policy`."""
    why: str
    probe_at: str | None = None
    probe_in_s: float | None = None
    """None if no probe will follow."""


class Incarnations(Value):
    """Numbers of a node's latest runner and agent in this attempt, 0 before the first."""

    runner: int = 0
    agent: int = 0


class ShownNode(Value, omit_defaults=True, kw_only=True):
    """One node at one moment, for `status --json`; see `NodeState` for the journaled fields."""

    node: str
    state: str = msgspec.field(name="status")
    """Its state in one word (`state_word`), the same in every view."""
    attempt: int
    reason: str
    commit: str
    since: str
    step: str
    first: int
    kind: str
    steer: str
    landing: str
    parks: int
    moved: int
    escalated: str
    place: str
    doing: str
    parking: Parking | None = msgspec.field(name="parked")
    asks: bool
    phase: str
    """Phase of its hook."""
    agent_phase: str
    signs: LatestEvidence | None
    """Evidence of its agent's activity while that works."""
    attempts: int
    """Maximum number of attempts."""
    deaths: int
    """Deaths of its agent in this attempt."""
    incarnations: Incarnations = msgspec.field(name="lives")
    since_s: float | None
    refused_hosts: list[RefusedHost]
    """Hosts to which this attempt's programs were denied access."""
    unreported: bool = False
    """Set if its agent ended without a report, so that only its work was judged."""
    outage: Outage | None = None
    """What its agent waits for, together with all agents of its account."""
    failovers: list[Failover] = msgspec.field(default_factory=list)
    """Agents of this attempt that could not continue, each with its replacement."""
    kept: Kept | None = None
    """Work of a passing candidate."""
    candidate_of: str = ""


class NodeView(ShownNode, kw_only=True):
    """One node with fields for the other views."""

    blocked: bool = False
    """True if failed nodes block its start for good."""
    runner: ProcessView | None = None
    agent: ProcessView | None = None
    host_settings: HostRights | None = None
    """With refused hosts: the hosts allowed now."""


class FailedNode(Value):
    """Reason of a node's failure, the end of its log, and its attempt's folder."""

    node: str
    attempt: int
    reason: str
    tail: str
    folder: str


class QueueEntryView(Value):
    """Unfinished merge entry of the run; `position` counts all runs' entries, from 1."""

    position: int
    node: str
    attempt: int
    status: str
    age_s: float | None
    doing: str


class RecordReader:
    """Reads records repeatedly. `problems` lists unreadable ones since it was last emptied, each once."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._loaded: dict[Path, tuple[tuple[int, ...], object]] = {}

    def load(self, path: Path, load: Callable[[], T]) -> T | None:
        """Return the result of `load` for `path`; None if the file is missing or unreadable."""
        return self.attempt(lambda: self._load(path, load))

    def _load(self, path: Path, load: Callable[[], T]) -> T | None:
        if (stamp := file_stamp(path)) is None:
            return None
        loaded = self._loaded.get(path)
        # parse once per change: a page reads hundreds of records every second, of which a few have changed
        if loaded is None or loaded[0] != stamp:
            loaded = self._loaded[path] = (stamp, load())
        return cast("T", loaded[1])  # keyed by caller and path

    def attempt(self, read: Callable[[], T]) -> T | None:
        """Return the result of `read`; None, and a line in `problems`, if unreadable."""
        try:
            return read()
        except GarrisonError as error:
            self.report(str(error))
            return None

    def report(self, problem: str) -> None:
        """List a problem."""
        if problem not in self.problems:
            self.problems.append(problem)


class NodeReader:
    """Read the nodes of one run at one moment.

    `processes` are the run's, `busy` is the number of nodes being worked on, `plan` parses its graph (slow, so only
    when needed). `status` is set to the run's status once that is decided.
    """

    def __init__(self, records: RecordReader, observer: Observer, model: RunModel, launch: Launch,
                 processes: Sequence[ProcessView], busy: int, plan: Callable[[], RunPlan]) -> None:
        self.records, self.observer, self.model, self.launch = records, observer, model, launch
        self.busy, self.plan, self.state = busy, plan, model.state
        self.status: str = model.state.status
        self.files = RunFiles(observer.store.home, model.run)
        self.guardian_alive = any(process.role == "guardian" and process.living for process in processes)
        self._processes = {(process.role, process.name): process for process in processes}
        self._tasks: dict[str, Task | None] = {}
        self._cut_off: dict[str, str] | None = None
        """Unreachable hosts; None before the first request."""

    @cached_property
    def _full_disk(self) -> str:
        # with a full disk nothing is recorded, so no record explains the standstill
        folders = (self.observer.store.home, *(Path(place) for place in (self.launch.trees, self.launch.repo) if place))
        return next((str(folder) for folder in folders if machine.is_full(folder)), "")

    @cached_property
    def _places(self) -> RunPlaces | None:
        """Return the run's places among the agents of all runs; None without such a limit."""
        home, run = self.observer.store.home, self.model.run
        return self.records.load(record_of(home, run), lambda: read_own(home, run))

    @cached_property
    def _host_settings(self) -> HostRights | None:
        """Return the hosts that all agents may now reach; None if the settings are unreadable."""
        from garrison.sandbox.rights import read_rights  # imported late: few nodes have refused hosts

        home = self.observer.store.home
        rights = self.records.attempt(lambda: read_rights(home, Role.AGENT, "", os.environ))
        return HostRights(config_path(home), rights.hosts, rights.host_ports) if rights is not None else None

    @property
    def under_way(self) -> bool:
        return self.status in UNFINISHED

    def nodes(self, age: Callable[[str], float | None]) -> list[NodeView]:
        """Return all nodes; `age` gives the seconds since a time."""
        waiting = self._waiting()
        return [self._node(name, age, *waiting.get(name, ((), ()))) for name in self.state.nodes]

    def open_questions(self) -> list[str]:
        return [name for name in self.state.questions
                if name in self.state.nodes and has_open_question(self._facts(name))]

    def hindrances(self) -> dict[str, str]:
        """Return hindrance by git, a disk or the repository → first node that waits for its end."""
        queues = [self.model.queues.get(name) for name in (self.model.queue_folder, self.model.landing_folder)]
        found = {first_line(queue.hindrance): entry.node for queue in queues if queue is not None and queue.hindrance
                 for entry in reversed(queue.unfinished()) if entry.run == self.model.run}
        blocked = [entry for queue in queues if queue is not None for entry in queue.unfinished()
                   if entry.run == self.model.run and entry.status == "landing_blocked" and entry.reason]
        for entry in blocked:  # the user's own changes are in the way
            found.setdefault(first_line(entry.reason), entry.node)
        if self.under_way and self.guardian_alive and (why := _hindrance(self.files.root)):
            found.setdefault(first_line(why), "")
        for name, node in self.state.nodes.items() if self.under_way else ():
            if node.status == "active" and (why := _hindrance(self.files.attempt(name, node.attempt))):
                found.setdefault(first_line(why), name)
        return found

    def can_retry(self) -> bool:
        """Return whether a failed node can be retried while the run continues."""
        if not self.under_way or not self.guardian_alive or "failed" not in self.state.statuses.values():
            return False
        try:
            return self.plan().flow == "dag"
        except (GarrisonError, OSError):
            return False

    def failed(self, node: NodeView) -> FailedNode:
        """Return why a node failed."""
        folder = self.files.attempt(node.node, node.attempt)
        path = folder / "result.json"
        result = self.records.load(path, lambda: run_records.load(Result, path))
        return FailedNode(node.node, node.attempt, node.reason, result.tail if result else "", str(folder))

    def landing(self, age: Callable[[str], float | None]) -> list[QueueEntryView]:
        """Return the run's unfinished merge entries."""
        queue = self.model.queue
        return [QueueEntryView(ahead + 1, entry.node, entry.attempt, entry.landing, age(entry.enqueued_at),
                               describe_activity(NodeFacts("impl_complete", entry=entry, entries_ahead=ahead,
                                                           pause=queue.pause, hindrance=queue.hindrance)))
                for ahead, entry in enumerate(queue.unfinished()) if entry.run == self.model.run] if queue else []

    def used(self) -> Used:
        """Return the run's use of its limits."""
        queue = self.model.queue
        tasks = {name: task for name, node in self.state.nodes.items() if (task := self._task(name, node))}
        attempts = {name: node.attempt - node.moved for name, node in self.state.nodes.items()}
        return Used(self.model.deaths(), attempts, self.busy,
                    {name: task.timeout_s for name, task in tasks.items() if task.timeout_s},
                    [name for name, task in tasks.items() if task.attributes.get("rework") == "none"],
                    queue.config.timeout if queue and queue.config else None, self.observer.clock.monotonic(),
                    self.observer.machine.boot_id)

    def _node(self, name: str, age: Callable[[str], float | None], waits_for: list[str] | tuple[()],
              blocked: tuple[str, ...]) -> NodeView:
        node = self.state.nodes[name]
        agent, runner = self._processes.get(("orchestrator", name)), self._processes.get(("runner", name))
        task = self._task(name, node)
        signs = self._signs(name, node, task) if agent and agent.living and agent.status == "active" else None
        facts = self._facts(name, waits_for, blocked, suspended=signs is not None and signs.suspended)
        no_rework = task is not None and task.attributes.get("rework") == "none"
        place, asks = place_of(self.model, name), has_open_question(facts)
        state = state_word(place, runner, agent, asks=asks, landing=facts.entry.landing if facts.entry else "",
                           guardian_alive=self.guardian_alive)
        folder = self.files.attempt(name, node.attempt)
        has_begun, of_attempt = folder.is_dir(), AttemptFiles(folder)
        refused = refused_in_attempt(folder) if has_begun else []
        journaled = fields_of(node)
        del journaled["status"]  # the view has its own word for it
        return NodeView(
            **journaled, node=name, state=state, place=place, doing=describe_activity(facts), asks=asks,
            blocked=bool(blocked), parking=self._parking(name), phase=facts.phase,
            agent_phase=agent.phase if agent else "", signs=signs,
            attempts=node.first + node.moved + (0 if no_rework else self.launch.max_rework), deaths=facts.deaths,
            incarnations=Incarnations(runner.incarnation if runner else 0, agent.incarnation if agent else 0),
            runner=runner, agent=agent, since_s=age(node.since), refused_hosts=refused,
            host_settings=self._host_settings if refused else None,
            unreported=has_begun and of_attempt.unreported.exists(),
            failovers=list(read_failovers(folder)) if has_begun else [],
            outage=read_outage(of_attempt.outage) if node.status == "active" else None)

    def _facts(self, name: str, waits_for: list[str] | tuple[()] = (), blocked: tuple[str, ...] = (), *,
               suspended: bool = False) -> NodeFacts:
        node = self.state.nodes[name]
        agent, runner = self._processes.get(("orchestrator", name)), self._processes.get(("runner", name))
        entry, ahead = self.model.place_in_queue(name, node.attempt)
        parking, queue = find_parked(self.state, name), self.model.queue
        runner_alive = runner is not None and runner.living
        question = self.state.questions.get(name)
        return NodeFacts(
            **fields_of(node), phase=runner.phase if runner else "", name=name,
            run_branch=self.launch.onto if self.launch.onto != self.launch.base else "",
            run_over="" if self.under_way else self.status,
            held=self.state.held.get(name), parked=parking.why if parking else "",
            guardian_alive=self.guardian_alive, runner_alive=runner_alive,
            agent_alive=agent is not None and agent.living, agent_suspended=suspended,
            agent_status=agent.status if agent else "", agent_incarnation=agent.incarnation if agent else 0,
            question=question.text if question else "", session_waits=self._session_waits(name, node),
            taken_over=node.status == "active" and is_taken_over(self.files.attempt(name, node.attempt)),
            hindered=_hindrance(self.files.attempt(name, node.attempt)) if runner_alive else "",
            session_trouble=_session_trouble(self.files.attempt(name, node.attempt)) if node.status == "active" else "",
            remote=self._remote(name, node), quiet=self._quiet(name, node) if agent and agent.living else 0.0,
            job=self.model.job(name, node.attempt) if runner_alive else "",
            is_over=self.model.is_over(name, node.attempt), full_disk=self._full_disk,
            no_place=self._places.describe() if self._places is not None and name in self._places.waiting else "",
            deaths=sum(death.counts for death in self.model.agent_deaths(name, node.attempt)),
            waits_for=waits_for or self._candidates_at_work(name, node),
            unreached=self._unreached(node), blocked_by=blocked, busy=self.busy,
            entry=entry, landed=self.model.last_landing(name), entries_ahead=ahead,
            pause=queue.pause if queue else None, hindrance=queue.hindrance if queue else "")

    def _candidates_at_work(self, name: str, node: NodeState) -> list[str]:
        """Return what an unstarted node waits for in addition to its predecessors: its candidates, or the choice
        between them."""
        if node.status != "pending" or self.state.own == len(self.state.nodes):
            return []
        at_work = [each for each, its in self.state.nodes.items() if its.candidate_of == name and its.step
                   and its.status in ("pending", "active", "impl_complete")]
        return at_work or ["your choice" for wait in self.state.waits.values() if wait.node == name]

    def _waiting(self) -> dict[str, tuple[list[str], tuple[str, ...]]]:
        """Return, for each waiting node, the nodes that it waits for, and the failed ones that block it."""
        statuses = self.state.statuses
        if not self.under_way or "pending" not in statuses.values():
            return {}
        plan = self.records.attempt(self.plan)
        if plan is None or plan.flow != "dag":
            return {}

        from garrison.pipeline.plan import blocked_by  # already loaded by the plan

        blocked = blocked_by(plan, statuses)
        return {name: (unfinished_before(plan, self.state, name), blocked.get(name, ()))
                for name, status in statuses.items() if status == "pending"}

    def _unreached(self, node: NodeState) -> bool:
        """Return whether the pipeline follows one edge at a time and has not reached a node."""
        if node.status != "pending" or node.step or not self.under_way:
            return False
        try:
            return self.plan().flow == "walk"
        except (GarrisonError, OSError):
            return False

    def _parking(self, name: str) -> Parking | None:
        if name in self.state.held:
            return Parking("person", self.state.held[name])
        parked = find_parked(self.state, name)
        if parked is None:
            return None
        left = max(0.0, from_iso(parked.probe_at) - self.observer.clock.time()) if parked.probe_at else None
        return Parking("policy", parked.why, parked.probe_at or None, left if self.under_way else None)

    def _task(self, name: str, node: NodeState) -> Task | None:
        if name not in self._tasks:
            path = self.files.attempt(name, node.attempt) / "task.json"
            self._tasks[name] = self.records.load(path, lambda: run_records.load(Task, path))
        return self._tasks[name]

    def _signs(self, name: str, node: NodeState, task: Task | None) -> LatestEvidence | None:
        key = Key("orchestrator", name, self.model.run)
        identity = self.records.attempt(lambda: self.observer.store.read(Identity, key))
        if identity is None or identity.worktree is None:
            return None
        signs = AgentActivity(self.files.attempt(name, node.attempt), Path(identity.worktree), task)
        return agent_evidence(self.observer, identity, signs)

    def _remote(self, name: str, node: NodeState) -> str:
        """Return where the node's work is, '' unless on a host."""
        task = self._task(name, node) if node.status == "active" else None
        if task is None or not task.hosts:
            return ""
        if self._cut_off is None:
            self._cut_off = hosts_cut_off(self.observer.store.home)
        return describe_remote(look_remote(self.files.attempt(name, node.attempt)), self._cut_off)

    def _quiet(self, name: str, node: NodeState) -> float:
        """Return for how many seconds the terminal of a node's program has been silent; 0 without a terminal."""
        from garrison.agents.registry import has_terminal  # imported late: most views are of other agents

        task = self._task(name, node) if node.status == "active" else None
        try:
            if task is None or not has_terminal(task.agent, self.observer.store.home):
                return 0.0
            # the terminal is logged there, so its silence is the age of the file
            shown = (self.files.attempt(name, node.attempt) / "output.log").stat().st_mtime
        except (GarrisonError, OSError):
            return 0.0
        return max(0.0, self.observer.clock.time() - shown)

    def _session_waits(self, name: str, node: NodeState) -> str:
        """Return what the node's agent or its session waits for; '' while it works."""
        return read_waiting(self.files.attempt(name, node.attempt)) if node.status == "active" else ""


def unreported_work(nodes: Iterable[NodeView]) -> list[str]:
    return [f"{node.node}: {NO_REPORT}" for node in nodes if node.unreported]


def changed_agents(nodes: Iterable[NodeView]) -> list[str]:
    """Return a line for each agent that replaced another one in a node's current attempt."""
    return [line for node in nodes for line in (
        *([f"{node.node}: given to {node.escalated}, since earlier work was refused (escalate)"]
          if node.escalated else []),
        *(f"{node.node}: {each.describe()}" for each in node.failovers))]


def shared_outages(nodes: Iterable[NodeView]) -> list[str]:
    """Return a line for each outage that agents wait for: what it is, the next try, and the number of waiting nodes."""
    waiting = [each.outage for each in nodes if each.outage is not None]
    counts = Counter((each.kind, each.since) for each in waiting)
    latest = {(each.kind, each.since): each for each in sorted(waiting, key=lambda each: each.at)}
    return [f"{latest[key].describe()}; {latest[key].next_try}; {count} {'node waits' if count == 1 else 'nodes wait'}"
            for key, count in counts.items()]


SHOWN_REFUSED = 5
"""Maximum number of a run's refused hosts shown."""


def refused_hosts(nodes: Sequence[NodeView]) -> list[str]:
    return [*name_refused(nodes), *filter(None, [permission_hint(nodes)])]


def name_refused(nodes: Sequence[NodeView]) -> list[str]:
    """Return a line for each host denied to agents, with the nodes that asked for it."""
    askers: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        for host in node.refused_hosts:
            askers.setdefault((host.place, host.reason), []).append(node.node)
    lines = [f"{', '.join(names)}: {place} was refused: {reason}" for (place, reason), names in askers.items()]
    more = [f"{len(lines) - SHOWN_REFUSED} more hosts were refused"]
    return lines if len(lines) <= SHOWN_REFUSED else lines[:SHOWN_REFUSED] + more


def permission_hint(nodes: Sequence[NodeView]) -> str:
    """Return how to allow all hosts denied to agents, '' if there are none, or no setting would help."""
    settings = next((node.host_settings for node in nodes if node.host_settings), HostRights())
    return describe_permission((host for node in nodes for host in node.refused_hosts), settings)


def _hindrance(folder: Path) -> str:
    from garrison.processes.loop import read_hindrance  # imported late: only a working process has hindrances

    return read_hindrance(folder)


def _session_trouble(folder: Path) -> str:
    from garrison.agents.conversation.trouble import current_trouble  # imported late: only a node at work has a session

    return current_trouble(folder)


def unfinished_before(plan: RunPlan, state: RunState, name: str) -> list[str]:
    """Return the tasks, questions and inner pipelines that a node of a dag waits for, in the order of the graph. Pure.

    Steps of the flow itself (a fork, a join, a decision) are not waits: their predecessors count.
    """
    def stops(before: str) -> bool:
        return before in plan.tasks or before in plan.waits or before in plan.children or before in state.outcomes

    def is_done(before: str) -> bool:
        node = state.nodes.get(before)
        return node is not None and node.status == "validated" if before in plan.tasks else before in state.outcomes

    return [before for before in plan.nearest_before(name, stops) if not is_done(before)]


# ---- words ----------------------------------------------------------------------------------------------------------

PLACE_BY_STATUS: Mapping[str, str] = {"validated": "landed", "impl_complete": "landing", "active": "working",
                                      "failed": "failed", "pending": "waiting", "skipped": "skipped"}
"""Status of a node → its place in the run."""
PLACES = ("landed", LandingWord.NO_CHANGE.value, LandingWord.KEPT.value, LandingWord.UNDONE.value, "landing", "working",
          "failed", "waiting", "skipped")
"""Places of nodes that are not parked, in the order of the progress bar."""
PARKED = "parked"
"""Place of a parked unfinished node."""

_LONG = 300
"""Maximum length of a reason on one line."""


class NodeFacts(NodeState, kw_only=True):
    """Journaled and observed facts that determine a node's words. Incarnations are 0 before the first."""

    phase: str = ""
    """Phase of its hook."""
    run_branch: str = ""
    """Branch of its run, if it lands there; '' if it lands on the target."""
    run_over: str = ""
    """The run's status if it is not active."""
    held: str | None = None
    """Why the user parked it; None if the user did not."""
    parked: str = ""
    """Why the restart policy parked it, '' if it did not."""
    guardian_alive: bool = True
    runner_alive: bool = False
    agent_alive: bool = False
    agent_suspended: bool = False
    """True if its agent or its orchestrator is suspended (SIGSTOP)."""
    agent_status: str = ""
    agent_incarnation: int = 0
    question: str = ""
    """Open question of its agent to the user."""
    hindered: str = ""
    """What hinders its processes: git, a disk or the repository."""
    session_waits: str = ""
    """What its session waits for while it does not run."""
    taken_over: bool = False
    """True if the user has taken its session over."""
    session_trouble: str = ""
    """Trouble of its session, or cause of its interruption."""
    quiet: float = 0.0
    """Seconds for which the terminal of its program has been silent; 0 for a program without one."""
    remote: str = ""
    """Where its work is, if a host does it (`views.remote`)."""
    job: str = ""
    """Set-up, acceptance or validator, while its runner runs it."""
    is_over: bool = False
    """Set once its attempt was given up or cancelled."""
    full_disk: str = ""
    """Folder of its run on a full disk, so that nothing can be recorded."""
    deaths: int = 0
    """Deaths of its agent in this attempt."""
    no_place: str = ""
    """What it waits for if the number of agents of all runs is limited and it has no place."""
    waits_for: Sequence[str] = ()
    """Predecessors that have not landed."""
    unreached: bool = False
    """True if the flow has not reached it yet."""
    blocked_by: Sequence[str] = ()
    """Failed nodes that block its start for good."""
    busy: int = 0
    """Number of nodes being worked on."""
    entry: MergeEntry | None = None
    """Its merge entry in this attempt."""
    landed: MergeEntry | None = None
    """Its last landed entry."""
    entries_ahead: int = 0
    """Number of merge entries before it."""
    pause: Pause | None = None
    """Pause of the merge queue."""
    hindrance: str = ""
    """What hinders the merge queue."""
    name: str = "NODE"
    """Its name, for the command that answers it."""


def place_of(model: RunModel, name: str) -> str:
    """Return a node's place in the run; parked nodes have their own."""
    if model.why_parked(name) is not None:
        return PARKED
    node = model.state.nodes[name]
    place = place_of_status(node.status, node.landing)
    last = model.last_landing(name) if place == "landed" else None
    return LandingWord.UNDONE.value if last is not None and last.status == "undone" else place


def place_of_status(status: str, landing: str) -> str:
    return landing if lands_nothing(status, landing) else PLACE_BY_STATUS[status]


def state_word(place: str, runner: ProcessView | None, agent: ProcessView | None, *, asks: bool,
               landing: str = "", guardian_alive: bool = True) -> str:
    """Return a node's state in one word for all views: its place; at work, the activity of its two processes; while
    landing, the word for its `landing`."""
    if place == "landing":
        return landing or LandingWord.QUEUED
    # the state of a finished node does not depend on parked or dead processes
    is_over = place in ("landed", LandingWord.NO_CHANGE, LandingWord.KEPT, LandingWord.UNDONE, "failed")
    if not is_over and "parked" in (runner and runner.status, agent and agent.status):
        return "parked"
    if place != "working":
        return place
    if runner is None and not guardian_alive:
        return "waiting"
    if asks:
        return "asks"
    agent_status = agent.status if agent else "starting"
    if (agent and agent.living) or (runner and runner.living and agent_status == "terminated"):
        return "working"  # the runner checks the work of an ended agent
    if runner and runner.status == "terminated":
        return "stopped"
    return "died" if agent_status != "starting" or (runner and not runner.living) else "starting"


def has_open_question(facts: NodeFacts) -> bool:
    """Return whether a question still waits for an answer: it may have been settled otherwise."""
    unsettled = facts.job == "validator" or (bool(facts.session_waits) and not facts.taken_over)
    return facts.status == "active" and facts.run_over != "stopped" and bool(facts.question) and unsettled


def describe_activity(facts: NodeFacts) -> str:
    """Describe what a node is doing or waiting for, on one line."""
    if facts.held is not None:
        return f"parked by you: {first_line(facts.held)}" if facts.held else "parked by you"
    if facts.parked:
        return f"parked: {first_line(facts.parked)}"
    return _WORDS[facts.status](facts)


def first_line(text: str) -> str:
    """Return the first line of a reason, cut to the length of a line."""
    return shorten(text.strip().partition("\n")[0], _LONG)


def _pending(facts: NodeFacts) -> str:
    if facts.blocked_by:
        return f"cannot start: {', '.join(facts.blocked_by)} failed"
    if facts.run_over:
        return f"not started; the run is {facts.run_over}"
    if facts.waits_for:
        return f"waiting for {', '.join(facts.waits_for)}"
    if facts.unreached:
        return "not reached yet"
    if not facts.guardian_alive:
        return "waiting for a guardian; none is alive"
    if facts.no_place:
        return facts.no_place
    return f"waiting for a free agent, {facts.busy} at work{_retry(facts.reason)}"


def _active(facts: NodeFacts) -> str:
    if facts.hindered and facts.run_over != "stopped":
        return f"delayed, continues automatically: {first_line(facts.hindered)}"
    return _work(facts) + (_retry(facts.reason) if facts.attempt > 1 else "")


def _work(facts: NodeFacts) -> str:
    if facts.run_over == "stopped":
        return "stopped; continues when the run is resumed"
    if facts.full_disk:
        return f"waiting for disk space: the disk of {facts.full_disk} is full"
    if facts.is_over:
        return "this attempt is over; its agent is being ended"
    if has_open_question(facts):
        return f"asks you: {first_line(facts.question)} (answer: garrison answer {facts.name} 'TEXT')"
    if facts.job:
        return {"setup": "setting up its worktree", "acceptance": "running its acceptance command",
                "validator": "another agent is validating its work"}.get(facts.job, f"running {facts.job}")
    if facts.agent_alive:
        return _agent(facts)
    if not facts.runner_alive:
        return (facts.no_place or "starting its runner") if facts.guardian_alive else \
            "waiting for a guardian; none is alive"
    if facts.agent_status == "crashed":
        return f"its agent died ({_deaths(facts.deaths or 1)} in this attempt) and is being restarted"
    if facts.phase in ("", "planning"):
        return "creating its worktree"
    return "its agent is done; checking its work" if facts.agent_incarnation else "starting its agent"


QUIET = 30.0
"""Seconds of silence after which a program may be asking something in its terminal, say to trust a folder."""


def _agent(facts: NodeFacts) -> str:
    after = f", after {_deaths(facts.deaths)}" if facts.deaths else ""
    if facts.remote:
        return facts.remote + after
    if facts.agent_suspended:
        return "its agent is suspended (SIGSTOP)"
    if facts.session_waits:
        return f"its session is waiting {first_line(facts.session_waits)}"
    if facts.quiet > QUIET:
        return f"it may be asking in its terminal: `garrison attach {facts.name} --write`{after}"
    who = f"its agent {facts.escalated}" if facts.escalated else "its agent"
    return f"{who} is working{after}" + (
        f", with trouble: {first_line(facts.session_trouble)}" if facts.session_trouble else "")


def _landing(facts: NodeFacts) -> str:
    entry, pause = facts.entry, facts.pause
    if pause is not None and (entry is None or not entry.is_final):
        return f"the queue is paused ({pause.reason}): {first_line(pause.explain())}"
    if facts.hindrance and (entry is None or not entry.is_final):
        return f"the queue is held up: {first_line(facts.hindrance)}; it tries again"
    return _QUEUE[entry.status](entry, facts.entries_ahead) if entry is not None else "entering the merge queue"


def _landed(facts: NodeFacts) -> str:
    if facts.landing == LandingWord.NO_CHANGE:
        return f"{LandingWord.NO_CHANGE}: it succeeded, with nothing to land"
    if facts.landing == LandingWord.KEPT:
        return f"{LandingWord.KEPT}: it passed its checks and lands only if its node chooses it"
    if facts.landed is not None and facts.landed.status == "undone":
        return f"undone: {first_line(facts.landed.reason)}"
    where = f" on {facts.run_branch}" if facts.run_branch else ""
    commit = (facts.landed.commit if facts.landed is not None else "") or facts.commit
    changes = describe_changes(facts.entry.changes) if facts.entry is not None else ""
    return f"landed as {commit[:10]}{where}{f'; {changes}' if changes else ''}" if commit else "landed before this run"


def _failed(facts: NodeFacts) -> str:
    return first_line(facts.reason) or "no reason was recorded"


def _why_asked(entry: MergeEntry) -> str:
    why = describe_changes(with_effect(entry.changes, Effect.ASK))
    return f": it {why}" if why else ""


def _queued(entry: MergeEntry, ahead: int) -> str:
    if entry.waits_for:
        return f"in the merge queue, {describe_wait(entry.waits_for[1], entry.files)}"
    return (f"waiting in the merge queue, {ahead} ahead" if ahead else "next in the merge queue") + _retry(entry.reason)


def _blocked(entry: MergeEntry, _ahead: int) -> str:
    reason = first_line(entry.reason)
    missing = [name for name in entry.files if name not in reason]
    return f"cannot land: {reason}" + (f" ({', '.join(missing[:5])})" if missing else "")


def _refused(entry: MergeEntry, _ahead: int) -> str:
    return f"{entry.status}: {first_line(entry.reason)}"


def _retry(reason: str) -> str:
    return f" (retry: {first_line(reason)})" if reason else ""


def _deaths(count: int) -> str:
    return f"{count} death{'s' if count != 1 else ''}"


_QUEUE: Mapping[str, Callable[[MergeEntry, int], str]] = {
    "queued": _queued,
    "candidate": lambda entry, ahead: "building its merge candidate",
    "testing": lambda entry, ahead: "the gate is testing its merge candidate" + _retry(entry.reason),
    "landing": lambda entry, ahead: "landing",
    "landing_blocked": _blocked,
    "held": lambda entry, ahead: f"waiting for approval (garrison review {entry.node}){_why_asked(entry)}"
    if entry.approval
    else "held in the merge queue by the user",
    "landed": lambda entry, ahead: "landed", "undone": _refused,
    "conflict": _refused, "rejected": _refused, "cancelled": _refused, "superseded": _refused,
}
"""Status of a merge entry → what its node is waiting for."""

_WORDS: Mapping[str, Callable[[NodeFacts], str]] = {
    "pending": _pending, "active": _active, "impl_complete": _landing, "validated": _landed, "failed": _failed,
    "skipped": _failed}
"""Status of a node → its words."""
