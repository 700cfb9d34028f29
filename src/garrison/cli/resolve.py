"""Resolve names on the command line to records, runs, nodes, merge queues and merge entries.

`choose` implements the rule for records and is pure. Without `--run` it takes the only record of that name; else the
one in the caller's run; else the only living one; else it refuses and lists the candidates. For an unknown name it
suggests the closest existing one.

Shell completion and cron call this module, so modules for the merge queue are imported late.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from garrison.directories import find_home
from garrison.errors import GarrisonError, NotFound, RecordError, Refused
from garrison.records import atomic
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key, check_name, check_node, check_role, check_run, is_run_branch
from garrison.records.run import Launch, RunFiles, list_runs, load
from garrison.records.store import Store
from garrison.system.clock import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue, QueueReader
    from garrison.run.state import RunState
    from garrison.supervise.observer import Observer
    from garrison.system.git import Git

    Location = str | os.PathLike[str] | None

R = TypeVar("R", Identity, Hook)
_POLL = 0.2

# -------------------------------------------------------------------------------------------- records and their writer


def choose(candidates: Sequence[Key], own_run: str, is_alive: Callable[[Key], bool], missing: str) -> Key:
    """Return the record of a role and name; `is_alive` is called only if necessary.

    Args:
        candidates: the records of that role and name, at most one for each run.
        own_run: the caller's run, '' for none.
        missing: message of the NotFound raised without candidates.

    Raises:
        NotFound: there are no candidates.
        Refused: several are possible; the message lists them.
    """
    if not candidates:
        raise NotFound(missing)
    if len(candidates) == 1:
        return candidates[0]
    of_own_run = [key for key in candidates if own_run and key.run == own_run]
    if of_own_run:
        return of_own_run[0]
    alive = [key for key in candidates if is_alive(key)]
    if len(alive) == 1:
        return alive[0]
    names = ", ".join(f"{key.run or 'none'}{' (at work)' if key in alive else ''}" for key in candidates)
    raise Refused(f"{candidates[0].name} is in several runs, choose one with --run: {names}")


def find_key(store: Store, kind: type[R], role: str, name: str, run: str | None) -> Key:
    """Return the key of an existing record of `kind`; NotFound or Refused as in `choose`.

    Outside a run, a name without one is the full name of a record by hand, even if runs have that name.
    """
    check_role(role)
    check_name(name)
    what = kind.__name__.lower()
    if run is not None:
        key = Key(role, name, check_run(run) if run else "")
        if not store.path(kind, key).exists():
            raise NotFound(f"no {what} {key.full} in {store.home}; {_existing_names(store, kind, role, name)}")
        return key
    candidates = [key for key in store.keys(kind) if (key.role, key.name) == (role, name)]
    if not current_run() and (by_hand := Key(role, name)) in candidates:
        return by_hand
    return choose(candidates, current_run(), lambda key: is_living(store, key),
                  f"no {what} of {role} {name} in {store.home}; {_existing_names(store, kind, role, name)}")


def _existing_names(store: Store, kind: type[R], role: str, name: str) -> str:
    similar = [key.full for key in store.keys(kind) if key.name == name or key.role == role][:5]
    if similar:
        return f"there is {', '.join(similar)}"
    return "`create` creates one" + ("" if kind is Hook else ", `list` shows the existing ones")


def open_store(home: Location) -> Store:
    """Return the store of `home`, by default the home of this process."""
    return Store(find_home(home))


def observer_of(store: Store) -> Observer:
    """Return an observer that judges the identities of a home by this machine's processes."""
    from garrison.supervise.observer import Observer
    from garrison.system.clock import SystemClock
    from garrison.system.process_control import RealProcesses

    return Observer(store, RealProcesses(), SystemClock())


def is_living(store: Store, key: Key) -> bool:
    """Return whether an incarnation of that name is alive; an unreadable record counts as not alive."""
    try:
        identity = store.read(Identity, key)
    except RecordError:
        return False
    return identity is not None and observer_of(store).judge(identity).living


def current_run(environ: Mapping[str, str] | None = None) -> str:
    environ = os.environ if environ is None else environ
    return environ.get("GARRISON_RUN") or _own_marker(environ)[1]


def current_process() -> tuple[str, str]:
    """Return (run, role-name) of the incarnation this process belongs to, ('', '') for none."""
    return _own_marker(os.environ)[1:]


def writer_incarnation(store: Store, key: Key, given: int | None,
                       environ: Mapping[str, str] | None = None) -> int | None:
    """Return the incarnation for which a command writes the record `key`; None: the living one.

    `given` (the option) comes first, then GARRISON_INCARNATION, unless GARRISON_LIFE shows that it belongs to another
    name, run or home.
    """
    environ = os.environ if environ is None else environ
    text = environ.get("GARRISON_INCARNATION", "")
    # isdigit() is also true for ², which int() refuses
    if given is not None or not text.isascii() or not text.isdigit():
        return given
    home, run, stem = _own_marker(environ)
    if stem and (run, stem) != (key.run, Key(key.role, key.name).full):
        return None
    if home and os.path.realpath(home) != os.path.realpath(store.home):
        return None
    return int(text)


def _own_marker(environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return (home, run, role-name) from GARRISON_LIFE, empty strings if it is unset or invalid."""
    text = environ.get("GARRISON_LIFE", "")
    if not text:
        return "", "", ""
    from garrison.records.names import parse_marker

    home, run, stem, _ = parse_marker(text) or ("", "", "", 0)
    return home, run, stem


def run_for_new(store: Store, run: str | None) -> str:
    """Return the run for a new record: `run`, else the caller's, else ''."""
    chosen = current_run() if run is None else run
    return check_run(chosen) if chosen else ""


# ------------------------------------------------------------------------------------------------------ runs and nodes


def existing_run(home: Path, run: str) -> str:
    """Return `run` if the home has it; NotFound, with the closest name, otherwise."""
    run_ids = list_runs(home)
    if check_run(run) not in run_ids:
        raise NotFound(f"no run {run} in {home}; {suggestion(run, run_ids)}`garrison status` lists the runs")
    return run


def latest_run(store: Store, run: str | None) -> str:
    """Return `run` if given, else the caller's run, else the latest of the current repository, else the latest.

    Raises:
        NotFound: there is no such run, or none at all.
    """
    if run is not None or (run := current_run() or None):
        return existing_run(store.home, run)
    run_ids = list_runs(store.home)
    if not run_ids:
        raise NotFound(f"no runs in {store.home}; in a repository, `garrison run TASK` starts one")
    here = (each for each in reversed(run_ids) if is_of_this_folder(_repository_of(store.home, each)))
    return next(here, run_ids[-1])


def resumable_run(store: Store, *, retry_failed: bool = False) -> str:
    """Return the latest run of the current repository that is not over, or, with `retry_failed`, not done.

    Raises:
        Refused: there is none; runs of other repositories, and done ones, have to be named.
    """
    from garrison.run.state import describe_next  # imported late: not needed by completion

    here = [run for run in reversed(list_runs(store.home)) if is_of_this_folder(_repository_of(store.home, run))]
    failed = ""
    for run in here:
        try:
            state = state_of(store, run)
        except (GarrisonError, ValueError, KeyError):
            return run  # `resume` repairs it, or explains why it cannot
        if not state.over or (retry_failed and state.status == "failed"):
            return run
        failed = failed or (run if state.status == "failed" else "")
    raise Refused("all runs of this repository have ended" + (
        f"; {describe_next(failed, 'failed', over=True)}" if failed else "") if here else
                  f"no run belongs to {Path.cwd()}; name one (`garrison status --all` lists them)")


def is_of_this_folder(repository: str) -> bool:
    here = Path.cwd()
    return bool(repository) and Path(repository) in (here, *here.parents)


def is_elsewhere(repository: str) -> bool:
    here = Path.cwd()
    return not is_of_this_folder(repository) and any((folder / ".git").exists() for folder in (here, *here.parents))


def _repository_of(home: Path, run: str) -> str:
    try:
        launch = load(Launch, RunFiles(home, run).launch)
    except GarrisonError:
        return ""
    return launch.repo if launch is not None else ""


def state_of(store: Store, run: str) -> RunState:
    """Return the state of a run by its journal."""
    from garrison.records.journal import read_all
    from garrison.run.state import replay_run  # imported late: not needed by completion

    return replay_run(read_all(RunFiles(store.home, run).journal))


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return `did you mean x? ` for a name close to one of `candidates`, else ''."""
    import difflib

    by_lower_case = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.6)
    return f"did you mean {by_lower_case[close[0]]}? " if close else ""


def nodes_of(home: Path, run: str) -> list[str]:
    """Return the nodes of a run: from its guardian's journal, nodes that run a pipeline, nodes with a directory."""
    from garrison.records.journal import read_all  # imported late: not needed by commands about records

    files = RunFiles(home, run)
    names: dict[str, None] = {}
    try:
        for entry in read_all(files.journal):
            if entry.kind == "snapshot":
                names |= dict.fromkeys([*entry.data.get("nodes", {}), *entry.data.get("outcomes", {}),
                                        *(gate["node"] for gate in entry.data.get("gates", {}).values())])
            elif entry.kind in ("node", "gate"):
                names[entry.data["node"]] = None
            elif entry.kind == "signal" and (change := entry.data.get("effect")):  # the other may have added the node
                names[change["node"]] = None
    except (GarrisonError, KeyError):
        pass  # an unreadable journal is reported by `status`; the directories are enough to resolve names
    names |= dict.fromkeys(name.removesuffix(".dot") for name in sorted(atomic.list_names(files.graphs)))
    names |= dict.fromkeys(sorted(atomic.list_names(files.root / "nodes")))
    return list(names)


def await_nodes(store: Store, run: str | None, seconds: float) -> None:
    """Wait until a starting run has its nodes."""
    # do not read the journals of the many ended runs in every poll
    wait_until(lambda: all(nodes_of(store.home, each) for each in supervised_runs(
        store, [each for each in list_runs(store.home) if run in (None, each)])), seconds, _POLL)


def run_of_node(store: Store, node: str, run: str | None) -> str:
    """Return the run of `node`.

    This is `run` if given; else, among runs with that node (of this repository, if it has any), the only one; else the
    only one with a living runner or agent of it; else (it is parked or pending) the only supervised one; else, if none
    is, the latest.

    Raises:
        NotFound: no run has the node; the message has the closest name.
        Refused: several runs with such a node are at work; the message lists them.
    """
    check_node(node)
    run_ids = [existing_run(store.home, run)] if run is not None else list_runs(store.home)
    nodes_by_run = {run_id: nodes_of(store.home, run_id) for run_id in run_ids}
    candidates = _of_this_folder(store.home, [Key("runner", node, run_id) for run_id, nodes in nodes_by_run.items()
                                              if node in nodes])
    all_nodes = dict.fromkeys(name for nodes in nodes_by_run.values() for name in nodes)
    missing = f"run {run} has no node {node}" if run else f"no run in {store.home} has a node {node}"
    worked_on = [key for key in candidates if is_node_worked_on(store, key)] if len(candidates) > 1 else []
    own = current_run()
    if len(candidates) > 1 and not worked_on and own not in [key.run for key in candidates]:
        supervised = supervised_runs(store, [key.run for key in candidates])
        worked_on = [key for key in candidates if key.run in supervised] or candidates[-1:]
    return choose(candidates, own, worked_on.__contains__,
                  f"{missing}; {suggestion(node, all_nodes)}`garrison status{f' {run}' if run else ''}` shows "
                  f"{'its nodes' if run else 'the runs'}").run


def _of_this_folder(home: Path, keys: list[Key]) -> list[Key]:
    """Return the runs of the current repository; all if it has none, or if there is only one."""
    return (len(keys) > 1 and [key for key in keys if is_of_this_folder(_repository_of(home, key.run))]) or keys


def describe_over(node: str, run: str, status: str) -> str:
    """Return a message that the run of a node is over, for a command that acts on a node at work."""
    return f"no run is at work on {node}: its latest, {run}, is {status}"


def is_node_worked_on(store: Store, key: Key) -> bool:
    return is_living(store, key) or is_living(store, Key("orchestrator", key.name, key.run))


def is_launched(home: Path, run: str) -> bool:
    """Return whether `run` is the id of a launched run, not the id or directory of a `garrison pipeline run`."""
    return os.sep not in run and RunFiles(home, run).launch.exists()


def is_run_supervised(store: Store, run: str) -> bool:
    return run in supervised_runs(store, (run,))


def supervised_runs(store: Store, runs: Iterable[str]) -> set[str]:
    """Return the runs with a living launcher or guardian."""
    return {key.run for key in store.keys(Identity, frozenset(runs))
            if key.role in ("launch", "guardian") and is_living(store, key)}


def only_node(store: Store, run: str | None) -> tuple[str, str]:
    """Return the default node and its run: the only node of the latest run.

    Raises:
        NotFound: there is no run.
        Refused: the run has several nodes; the message lists them.
    """
    chosen = latest_run(store, run)
    nodes = nodes_of(store.home, chosen)
    if len(nodes) != 1:
        raise Refused(f"name a node of run {chosen}: {', '.join(nodes) or 'none has started yet'}")
    return nodes[0], chosen


def supervised_run(store: Store, run: str | None) -> str:
    """Return `run` if given, else the only one whose guardian is alive (`run_at_work`).

    Raises:
        NotFound: there is no run.
        Refused: several are possible; the message lists them.
    """
    if run is not None:
        return existing_run(store.home, run)
    living = sorted({key.run for key in store.keys(Identity) if key.role == "guardian" and is_living(store, key)})
    return run_at_work(store, living, "choose one with --run")


def run_at_work(store: Store, living: Sequence[str], choose: str) -> str:
    """Return the only one of the `living` runs (of the current repository, if it has any run), else the latest run.

    Raises:
        NotFound: there is no run.
        Refused: several are at work; the message lists them and how to `choose`.
    """
    is_here = is_of_this_folder(_repository_of(store.home, latest_run(store, None)))
    candidates = [run for run in living if not is_here or is_of_this_folder(_repository_of(store.home, run))]
    if len(candidates) > 1:
        raise Refused(f"several runs are at work, {choose}: {', '.join(candidates)}")
    return candidates[0] if candidates else latest_run(store, None)


# -------------------------------------------------------------------------------------- merge queues and merge entries


def open_queue(repo_root: Location = None, target: str | None = None, home: Location = None, *,
               busy: bool = False) -> MergeQueue:
    """Return the queue of a repository (default: the current directory's) and target (default: main, else HEAD's).

    With `busy`, the default target is that of the queue whose first unfinished entry has waited longest.
    """
    from garrison.cli.output import print_message
    from garrison.merge.queue import MergeQueue, list_queues, target_of_folder

    place = find_home(home)
    git = _repository(repo_root, place)
    if target is None and busy:
        waiting = [queue for queue in list_queues(place, print_message) if queue.folder.parent.name == git.key
                   and queue.state.unfinished() and not is_run_branch(target_of_folder(queue.folder))]
        if waiting:
            target = target_of_folder(min(waiting, key=lambda queue: queue.state.unfinished()[0].enqueued_at).folder)
    target = target or ("main" if git.branch_exists("main") else git.current_branch(git.root)) or "main"
    return MergeQueue(place, git.root, target, git=git)


def only_queue(repo_root: Location = None, target: str | None = None, home: Location = None) -> MergeQueue:
    """Return the queue of a target, by default the repository's only queue; Refused if it has several."""
    from garrison.merge.queue import target_of_folder

    place = find_home(home)
    if target is None:
        git = _repository(repo_root, place)
        journals = sorted((place / "merge-queue" / git.key).glob("*/journal.jsonl"))
        targets = [name for path in journals if not is_run_branch(name := target_of_folder(path.parent))]
        if len(targets) > 1:
            raise Refused(f"{git.root} has queues for {', '.join(targets)}; choose one with --target")
        target = next(iter(targets), None)
    return open_queue(repo_root, target, place)


def find_entry(name: str, home: Location = None) -> tuple[QueueReader, MergeEntry]:
    """Return the merge entry with the id `name`, or the latest entry of the node `name`, and its queue, preferring the
    current repository's.

    Raises:
        NotFound: there is no such entry.
        Refused: several queues or runs of it have a node of that name.
    """
    from garrison.cli.output import print_message
    from garrison.merge.queue import find_unrecorded, list_queues

    queues = list_queues(find_home(home), print_message, find_unrecorded(find_home(home)))
    for queue in queues:
        if name in queue.state.entries:
            return queue, queue.state.entries[name]
    latest = {(str(queue.folder), entry.run): (queue, entry)
              for queue in queues for entry in queue.state.entries.values() if entry.node == name}
    found = list(latest.values())
    found = [pair for pair in found if is_of_this_folder(pair[1].repo)] or found
    if len(found) > 1:
        ids = ", ".join(f"{entry.id} ({entry.landing}, run {entry.run or 'none'})" for _, entry in found)
        raise Refused(f"node {name} has several entries; name one by its id: {ids}")
    for queue_and_entry in found:
        return queue_and_entry
    raise NotFound(f"no merge entry {name}; `garrison merge-queue list` shows them")


def find_entry_for_change(name: str, repo_root: Location = None,
                          home: Location = None) -> tuple[MergeQueue, MergeEntry]:
    """Return the entry named `name` and its queue, opened for writing; Refused if not of `repo_root`."""
    from garrison.merge.queue import MergeQueue

    follower, entry = find_entry(name, home)
    git = _repository(repo_root or entry.repo, find_home(home))
    if git.key != follower.folder.parent.name:
        raise Refused(f"{entry.id} waits to land on {entry.repo}, not on {git.root}; leave --repo-root out")
    return MergeQueue(find_home(home), git.root, entry.target, git=git), entry


def _repository(repo_root: Location, home: Path) -> Git:
    from garrison.system.git import open_repository

    return open_repository(Path(repo_root) if repo_root else Path.cwd(), home)
