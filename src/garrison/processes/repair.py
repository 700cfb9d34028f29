"""Repair of a run's damaged or lost records, from what the rest of the home and the repository show.

    damaged, empty or lost        rebuilt from
    launch.json, graph.dot        their copy in the journals of guardian and launcher (`launch_copy.py`)
    journal.jsonl                 readable records, then attempts, merge entries and signals (`guardian/rebuild.py`)
    layers/*.jsonl                the records that can be read; the process finds the rest by its hook and its results
    an identity, a hook           the other of the two, and the journals (`supervise/incarnation.py rebuild_identity`)
    the merge queue's journal     records, signals, history and pins (`merge/recovery.py`)
    task.json                     the graph and the run's state, as the guardian built it

A reader never repairs: `garrison resume`, `garrison up` and `garrison doctor --fix` do (`repair_run`), while they hold
the life locks of launcher and guardian, and each process does for its own journal when it starts. What a living process
owns is left to it. The damaged file goes to `quarantine/`.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.ends import SETTLED
from garrison.errors import (
    GarrisonError,
    NewerSchema,
    NotFound,
    RecordCorrupt,
    RecordError,
    RecordUnreadable,
    Refused,
    UsageError,
)
from garrison.merge import recovery
from garrison.merge.entry import HAS_LANDED
from garrison.merge.queue import list_queues
from garrison.processes import run_branch
from garrison.processes.guardian import rebuild
from garrison.processes.guardian.rebuild import AttemptEvidence, RunEvidence
from garrison.processes.launch_copy import copy_launch
from garrison.processes.loop import log_line
from garrison.processes.run_plan import change_plan, graph_hash, latest_attempts, read_plan
from garrison.processes.run_state import LANDED, REFUSED, replay_run, to_snapshot
from garrison.records import atomic, journal, record, signals
from garrison.records import run as run_records
from garrison.records.events import REPAIR, LandingChanged, LaunchRecorded, NoteWritten, decode, encode
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.life_lock import LifeLock, is_held
from garrison.records.names import INTEGRATION, Key, launcher_key
from garrison.records.quarantine import quarantine
from garrison.records.run import LAND_PR, LAND_RUN, Launch, Task
from garrison.records.signals import InputResponse, NodeComplete, RunnerExited
from garrison.supervise.incarnation import rebuild_identity
from garrison.system.git import GitError
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from garrison.merge.queue import MergeQueue
    from garrison.pipeline.plan import RunPlan
    from garrison.processes.runtime import Runtime
    from garrison.records.events import Event
    from garrison.records.journal import Entry
    from garrison.records.run import RunFiles

_NUMBERS_BEYOND = 100_000
"""Numbers that lost records may have used."""


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
            with suppress(GarrisonError):  # without its graph no journal is rebuilt; who needs the graph says so
                plan = read_plan(runtime.files(run), launch, as_launched=True)
            if plan is not None:
                notes += repair_journal(runtime, launch, plan)
    return notes


def repair_own(runtime: Runtime, key: Key, error: RecordCorrupt) -> bool:
    """Repair the damaged journal that keeps a process from starting; the caller is that process, and retries.

    False if the damaged file is not its own.
    """
    files = runtime.files(key.run)
    if error.path == str(files.journal) and key.role == "guardian":
        launch = load_launch(runtime, key.run)
        notes = repair_journal(runtime, launch, load_plan(runtime, launch))
    elif error.path == str(files.process_journal(key.full.partition("@")[0])):
        notes = repair_process_journal(runtime, Path(error.path))
    else:
        return False
    for note in notes:
        log_line(note)
    return bool(notes)


def _try_lock(runtime: Runtime, stack: ExitStack, key: Key) -> bool:
    """Hold a name's life lock until the stack is closed, so that it cannot start; False if it lives."""
    atomic.make_directory(runtime.home / "identities")
    lock = LifeLock.try_acquire(runtime.store.life_path(key))
    if lock is not None:
        stack.callback(lock.release)
    return lock is not None


# ---- launch.json and the graph ---------------------------------------------------------------------------------------


def load_launch(runtime: Runtime, run: str) -> Launch:
    """Return what a run was launched with, for one of its processes; restored first if it is damaged or lost."""
    try:
        return runtime.launch(run)
    except (NotFound, RecordCorrupt):
        repair_launch(runtime, run)
        return runtime.launch(run)


def load_plan(runtime: Runtime, launch: Launch) -> RunPlan:
    """Return a run's plan, for its guardian; the graph is restored first if it is damaged or lost."""
    files = runtime.files(launch.run_id)
    if _is_graph_damaged(files, launch):
        repair_launch(runtime, launch.run_id)
    return read_plan(files, launch, as_launched=True)


def repair_launch(runtime: Runtime, run: str) -> list[str]:
    """Restore a run's launch.json and graphs; return what was wrong with them."""
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
    """Return whether the graph is not the one that the run was launched with."""
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
    """Repair the identities, hooks and tasks of processes that do not live; the caller holds the life locks of
    `locked`."""
    store = runtime.store
    for key in sorted({*store.keys(Identity), *store.keys(Hook)}):
        if key.run != run or (key not in locked and is_held(store.life_path(key))):
            continue
        if error := _find_damage(partial(store.read, Identity, key)):
            rebuild_identity(runtime.observer, key, locked=key in locked)
            yield f"{error.path}: {error.why}; rebuilt as that of an incarnation that died"
        if error := _find_damage(partial(store.read, Hook, key)):
            store.rebuild(Hook, key, lambda: None, runtime.clock.utc())
            yield f"{error.path}: {error.why}; its phase is found again by what the work has left"
    for path in sorted(runtime.files(run).root.glob("nodes/*/*/task.json")):
        if error := _find_damage(partial(run_records.load, Task, path)):
            _set_aside(runtime, path)
            yield f"{path}: {error.why}; its guardian builds it again"


def _find_damage(read: Callable[[], object]) -> RecordCorrupt | None:
    """Return the error of a damaged record; None for one that can be read, or that only a person can repair."""
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
    """Rewrite the damaged journal of a process with the records that can be read; the caller is its only writer."""
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
    """Rebuild the journals of the run's merge queues, unless a processor works them: that does it itself."""
    if not Path(launch.repo).is_dir():
        return  # a resume reports that
    queues = run_branch.node_queue(runtime, launch, "repair"), run_branch.landing_queue(runtime, launch, "repair")
    for queue in queues:
        with suppress(Refused, GitError):  # a queue that is in use is rebuilt by its processor
            if queue is None or queue.is_processor_running():
                continue
            # What landed has no pin; but every launch records a gate before its run begins.
            is_lost = runtime.files(launch.run_id).journal.exists() and _has_no_gate(queue)
            if why := recovery.find_damage(queue) or ("it is gone, or was started again" if is_lost else ""):
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
    state = rebuild.salvage_state(plan, launch.run_id, stored)
    with suppress(GarrisonError, OSError):  # a damaged copy: what the journal tells of the graph has to do
        if (text := files.changed_graph.read_text(encoding="utf-8")) != state.graph:  # the record of it is lost
            change_plan(plan, text)
            state.change_graph(text)
    plan = change_plan(plan, state.graph)
    now = runtime.clock.utc()
    evidence = replace(_gather_evidence(runtime, launch, plan), finished=rebuild.find_finished_steps(stored))
    rebuild.catch_up(plan, state, evidence, now, launch.max_rework)
    note = "; ".join([f"{files.journal}: {why}; rebuilt: {state.landed} of {len(state.nodes)} nodes have landed",
                      *rebuild.find_lost_reports(evidence)])
    _write_journal(runtime, files, stored, [copy_launch(files, launch), NoteWritten(REPAIR, note)],
                   to_snapshot(state), now)
    return [note]


def _find_journal_damage(files: RunFiles, plan: RunPlan) -> str:
    """Return what is wrong with a run's journal, '' if nothing is."""
    try:
        state = replay_run(journal.read_all(files.journal), plan.program, files.run, plan.children)
        plan = change_plan(plan, state.graph)
    except RecordCorrupt as error:
        return error.why
    except (GarrisonError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RecordError):
            raise
        return f"its records contradict each other ({error})"
    if not rebuild.is_behind(state, latest_attempts(files, plan)):
        return ""
    return "it is empty, but the run has begun" if state.status == "new" else "its last records are missing"


def _write_journal(runtime: Runtime, files: RunFiles, stored: list[Entry], events: list[Event],
                   snapshot: dict[str, object], now: str) -> None:
    """Write the new journal as one file, renamed into place: a crash leaves the old one or the new one."""
    path, token = files.journal, f"repair@{files.run}"
    _keep_history(path, stored)
    seq = max((each.seq for each in stored), default=0) + _NUMBERS_BEYOND
    epoch = max((each.epoch for each in stored), default=0) + 1
    if path.exists():
        quarantine(runtime.home, path, now, replaced=True)
    atomic.make_directory(path.parent)
    lines = [journal.Entry(seq + number, epoch, token, now, event.kind, encode(event))
             for number, event in enumerate(events, 1)]
    journal.replace_shared(path, journal.Entry(seq, epoch, token, now, "snapshot", snapshot), *lines)


def _keep_history(path: Path, stored: list[Entry]) -> None:
    """Keep the records before the damage as an archived part, so that the run's history begins with them."""
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
    unchanged = {(str(signal.node_id), signal.attempt) for signal in received
                 if isinstance(payload := signals.parse(signal), NodeComplete) and payload.landing}
    entries = [entry for queue in list_queues(runtime.home, lambda _: None)
               for entry in queue.state.entries.values() if entry.run == run and entry.status in HAS_LANDED]
    landed = {(entry.node, entry.attempt): entry.commit for entry in entries}
    # What passed the gate of a pull request has not landed: it is tested anew, and the forge knows the rest.
    status = REFUSED if launch.land == LAND_PR else LANDED
    whole = [LandingChanged(status, entry.attempt, entry.oid, entry.commit) for entry in entries
             if entry.node == INTEGRATION and launch.land in (LAND_RUN, LAND_PR)]
    found = []
    for name in plan.tasks:
        for attempt in range(1, files.latest_attempt(name) + 1):
            folder = files.attempt(name, attempt)
            result, problem = run_records.read_result(folder / "result.json", run, name, attempt)
            found.append((name, AttemptEvidence(attempt, _step_of(folder / "task.json"), landed.get((name, attempt)),
                                                (name, attempt) in unchanged, reports.get((name, attempt)), result,
                                                problem)))
    answers = {payload.question_id: payload.text for signal in received
               if isinstance(payload := signals.parse(signal), InputResponse)}
    keys = [*(Key("runner", name, run) for name in plan.tasks), Key("processor", launch.pipeline_id, run)]
    return RunEvidence(rebuild.group_attempts(found), answers, frozenset(signal.id for signal in received),
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
