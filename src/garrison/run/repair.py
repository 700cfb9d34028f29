"""Repair a run's damaged or lost records, by the evidence in the rest of the home and the repository.

    damaged, empty or lost        rebuilt from
    launch.json, graph.dot        their copy in the journals of guardian and launcher (`state.py`)
    journal.jsonl                 readable records, then attempts, merge entries and signals (`catch_up`)
    layers/*.jsonl                the readable records; the process finds the rest by its hook and its results
    an identity, a hook           the other of the two, and the journals (`supervise/incarnation.py rebuild_identity`)
    the merge queue's journal     records, signals, history and pins (`merge/recovery.py`)
    task.json                     the graph and the run's state, as the guardian built it

A reader never repairs: `garrison resume`, `garrison up` and `garrison doctor --fix` do (`repair_run`), while they hold
the life locks of launcher and guardian, and each process repairs its own journal when it starts. Files of a living
process are left to it. The damaged file goes to `quarantine/`.

The state of a run is rebuilt by pure functions. `salvage_state` replays the readable records. `catch_up`
brings that state forward to the evidence: the attempts that have a folder, the entries of the merge queue, the runners'
reports and the user's answers among the received signals. It walks the flow from its current place: a step whose
attempt landed or failed is finished as its guardian did, with the outcome of a readable record, else with the
attempt's own result; the others are in flight at their latest attempt. Steps without evidence are repeated: no work is
lost, and none that landed is repeated.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from garrison.ends import SETTLED, RefusedBy
from garrison.errors import (
    ForbiddenTransition,
    GarrisonError,
    NewerSchema,
    RecordCorrupt,
    RecordError,
    RecordUnreadable,
    Refused,
    UsageError,
)
from garrison.merge import recovery
from garrison.merge.entry import HAS_LANDED
from garrison.merge.queue import list_queues
from garrison.pipeline.node_status import LandingWord
from garrison.pipeline.outcome import FAIL, RETRY
from garrison.pipeline.plan import first_status
from garrison.processes.loop import log_line
from garrison.records import atomic, journal, record, signals
from garrison.records import run as run_records
from garrison.records.events import (
    REPAIR,
    FlowAdvanced,
    GuardianSignal,
    LandingChanged,
    LaunchRecorded,
    NodeChanged,
    NoteWritten,
    RunChanged,
    decode,
    encode,
)
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.life_lock import hold, is_held
from garrison.records.names import INTEGRATION, Key, launcher_key
from garrison.records.run import LAND_PR, LAND_RUN, Launch, Task
from garrison.records.signals import InputResponse, NodeComplete, RunnerExited
from garrison.records.store import quarantine
from garrison.run import best_of, flow_policy
from garrison.run import branch as run_branch
from garrison.run.flow import step_id
from garrison.run.plan import (
    change_after_failure,
    change_plan,
    graph_hash,
    is_behind,
    latest_attempts,
    read_plan,
)
from garrison.run.state import LANDED, REFUSED, NodeState, RunState, copy_launch, replay_run, to_snapshot
from garrison.supervise.incarnation import rebuild_identity
from garrison.system.clock import from_iso
from garrison.system.git import GitError
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from garrison.merge.queue import MergeQueue
    from garrison.pipeline.flow import Visit
    from garrison.pipeline.plan import RunPlan
    from garrison.processes.runtime import Runtime
    from garrison.records.events import Event
    from garrison.records.journal import Entry
    from garrison.records.run import Result, RunFiles

_NUMBERS_BEYOND = 100_000
"""Numbers that lost records may have used."""
_RANK = {"pending": 0, "active": 1, "impl_complete": 2, "validated": 3, "failed": 3, "skipped": 3}
_MOST_STEPS = 10_000
"""Most steps of a flow that are caught up at once."""


def repair_run(runtime: Runtime, run: str) -> list[str]:
    """Repair a run that has no living launcher; return a line about each repair, none if nothing was damaged.

    RecordError if launch.json or the journal is damaged and nothing is left to rebuild it from.
    """
    if run not in run_records.list_runs(runtime.home):
        return []
    with ExitStack() as stack:
        if not _try_lock(runtime, stack, launcher_key(run)):
            return []
        notes = [f"{note}; it was restored from the journal" for note in repair_launch(runtime, run)]
        launch = runtime.launch(run)
        guardian = Key("guardian", launch.pipeline_id, run)
        is_guarded = launch.adhoc or not _try_lock(runtime, stack, guardian)
        locked = {launcher_key(run)} if is_guarded else {launcher_key(run), guardian}
        notes += _repair_records(runtime, run, locked)
        notes += _repair_process_journals(runtime, run, locked)
        notes += _repair_queues(runtime, launch)
        if not is_guarded:
            plan = None
            with suppress(GarrisonError):  # without its graph no journal is rebuilt; users of the graph report it
                plan = read_plan(runtime.files(run), launch, as_launched=True)
            if plan is not None:
                notes += repair_journal(runtime, launch, plan)
    return notes


def repair_own(runtime: Runtime, key: Key, error: RecordCorrupt) -> bool:
    """Repair the damaged journal that keeps a process from starting; the caller is that process, and retries.

    False if the damaged file is another process's.
    """
    files = runtime.files(key.run)
    if error.path == str(files.journal) and key.role == "guardian":
        launch = runtime.launch(key.run)
        notes = repair_journal(runtime, launch, load_plan(runtime, launch))
    elif error.path == str(files.process_journal(key.full.partition("@")[0])):
        notes = repair_process_journal(runtime, Path(error.path))
    else:
        return False
    for note in notes:
        log_line(note)
    return bool(notes)


def _try_lock(runtime: Runtime, stack: ExitStack, key: Key) -> bool:
    """Hold a name's life lock until the stack is closed, so that it cannot start; False if it is alive."""
    atomic.make_directory(runtime.home / "identities")
    return stack.enter_context(hold(runtime.store.life_path(key))) is not None


# ---- launch.json and the graph ---------------------------------------------------------------------------------------


def load_plan(runtime: Runtime, launch: Launch) -> RunPlan:
    """Return a run's plan, for its guardian; the graph is restored first if it is damaged or lost."""
    files = runtime.files(launch.run_id)
    if _is_graph_damaged(files, launch):
        repair_launch(runtime, launch.run_id)
    return read_plan(files, launch, as_launched=True)


def repair_launch(runtime: Runtime, run: str) -> list[str]:
    """Restore a run's launch.json and graphs; return their damage in words."""
    files = runtime.files(run)
    try:
        launch, why = run_records.load(Launch, files.launch), "it is gone"
    except RecordCorrupt as error:
        launch, why = None, error.why
    copy = None
    notes = []
    if launch is None:
        copy = _find_copy(files)
        if copy is None:
            raise RecordCorrupt(files.launch, f"{why}, and no journal of the run has a copy; restore it, or start "
                                              "another run with `garrison launch GRAPH --new`")
        launch = record.decode(Launch, copy.launch.encode(), files.launch)
        _set_aside(runtime, files.launch)
        run_records.save(files.launch, launch)
        notes.append(f"{files.launch}: {why}")
    if not launch.adhoc and _is_graph_damaged(files, launch) and (copy := copy or _find_copy(files)) is not None:
        _restore_graphs(runtime, files, copy)
        notes.append(f"{files.launched_graph}, or a file in {files.graphs}, was damaged")
    return notes


def _is_graph_damaged(files: RunFiles, launch: Launch) -> bool:
    """Return whether the graph differs from the one with which the run was launched."""
    try:
        plan = read_plan(files, launch, as_launched=True)
        return launch.graph_hash not in ("", graph_hash(files.launched_graph.read_text(encoding="utf-8"), plan))
    except (GarrisonError, OSError, ValueError):
        return True


def _restore_graphs(runtime: Runtime, files: RunFiles, copy: LaunchRecorded) -> None:
    texts = {files.launched_graph: copy.graph} | {
        files.graphs / f"{name}.dot": text for name, text in copy.nested.items()}
    for path, text in texts.items():
        with suppress(OSError):
            if path.read_bytes() == text.encode():
                continue
        _set_aside(runtime, path)
        atomic.make_directory(path.parent)
        atomic.write(path, text.encode())


def _find_copy(files: RunFiles) -> LaunchRecorded | None:
    """Return the copy of launch and graphs in the guardian's or the launcher's journal."""
    launcher = files.process_journal("launch")
    for path in (files.journal, *journal.archived_parts(files.journal), launcher, *journal.archived_parts(launcher)):
        with suppress(RecordError, OSError):
            for entry in journal.salvage(path)[0]:
                with suppress(ValueError, KeyError, TypeError):
                    if isinstance(event := decode(entry), LaunchRecorded):
                        return event
    return None


def _set_aside(runtime: Runtime, path: Path) -> None:
    """Move a damaged file to quarantine; nothing if it is gone, or another process did it first."""
    with suppress(FileNotFoundError):
        quarantine(runtime.home, path, runtime.clock.utc())


# ---- records and journals of processes -------------------------------------------------------------------------------


def _repair_records(runtime: Runtime, run: str, locked: Collection[Key]) -> Iterator[str]:
    """Repair the identities, hooks and tasks of dead processes; the caller holds the life locks of
    `locked`."""
    store = runtime.store
    for key in sorted({*store.keys(Identity), *store.keys(Hook)}):
        if key.run != run or (key not in locked and is_held(store.life_path(key))):
            continue
        if error := _find_damage(partial(store.read, Identity, key)):
            rebuild_identity(runtime.observer, key, locked=key in locked)
            yield f"{error.path}: {error.why}; rebuilt, as of an incarnation that died"
        if error := _find_damage(partial(store.read, Hook, key)):
            store.rebuild(Hook, key, lambda: None, runtime.clock.utc())
            yield f"{error.path}: {error.why}; its phase is recovered from the state of the work"
    for path in sorted(runtime.files(run).root.glob("nodes/*/*/task.json")):
        if error := _find_damage(partial(run_records.load, Task, path)):
            _set_aside(runtime, path)
            yield f"{path}: {error.why}; its guardian rebuilds it"


def _find_damage(read: Callable[[], object]) -> RecordCorrupt | None:
    """Return the error of a damaged record; None for a readable one, or one that only the user can repair."""
    with suppress(RecordUnreadable, NewerSchema):
        try:
            read()
        except RecordCorrupt as error:
            return error
    return None


def _repair_process_journals(runtime: Runtime, run: str, locked: Collection[Key]) -> Iterator[str]:
    for path in sorted((runtime.files(run).root / "layers").glob("*.jsonl")):
        try:
            key = Key.parse(f"{path.stem}@{run}")
        except UsageError:
            continue
        if key in locked or not is_held(runtime.store.life_path(key)):
            yield from repair_process_journal(runtime, path)


def repair_process_journal(runtime: Runtime, path: Path) -> list[str]:
    """Rewrite the damaged journal of a process with its readable records; the caller is its only writer."""
    error = _find_damage(partial(journal.read_all, path))
    if error is None:
        return []
    stored, unreadable = journal.salvage(path)
    lines = [journal.Entry(number, each.epoch, each.token, each.at, each.kind, each.data)
             for number, each in enumerate(stored, 1)]
    _set_aside(runtime, path)
    if lines:
        journal.replace_shared(path, *lines)
    return [f"{path}: {error.why}; {len(lines)} records were kept, {len(unreadable) or 'some'} were lost"]


# ---- the merge queue -------------------------------------------------------------------------------------------------


def _repair_queues(runtime: Runtime, launch: Launch) -> Iterator[str]:
    """Rebuild the journals of the run's merge queues, unless a processor works them, which does it itself."""
    if not Path(launch.repo).is_dir():
        return  # a resume reports that
    queues = run_branch.node_queue(runtime, launch, "repair"), run_branch.landing_queue(runtime, launch, "repair")
    for queue in queues:
        with suppress(Refused, GitError):  # a queue that is in use is rebuilt by its processor
            if queue is None or queue.is_processor_running():
                continue
            # Landed entries have no pin; but every launch records a gate before its run starts.
            is_lost = runtime.files(launch.run_id).journal.exists() and _has_no_gate(queue)
            if why := recovery.find_damage(queue) or ("it is gone, or was restarted" if is_lost else ""):
                run_branch.rebuild_queue(queue, launch, runtime.timing.gate_timeout)
                yield f"{queue.path}: {why}; rebuilt with {len(queue.state.entries)} entries"


def _has_no_gate(queue: MergeQueue) -> bool:
    with suppress(RecordError):
        return queue.state.config is None
    return False


# ---- the run's journal -----------------------------------------------------------------------------------------------


def repair_journal(runtime: Runtime, launch: Launch, plan: RunPlan) -> list[str]:
    """Rebuild a run's journal if it is damaged, empty or behind; the caller holds the guardian's life lock."""
    files = runtime.files(launch.run_id)
    why = _find_journal_damage(files, plan)
    if not why:
        return []
    stored, _ = journal.salvage(files.journal)
    state = salvage_state(plan, launch.run_id, stored)
    with suppress(GarrisonError, OSError):  # a damaged copy: the graph in the journal must do
        if (text := files.changed_graph.read_text(encoding="utf-8")) != state.graph:  # the record of it is lost
            change_plan(plan, text)
            state.change_graph(text)
    plan = change_plan(plan, state.graph)
    now = runtime.clock.utc()
    evidence = replace(_gather_evidence(runtime, launch, plan), finished=find_finished_steps(stored))
    catch_up(plan, state, evidence, now, launch.max_rework)
    note = "; ".join([f"{files.journal}: {why}; rebuilt: {state.landed} of {len(state.nodes)} nodes have landed",
                      *find_lost_reports(evidence)])
    _write_journal(runtime, files, stored, [copy_launch(files, launch), NoteWritten(REPAIR, note)],
                   to_snapshot(state), now)
    return [note]


def _find_journal_damage(files: RunFiles, plan: RunPlan) -> str:
    """Return the damage of a run's journal, '' for none."""
    try:
        state = replay_run(journal.read_all(files.journal), plan.program, files.run, plan.children)
        plan = change_plan(plan, state.graph)
    except RecordCorrupt as error:
        return error.why
    except (GarrisonError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RecordError):
            raise
        return f"its records contradict each other ({error})"
    if not is_behind(state, latest_attempts(files, plan)):
        return ""
    return "it is empty, but the run has started" if state.status == "new" else "its last records are missing"


def _write_journal(runtime: Runtime, files: RunFiles, stored: list[Entry], events: list[Event],
                   snapshot: dict[str, object], now: str) -> None:
    """Write the new journal as one file, renamed into place: a crash leaves the old one or the new one."""
    path, token = files.journal, f"repair@{files.run}"
    _keep_history(path, stored)
    # Beyond every lost number: readers that had read further must not take new records for known ones.
    seq = max((each.seq for each in stored), default=0) + _NUMBERS_BEYOND
    epoch = max((each.epoch for each in stored), default=0) + 1
    if path.exists():
        quarantine(runtime.home, path, now, replaced=True)
    atomic.make_directory(path.parent)
    lines = [journal.Entry(seq + number, epoch, token, now, event.kind, encode(event))
             for number, event in enumerate(events, 1)]
    journal.replace_shared(path, journal.Entry(seq, epoch, token, now, "snapshot", snapshot), *lines)


def _keep_history(path: Path, stored: list[Entry]) -> None:
    """Keep the records before the damage as an archived part, so that the run's history starts with them."""
    whole = [each for number, each in enumerate(stored) if each.seq == stored[0].seq + number]
    if whole and not journal.archived_parts(path):
        lines = b"".join(journal.encode_line(each) for each in whole)
        atomic.write(path.with_name(f"{path.stem}-{whole[-1].seq}.jsonl"), lines)


def _gather_evidence(runtime: Runtime, launch: Launch, plan: RunPlan) -> RunEvidence:
    run, files = launch.run_id, runtime.files(launch.run_id)
    guardian = Key("guardian", launch.pipeline_id, run)
    received = list(_received(runtime, guardian))
    reports = {(str(signal.node_id), signal.attempt): payload for signal in received
               if isinstance(payload := signals.parse(signal), RunnerExited)}
    complete = {(str(signal.node_id), signal.attempt): payload for signal in received
                if isinstance(payload := signals.parse(signal), NodeComplete) and payload.landing}
    entries = [entry for queue in list_queues(runtime.home, lambda _: None)
               for entry in queue.state.entries.values() if entry.run == run and entry.status in HAS_LANDED]
    landed = {(entry.node, entry.attempt): entry.commit for entry in entries}
    # Work that passed a pull request's gate has not landed: it is tested again, and the forge knows the rest.
    status = REFUSED if launch.land == LAND_PR else LANDED
    whole = [LandingChanged(status, entry.attempt, entry.oid, entry.commit) for entry in entries
             if entry.node == INTEGRATION and launch.land in (LAND_RUN, LAND_PR)]
    attempts: dict[str, list[AttemptEvidence]] = {}
    for name in plan.tasks:
        for attempt in range(1, files.latest_attempt(name) + 1):
            folder = files.attempt(name, attempt)
            result, problem = run_records.read_result(folder / "result.json", run, name, attempt)
            attempts.setdefault(name, []).append(AttemptEvidence(
                attempt, _step_of(folder / "task.json"), landed.get((name, attempt)), complete.get((name, attempt)),
                reports.get((name, attempt)), result, problem))
    answers = {payload.question_id: payload.text for signal in received
               if isinstance(payload := signals.parse(signal), InputResponse)}
    keys = [*(Key("runner", name, run) for name in plan.tasks), Key("processor", launch.pipeline_id, run)]
    return RunEvidence(attempts, answers, frozenset(signal.id for signal in received),
                       {key.full: number for key in keys if (number := _incarnation(runtime, key))},
                       _end_of_guardian(runtime, guardian), whole[-1] if whole else None)


def _received(runtime: Runtime, key: Key) -> Iterator[signals.Signal]:
    """Yield the signals that a process has applied."""
    folder = signals.inbox_path(runtime.home, key) / "taken"
    for name in sorted(atomic.list_names(folder)):
        with suppress(RecordError, OSError):
            yield signals.read(folder / name)


def _step_of(path: Path) -> str:
    with suppress(RecordError):
        task = run_records.load(Task, path)
        return task.step if task is not None else ""
    return ""


def _incarnation(runtime: Runtime, key: Key) -> int:
    with suppress(RecordError):
        identity = runtime.store.read(Identity, key)
        return identity.incarnation if identity is not None else 0
    return 0


def _end_of_guardian(runtime: Runtime, key: Key) -> str:
    """Return the status of the run with which its last guardian ended, '' if it died."""
    with suppress(RecordError):
        identity = runtime.store.read(Identity, key)
        if identity is not None and identity.departure in SETTLED:
            return str(identity.departure)
    return ""


# ---- the state of a run, from its readable records and the evidence in the rest of the run. Pure ---------------------


class AttemptEvidence(Value):
    """Evidence of one attempt at a node; `step` is '' in runs of older releases."""

    attempt: int
    step: str = ""
    landed: str | None = None
    """The commit that landed for it; None if nothing did."""
    complete: NodeComplete | None = None
    """Report of its runner on work that is complete without a landing."""
    report: RunnerExited | None = None
    result: Result | None = None
    result_problem: str = ""
    """Reason why its result cannot be read, '' if it can or there is none."""

    @property
    def has_succeeded(self) -> bool:
        return self.landed is not None or self.complete is not None or (
            self.report is not None and self.report.status == "done")

    @property
    def has_failed(self) -> bool:
        return not self.has_succeeded and self.report is not None and self.report.status == "failed"


class RunEvidence(Value):
    """Evidence of a run alongside its journal."""

    attempts: Mapping[str, Sequence[AttemptEvidence]] = msgspec.field(default_factory=dict)
    """Node → its attempts, in order."""
    answers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Place of a question → the received answer of the user."""
    applied: frozenset[str] = frozenset()
    """Ids of the signals that were applied."""
    incarnations: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Full name of a runner or the processor → its latest incarnation."""
    ended: str = ""
    """Status with which the last guardian ended; '' if it did not end gracefully."""
    landed: LandingChanged | None = None
    """The landing of the whole run, by the target's queue."""
    finished: Mapping[tuple[str, int], FlowAdvanced] = msgspec.field(default_factory=dict)
    """Place and attempt of a step → the readable record that ended it (`find_finished_steps`)."""


def salvage_state(plan: RunPlan, run: str, stored: Iterable[Entry]) -> RunState:
    """Return the state after the readable records; each applies, whatever is missing before it."""
    state = replay_run([], plan.program, run, plan.children)
    for entry in stored:
        try:
            event = decode(entry)
        except (ValueError, KeyError, TypeError):
            continue
        if event is not None:
            _apply(state, event, entry.at)
    return state


def find_finished_steps(stored: Iterable[Entry]) -> dict[tuple[str, int], FlowAdvanced]:
    """Return the readable records that ended a step, by place and attempt.

    One that follows lost records applies to no place yet, but is the only evidence if its result is lost.
    """
    found = {}
    for entry in stored:
        with suppress(ValueError, KeyError, TypeError):
            event = decode(entry)
            if isinstance(event, FlowAdvanced) and event.event == "finished":
                found[event.place, int(str(event.body.get("attempt", 0)))] = event
    return found


def find_lost_reports(evidence: RunEvidence) -> list[str]:
    """Return why a report is lost, for each successful attempt with a damaged result and without a record of its
    outcome."""
    told = {f"{place}:{attempt}" for place, attempt in evidence.finished}
    return [f"{attempt.result_problem}; {name} counts as done without its report"
            for name, attempts in evidence.attempts.items() for attempt in attempts
            if attempt.result_problem and attempt.has_succeeded and attempt.step not in told]


def _apply(state: RunState, event: Event, at: str) -> None:
    """Apply an event; one whose predecessor is missing changes its node all the same."""
    try:
        state.apply_event(event, at)
    except ForbiddenTransition:
        effect = event if isinstance(event, NodeChanged) else getattr(event, "effect", None)
        if isinstance(event, (NodeChanged, GuardianSignal)) and effect is not None:
            state.nodes[effect.node] = replace(state.nodes[effect.node], status=effect.status)
            state.apply_event(event, at)
    except (GarrisonError, KeyError, ValueError):
        return


def catch_up(plan: RunPlan, state: RunState, evidence: RunEvidence, now: str, max_rework: int) -> None:
    """Bring `state` forward to the evidence; `now` is UTC."""
    for name, status in first_status(plan).items():
        if name not in state.nodes:
            state.apply_event(NodeChanged(name, status, candidate_of=plan.tasks[name].candidate_of), now)
    if state.status == "new":
        state.apply_event(RunChanged("running"), now)
    state.applied |= evidence.applied
    for full, incarnation in evidence.incarnations.items():
        state.incarnations[full] = max(state.incarnations.get(full, 0), incarnation)
    for _ in range(_MOST_STEPS):
        if not _take_step(plan, state, evidence, now, max_rework):
            break
    _catch_up_passed(plan, state, evidence, now, max_rework)
    if evidence.landed is not None and state.landing.status != LANDED:
        state.apply_event(evidence.landed, now)
        is_over = evidence.landed.status == LANDED and (state.flow is None or state.flow.over != "done")
        if is_over and state.status == "running":
            state.apply_event(RunChanged("done", "it has landed; its journal was rebuilt"), now)
    if evidence.ended in ("stopped", "failed") and state.status == "running":
        state.apply_event(RunChanged(evidence.ended, "its journal was rebuilt; the reason for its end is lost"), now)


def _take_step(plan: RunPlan, state: RunState, evidence: RunEvidence, now: str, max_rework: int) -> bool:
    """Catch up one node, or one step of the flow; return whether anything changed."""
    places = list(state.flow.places.values()) if state.flow is not None else []
    for place in places:
        if place.node in plan.tasks:
            attempts, best = _attempts_of(place, evidence), plan.tasks[place.node].best_of
            _catch_up_node(plan, state, place, attempts, now, max_rework)
            for its in (replace(place, node=name) for name in (best.names if best is not None else ())):
                _catch_up_node(plan, state, its, _attempts_of(its, evidence), now, max_rework)
            results = {each.attempt: each.result for each in attempts}
            ended = flow_policy.finish_task(plan, state, place, results.get(state.nodes[place.node].attempt))
            finished = ended.expect(FlowAdvanced) if ended is not None else None
            known = _journaled(place, evidence)
            if finished is not None and known is not None and _has_failed(known) == _has_failed(finished):
                finished = known
        else:
            answer = evidence.answers.get(place.id)  # it was received before the journal was damaged
            finished = flow_policy.repeat_answer(plan, place, answer, from_iso(now)) if answer is not None else \
                _journaled(place, evidence)
        if finished is not None:
            _apply(state, finished, now)
            return True
    return False


def _journaled(place: Visit, evidence: RunEvidence) -> FlowAdvanced | None:
    return evidence.finished.get((place.id, place.attempt))


def _has_failed(finished: FlowAdvanced) -> bool:
    return finished.outcome.status in (FAIL, RETRY)


def _attempts_of(place: Visit, evidence: RunEvidence) -> list[AttemptEvidence]:
    """Return the attempts at one step; those of older runs, which record no step, count as the first's."""
    is_first = place.visit == 1 and place.attempt == 1
    return [each for each in evidence.attempts.get(place.node, ())
            if each.step == step_id(place) or (not each.step and is_first)]


def _catch_up_node(plan: RunPlan, state: RunState, place: Visit, attempts: Sequence[AttemptEvidence], now: str,
                   max_rework: int) -> None:
    if not attempts:
        return
    before, node = state.nodes[place.node], _node_after(plan, place.node, step_id(place), attempts, now, max_rework)
    is_known = flow_policy.is_at(before, place) and (before.attempt, _RANK[before.status]) >= (
        node.attempt, _RANK[node.status])
    if not is_known:
        state.nodes[place.node] = node


def _catch_up_passed(plan: RunPlan, state: RunState, evidence: RunEvidence, now: str, max_rework: int) -> None:
    """Catch up nodes whose step the flow has left, but whose own records are lost: else the journal stays behind."""
    at_work = {place.node for place in state.flow.places.values()} if state.flow is not None else set()
    for name, attempts in evidence.attempts.items():
        if name in at_work or name not in state.nodes or not is_behind(state, {name: attempts[-1].attempt}):
            continue
        of_step = [each for each in attempts if each.step == attempts[-1].step]
        state.nodes[name] = _node_after(plan, name, attempts[-1].step, of_step, now, max_rework)


def _node_after(plan: RunPlan, name: str, step: str, attempts: Sequence[AttemptEvidence], now: str,
                max_rework: int) -> NodeState:
    """Return a node after its attempts at one step."""
    last = attempts[-1]
    moved = sum(each.report is not None and each.report.failure_kind == RefusedBy.MOVED for each in attempts[:-1])
    node = NodeState("active", last.attempt, step=step, first=attempts[0].attempt, since=now, moved=moved,
                     candidate_of=plan.tasks[name].candidate_of)
    if last.has_succeeded:
        landing = "" if last.landed else last.complete.landing if last.complete is not None else LandingWord.NO_CHANGE
        node = replace(node, status="validated", commit=last.landed or "", landing=landing,
                       kept=best_of.kept_of(last.complete) if last.complete is not None else None)
    elif last.has_failed and last.report is not None:
        report = last.report
        change = change_after_failure(plan, name, node, report.failure_kind, report.reason, max_rework)
        node = replace(node, status=change.status, attempt=change.attempt, reason=change.reason,
                       kind=change.failure_kind, moved=moved + (change.failure_kind == RefusedBy.MOVED),
                       escalated=change.escalated)
    return node
