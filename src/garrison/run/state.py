"""State of a run, replayed from the guardian's journal. Pure: no clock, disk or process here.

`RunState.apply` applies one journal record (`records/events.py`) by the table `_APPLY`. Replayed with the run's
program, as its guardian does, the state includes the flow; without it (status, answer) it has nodes, waits and latest
outcomes, which need no graph.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from garrison.ends import RefusedBy
from garrison.pipeline.node_status import VALIDATED, LandingWord, check_transition, is_unchanged, lands_nothing
from garrison.pipeline.questions import OpenWait
from garrison.records import events
from garrison.records.names import Key
from garrison.records.pull_request import PullRequest
from garrison.records.pull_request import check_transition as check_pull_request
from garrison.records.record import Record, encode, from_data, stated
from garrison.records.run import LAND_NODE, LAND_PR, LAND_RUN
from garrison.records.signals import NeedsReview
from garrison.supervise import restart
from garrison.supervise.restart import CLOSED, Circuit, Death
from garrison.values import Value, asdict, field_names, fields_of, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from garrison.pipeline.flow.program import Program
    from garrison.pipeline.plan import RunPlan
    from garrison.records.journal import Entry
    from garrison.records.run import Launch, RunFiles
    from garrison.run.flow import RunFlow

RUN_TRANSITIONS: dict[str, frozenset[str]] = {
    "new": frozenset({"running"}),
    "running": frozenset({"stopped", "done", "failed", "parked"}),
    "parked": frozenset({"running", "stopped"}),
    "stopped": frozenset({"running"}),
    "done": frozenset(),
    "failed": frozenset({"running"}),
}
"""Run status → the statuses that may follow. A stopped run can be resumed, and a failed one whose nodes are parked
(`RunState.over`). The launcher journals `parked` when it parks the guardian, and the next guardian `running`."""

ENDED = frozenset({"stopped", "done", "failed"})
"""Final statuses."""

EXIT = {"done": 0, "failed": 1, "stopped": 130}
"""Status of an ended run → the exit code of its launcher, and of a command that reports it."""

RESUMED = "resumed"
"""Reason of a run that was resumed after its end."""

STOPPED_BY_USER = "stopped by the user"
"""Reason of a run that the user stopped."""

HOLDABLE = frozenset({"pending", "active"})
"""Statuses of a node that the user can park; later its work is in the merge queue."""


class NodeState(Value):
    """State of a node; `commit` is the one that landed for it.

    `step` is the step of the flow that the attempt is for (`flow.step_id`), '' before its first; `first` is that
    step's first attempt, later ones are rework. `kind` is the kind of failure, as reported by its runner; `steer` is a
    manager's instruction for the agent of this step. `landing` is `no change` if it succeeded without one. `parks` is
    how often its runner had been parked when the node got this status.
    """

    status: str = "pending"
    attempt: int = 1
    reason: str = ""
    commit: str = ""
    since: str = ""
    step: str = ""
    first: int = 1
    kind: str = ""
    steer: str = ""
    landing: str = ""
    parks: int = 0
    moved: int = 0
    """Attempts of this step that only lost to a moved target; they are not rework."""
    escalated: str = ""
    """Agent that does this attempt instead of the node's own, whose work was refused; '' for none."""
    kept: events.Kept | None = None
    """Work of this attempt, if its node is a candidate that passed."""
    candidate_of: str = ""
    """Node of which this one is a candidate, '' for none."""

    @property
    def rework(self) -> int:
        return self.attempt - self.first - self.moved

    @property
    def is_unchanged(self) -> bool:
        return is_unchanged(self.status, self.landing)

    @property
    def has_landed(self) -> bool:
        """Return whether its work landed; one that changed nothing, or a candidate, succeeded without landing."""
        return self.status == VALIDATED and not lands_nothing(self.status, self.landing)


class ManagerState(Value):
    """Latest cycle of a manager of the flow, `at` its time (UTC); see `flow_policy.py`."""

    place: str
    node: str
    cycle: int = 0
    steer: str = ""
    steered: int | None = None
    at: str = ""


REQUESTED, LANDED, REFUSED, NO_CHANGE, NOT_LANDED = "requested", "landed", "refused", "no change", "failed"
DECLINED, TESTED = "declined", "tested"
"""Statuses of a run's landing (`RunLanding`) after the first request."""


class RunLanding(Record):
    """Landing of a whole run, at its exit; `status` is '' before the first.

    `attempt` counts the requests, `oid` is the tip of the run's branch at the request, `commit` the landed commit.
    `refusals` counts how often the run was sent back for it since the user resumed it. With a pull request, `base` is
    the commit with which the branch is tested, and `commit` their merge once it is `tested`.
    """

    status: str = ""
    attempt: int = 0
    oid: str = ""
    commit: str = ""
    reason: str = ""
    refusals: int = 0
    base: str = ""


class NodeOutcome(Record):
    """A node's latest outcome in the flow, for display; `ends` counts how often the node has ended."""

    status: str
    label: str = ""
    reason: str = ""
    place: str = ""
    ends: int = stated(1)


@dataclass
class RecordedState:
    """Part of a run's state that a snapshot in the journal contains, under the names of the fields."""

    status: str = "new"
    reason: str = ""
    nodes: dict[str, NodeState] = field(default_factory=dict)
    applied: set[str] = field(default_factory=set)
    """Ids of the signals that were applied."""
    deaths: dict[str, list[Death]] = field(default_factory=dict)
    """Full name → its deaths in the current attempt."""
    buried: dict[str, int] = field(default_factory=dict)
    """Full name → its latest incarnation whose death was journaled, in any attempt."""
    incarnations: dict[str, int] = field(default_factory=dict)
    lifted: dict[str, int] = field(default_factory=dict)
    """Full name → its latest stopped incarnation that may have a successor."""
    questions: dict[str, events.AgentQuestion] = field(default_factory=dict)
    """Node → its open question."""
    circuits: dict[str, Circuit] = field(default_factory=dict)
    """Full name → its circuit, if the guardian parked it in this attempt."""
    stuck: dict[str, events.StuckAgent] = field(default_factory=dict)
    """Node → its agent, if its runner parked it."""
    unstuck: dict[str, int] = field(default_factory=dict)
    """Node → the last incarnation of its agent that was reported as no longer parked."""
    held: dict[str, str] = field(default_factory=dict)
    """Node or `processor` → why the user parked it."""
    began: str = ""
    """When the run started, UTC."""
    waits: dict[str, OpenWait] = field(default_factory=dict)
    """Place of the flow → the question or signal it waits for."""
    heard: dict[str, list[object]] = field(default_factory=dict)
    """Name of a pipeline signal → its values that no node has consumed yet."""
    cancelled: set[str] = field(default_factory=set)
    """Nodes that were cancelled and whose runner has not ended yet."""
    budget: int | None = None
    """Steps that the user allows the flow from the next resume on."""
    managers: dict[str, ManagerState] = field(default_factory=dict)
    """Place of the flow → the manager there."""
    outcomes: dict[str, NodeOutcome] = field(default_factory=dict)
    landing: RunLanding = field(default_factory=RunLanding)
    foreign_moves: list[events.ForeignMove] = field(default_factory=list)
    """Moves of the target that no merge queue made."""
    warnings: list[events.Warned] = field(default_factory=list)
    """Changes of git's configuration, of hooks and of the gate since the launch."""
    ends: int = 0
    """Number of times the run has ended; a resumed run ends again."""
    reviews: dict[str, int] = field(default_factory=dict)
    """Node → attempt whose work waits for the user's approval, or did until it was taken to land."""
    pull_request: PullRequest = field(default_factory=PullRequest)
    choices: dict[str, events.CandidatesRanked] = field(default_factory=dict)
    """Node → its candidates in the order of the judge, in its latest step that was judged."""
    verdicts: dict[str, list[events.CandidatesCompared]] = field(default_factory=dict)
    """Node → the verdicts of an agent on its candidates, in its latest step that was judged."""
    graph: str = ""
    """Text of the graph as changed by the user, '' while it is as launched."""


@dataclass
class RunState(RecordedState):
    """State of one run."""

    flow: RunFlow | None = field(default=None, compare=False)

    @property
    def over(self) -> bool:
        """Return whether the run cannot be resumed; one can that failed because nodes are parked, or only its landing
        failed."""
        return self.status == "done" or (self.status == "failed" and not self.is_unfinished)

    @property
    def is_unfinished(self) -> bool:
        return self.landing.status == NOT_LANDED or any(
            node.status in ("active", "impl_complete") for node in self.nodes.values())

    @property
    def landed(self) -> int:
        return sum(node.has_landed for node in self.nodes.values())

    @property
    def unchanged(self) -> int:
        return sum(node.is_unchanged for node in self.nodes.values())

    @property
    def own(self) -> int:
        """Return the number of nodes, not counting candidates, whose work may land only as another node's."""
        return sum(not node.candidate_of for node in self.nodes.values())

    @property
    def told(self) -> list[events.ForeignMove | events.Warned]:
        """Return all warnings for the user: moves of the target, then the other changes."""
        return [*self.foreign_moves, *self.warnings]

    @property
    def statuses(self) -> dict[str, str]:
        return {name: node.status for name, node in self.nodes.items()}

    @property
    def attempts(self) -> dict[str, int]:
        return {name: node.attempt for name, node in self.nodes.items()}

    @property
    def phase(self) -> str:
        """Return the phase that the nodes imply for the hooks of launcher and guardian.

        Executing from the first node on, impl_complete when nothing is left to implement, validating while the queue
        drains, merged when all have landed.
        """
        statuses = set(self.statuses.values())
        if self.status == "done":
            return "merged"
        if not statuses or statuses <= {"pending"}:
            return "planning"
        if statuses & {"pending", "active"}:
            return "executing"
        return "validating" if "impl_complete" in statuses else "impl_complete"

    def circuit(self, full: str) -> Circuit:
        return self.circuits.get(full, CLOSED)

    def apply(self, entry: Entry) -> RunState:
        """Apply one journal record; return self."""
        event = events.decode(entry)
        if event is not None:
            self.apply_event(event, entry.at)
        return self

    def apply_event(self, event: events.Event, at: str) -> None:
        """Apply an event that was journaled `at` (UTC); one that changes no state is ignored."""
        handler = _APPLY.get(type(event))
        if handler is not None:
            handler(self, event, at)

    # ---- the run, its flow, its nodes

    def _apply_run(self, event: events.RunChanged, at: str) -> None:
        self.ends += event.status in ENDED and self.status not in ENDED
        self.status, self.reason = event.status, event.reason
        if self.status == "running":
            self.began = self.began or at

    def _apply_flow(self, event: events.FlowAdvanced, _at: str) -> None:
        if event.place:
            self.waits.pop(event.place, None)
            self.managers.pop(event.place, None)
            self.outcomes[event.node] = outcome_summary(event, self.outcomes.get(event.node))
        if event.took:
            self.heard[event.took] = self.heard.get(event.took, [])[1:]
        if self.flow is not None:
            self.flow.apply(event.body)

    def _apply_wait(self, event: events.WaitChanged, at: str) -> None:
        self.waits.pop(event.place, None)
        if not event.closed:
            self.waits[event.place] = OpenWait.from_record(event.body, at)

    def _apply_manager(self, event: events.ManagerCycled, at: str) -> None:
        self.managers.pop(event.place, None)
        if not event.closed:
            self.managers[event.place] = ManagerState(event.place, event.node, event.cycle, event.steer, event.steered,
                                                      at)

    def _apply_landing(self, event: events.LandingChanged, at: str) -> None:
        before = self.landing
        self.landing = RunLanding(event.status, event.attempt, event.oid or before.oid, event.commit, event.reason,
                                  before.refusals + (event.status == REFUSED), event.base or before.base)
        if event.flow is not None:
            self._apply_flow(event.flow, at)

    def _apply_pull_request(self, event: events.PullRequestChanged, at: str) -> None:
        before = self.pull_request
        check_pull_request(before.state, event.state)
        taken = {**before.taken, **dict.fromkeys(event.taken, self.landing.attempt)}
        returns = {**before.returns, event.node: before.returns.get(event.node, 0) + 1} if event.node \
            else before.returns
        if event.number and before.number and event.number != before.number:  # another pull request replaces it
            before = replace(before, ready="", auto="")
        self.pull_request = PullRequest(
            event.state, event.number or before.number, event.url or before.url, event.head or before.head,
            event.ready or before.ready, event.auto or before.auto, event.reason,
            before.since if event.state == before.state else at, taken, returns,
            {**before.owners, **dict.fromkeys(event.taken, event.node)} if event.node else before.owners,
            {**before.heads, **dict.fromkeys(event.taken, before.head)}, event.told or before.told)
        if event.flow is not None:  # its branch is tested again when the flow is at its exit again
            self.landing = replace(self.landing, status=REFUSED, reason=event.reason)
            self._apply_flow(event.flow, at)

    def _apply_foreign(self, event: events.ForeignMove, _at: str) -> None:
        self.foreign_moves.append(event)

    def _apply_warning(self, event: events.Warned, _at: str) -> None:
        self.warnings.append(event)

    def _apply_cancel(self, event: events.NodeCancelled, _at: str) -> None:
        self.cancelled.add(event.node)

    def _apply_node(self, event: events.NodeChanged, at: str) -> None:
        name, old = event.node, self.nodes.get(event.node)
        if old is not None and old.status != event.status:
            check_transition(old.status, event.status)
        is_new_attempt = old is not None and event.attempt > old.attempt
        if is_new_attempt:
            self._forget_runner(name)
        if event.status != "active" or is_new_attempt:
            self.questions.pop(name, None)
            self.stuck.pop(name, None)
        if event.status != "active":
            self.cancelled.discard(name)
        if event.status not in HOLDABLE:
            self.held.pop(name, None)
        if event.status != "impl_complete" or is_new_attempt:
            self.reviews.pop(name, None)
        if (manager := self.managers.get(event.steered_by)) is not None:
            self.managers[event.steered_by] = replace(manager, steer="")
        before = old or NodeState()
        is_new_step = event.step is not None and event.step != before.step
        has_lost = is_new_attempt and event.status == "active" and event.failure_kind == RefusedBy.MOVED
        self.nodes[name] = NodeState(
            event.status, event.attempt, event.reason, event.commit, at,
            before.step if event.step is None else event.step, event.attempt if is_new_step else before.first,
            event.failure_kind, event.steer or ("" if is_new_step else before.steer), event.landing,
            max((circuit.parks for full, circuit in self.circuits.items() if _is_runner(full, name)), default=0),
            0 if is_new_step else before.moved + has_lost,
            event.escalated or ("" if is_new_step or is_new_attempt else before.escalated),
            event.kept or (None if is_new_step or is_new_attempt else before.kept),
            event.candidate_of or before.candidate_of)

    def _apply_verdict(self, event: events.CandidatesCompared, _at: str) -> None:
        before = [each for each in self.verdicts.get(event.node, ()) if each.step == event.step]
        self.verdicts[event.node] = [*before, event]

    def _apply_choice(self, event: events.CandidatesRanked, _at: str) -> None:
        self.choices[event.node] = event
        self.waits = {place: wait for place, wait in self.waits.items() if wait.node != event.node}

    def _forget_runner(self, node: str) -> None:
        """Forget deaths and circuit of a node's runner: each attempt has its own."""
        self.deaths = {full: deaths for full, deaths in self.deaths.items() if not _is_runner(full, node)}
        self.circuits = {full: circuit for full, circuit in self.circuits.items() if not _is_runner(full, node)}

    # ---- signals

    def _apply_signal(self, event: events.GuardianSignal, at: str) -> None:
        self.applied.add(event.id)
        if event.graph:
            self.change_graph(event.graph)
        if event.effect is not None:
            self._apply_node(event.effect, at)
        if event.choice is not None:
            self._apply_choice(event.choice, at)
        self._apply_to_flow(event, at)
        if event.question is not None and event.node is not None:
            self.questions[event.node] = replace(event.question, at=at)
        if event.type == NeedsReview.type and event.node in self.nodes and event.attempt == self.attempts[event.node]:
            self.reviews[event.node] = event.attempt
        question = self.questions.get(event.node or "")
        if event.answer and question is not None and question.id == event.answer:
            del self.questions[event.node or ""]
        self._apply_parking(event)
        if event.resume is not None:
            self._unpark(event.unparked, event.resume)
        if event.run is not None:
            self.status, self.reason = event.run, RESUMED
            if self.landing.status == NOT_LANDED:  # it is retried, with all its attempts
                self.landing = replace(self.landing, status="", reason="", refusals=0)
            self.pull_request = replace(self.pull_request, returns={})

    def change_graph(self, text: str) -> None:
        """Continue with a changed text of the graph."""
        self.graph = text
        if self.flow is not None:
            self.flow.change(text)

    def _apply_to_flow(self, event: events.GuardianSignal, at: str) -> None:
        if event.flow is not None:
            self._apply_flow(event.flow, at)
            if event.flow.event == "resumed":  # in the same record: a guardian may die right after it
                self.status, self.reason = "running", ""
        if event.heard is not None:
            self.heard[event.heard.name] = [*self.heard.get(event.heard.name, []), event.heard.value]
        if event.budget:
            self.budget = int(event.budget)

    def _apply_parking(self, event: events.GuardianSignal) -> None:
        node = event.node or ""
        if event.stuck is not None:
            self.stuck[node] = event.stuck
        if event.unstuck is not None:
            latest = self.unstuck[node] = max(event.unstuck, self.unstuck.get(node, 0))
            if node in self.stuck and self.stuck[node].incarnation <= latest:
                del self.stuck[node]
        if event.hold is not None:
            self.held[event.hold] = event.text
        if event.unhold is not None:
            self.held.pop(event.unhold, None)
            self._unpark([event.unhold], event.stopped)

    def _unpark(self, names: list[str], stopped: Mapping[str, int]) -> None:
        """Empty the restart windows of these nodes' runners (or of the processor), which the user unparked."""
        self.lifted.update(stopped)
        for name in names:
            self.stuck.pop(name, None)
        for full in self.circuits:
            key = Key.parse(full)
            if (key.name if key.role == "runner" else key.role) in names:
                self.circuits[full] = restart.reset_circuit(self.circuits[full], self.incarnations.get(full, 0))

    # ---- children

    def _apply_spawn(self, event: events.ChildSpawned, at: str) -> None:
        self.incarnations[event.full] = max(self.incarnations.get(event.full, 0), event.incarnation)
        self._apply_circuit(event, at)

    def _apply_circuit(self, event: events.ChildSpawned | events.ChildParked | events.ChildHealed, _at: str) -> None:
        before = self.circuit(event.full)
        if (after := restart.apply_event(before, event)) != before:
            self.circuits[event.full] = after

    def _apply_death(self, event: events.ChildDied, _at: str) -> None:
        deaths = self.deaths.setdefault(event.full, [])
        self.buried[event.full] = max(self.buried.get(event.full, 0), event.incarnation)
        if all(death.incarnation != event.incarnation for death in deaths):  # count an incarnation once
            deaths.append(Death.of(event))

    # ---- snapshots

    def _apply_snapshot(self, event: events.JournalSnapshot, _at: str) -> None:
        restored = from_snapshot(event.state)
        restored.flow = self.flow
        if self.flow is not None and event.state.get("flow"):
            self.flow.restore(event.state["flow"], restored.graph)
        self.__dict__.update(restored.__dict__)


_APPLY: Mapping[type[Any], Callable[[RunState, Any, str], None]] = {
    events.RunChanged: RunState._apply_run,
    events.FlowAdvanced: RunState._apply_flow,
    events.WaitChanged: RunState._apply_wait,
    events.ManagerCycled: RunState._apply_manager,
    events.NodeCancelled: RunState._apply_cancel,
    events.LandingChanged: RunState._apply_landing,
    events.PullRequestChanged: RunState._apply_pull_request,
    events.ForeignMove: RunState._apply_foreign,
    events.Warned: RunState._apply_warning,
    events.NodeChanged: RunState._apply_node,
    events.CandidatesRanked: RunState._apply_choice,
    events.CandidatesCompared: RunState._apply_verdict,
    events.GuardianSignal: RunState._apply_signal,
    events.ChildSpawned: RunState._apply_spawn,
    events.ChildParked: RunState._apply_circuit,
    events.ChildHealed: RunState._apply_circuit,
    events.ChildDied: RunState._apply_death,
    events.JournalSnapshot: RunState._apply_snapshot,
}
"""Journal record → the method that applies it. All others matter only to the user and to the processes that wrote
them."""


def _is_runner(full: str, node: str) -> bool:
    return full.startswith(f"runner-{node}@")


def describe_next(run: str, status: str, *, over: bool) -> str:
    """Return the one command that helps a run which ended without being done, '' for a done or active one."""
    resume = f"`garrison resume {run}"
    if status == "stopped":
        return f"{resume}` continues it"
    if status == "parked" or (status == "failed" and not over):
        return f"once the cause is fixed, {resume}` continues it"
    return f"{resume} --retry-failed` retries the failed nodes" if status == "failed" else ""


def describe_push(state: RunState, land: str, base: str, remotes: Collection[str], folder: str = "") -> str:
    """Return, in words, the command that publishes what a done run has landed on its base. Pure.

    '' if nothing landed there, for a pull request, and if no remote is the obvious one. `folder` is the
    repository, for a reader who is elsewhere.
    """
    landed = state.landing.status == LANDED if land == LAND_RUN else land == LAND_NODE and state.landed > 0
    remote = "origin" if "origin" in remotes else next(iter(remotes), "") if len(remotes) == 1 else ""
    if state.status != "done" or not landed or not remote:
        return ""
    place = ["-C", folder] if folder else []
    return f"`{shlex.join(['git', *place, 'push', remote, base])}` publishes it"


def describe_landed(state: RunState, land: str, base: str, branch: str, total: int) -> str:
    """Return how much of a run has landed, and where, in words. Pure."""
    unchanged = f", {state.unchanged} {LandingWord.NO_CHANGE}" if state.unchanged else ""
    nodes = f"{state.landed} of {total} landed{unchanged}"
    if land == LAND_NODE:
        return nodes
    if state.landing.status == LANDED:
        commit = state.landing.commit[:10]
        return f"{nodes}, together as {commit} on {base}" if commit else f"{nodes}, all of it already on {base}"
    if land == LAND_PR and state.pull_request.number:
        return f"{nodes} on {branch}, {state.pull_request.describe()}"
    return f"{nodes} on {branch}" + (f", nothing on {base}" if land in (LAND_RUN, LAND_PR) else "")


def copy_launch(files: RunFiles, launch: Launch) -> events.LaunchRecorded:
    """Return a copy of launch.json and the graphs for a journal, from which `repair.py` restores them; unparsed, since
    a launcher parses no graph."""
    nested = {path.stem: path.read_text(encoding="utf-8") for path in sorted(files.graphs.glob("*.dot"))}
    return events.LaunchRecorded(encode(launch).decode(), files.launched_graph.read_text(encoding="utf-8"), nested)


def to_snapshot(state: RunState) -> dict[str, object]:
    """Return the state as JSON values, for a journal snapshot."""
    recorded = RecordedState(**{name: getattr(state, name) for name in field_names(RecordedState)})
    body = {**asdict(replace(recorded, waits={})), "applied": sorted(state.applied),
            "cancelled": sorted(state.cancelled),
            "gates": {place: wait.to_record() for place, wait in state.waits.items()},  # the key in every home
            "flow": state.flow.to_data() if state.flow is not None else {}}
    del body["waits"]
    return body if state.graph else {name: value for name, value in body.items() if name != "graph"}


def from_snapshot(data: Mapping[str, object]) -> RunState:
    """Return the state that `to_snapshot` wrote, without the flow; older snapshots have fewer keys."""
    recorded = from_data(RecordedState, {name: value for name, value in data.items() if name != "gates"})
    waits = from_data(dict[str, dict[str, object]], data.get("gates", {}))
    recorded.waits = {place: OpenWait.from_record(wait) for place, wait in waits.items()}
    return RunState(**fields_of(recorded))


def outcome_summary(event: events.FlowAdvanced, before: NodeOutcome | None) -> NodeOutcome:
    """Return the outcome of a finished step, for display; `before` is the outcome of the node's previous step."""
    outcome = event.outcome
    return NodeOutcome(outcome.status, outcome.preferred_label, outcome.failure_reason.partition("\n")[0], event.place,
                       1 + before.ends if before else 1)


def replay_run(entries: Iterable[Entry], program: Program | None = None, run: str = "",
               children: Mapping[str, RunPlan] | None = None) -> RunState:
    """Return the state after `entries`; given the program, id and nested pipelines, the flow's state as well."""
    state = RunState()
    if program is not None:
        from garrison.run.flow import RunFlow  # only a guardian follows the flow; every launch replays runs

        state.flow = RunFlow(program, run, children)
    for entry in entries:
        state.apply(entry)
    return state
