"""Launch a run: make it durable, lease the launcher's identity, and become or spawn the launcher's process.

How a run starts, followed through the code:

 1. `cli/launch.py` → `preflight.prepare_launch` checks graph, repository, gate and agents, and runs the gate once.
 2. `create_run` here claims the run's id and writes launch.json and graph.dot.
 3. `exec_launcher` (or `spawn_launcher`, detached) takes the launcher's lease and starts `processes/main.py launch`.
 4. `run/launcher_policy.py` finds no guardian: START. `processes/spawn.py` starts `main.py guardian`.
 5. `run/guardian_policy.py` journals the nodes and `run running`; `run/flow_policy.py` makes the first nodes active;
    each gets its runner (`node/policy.py`), which makes the worktree and starts the orchestrator.

How a run resumes: `preflight.check_resume`, then 3. with `--resume`. The request to resume is written to the guardian's
inbox together with the launcher's lease, so that it survives this launcher; the guardian interprets it with its journal
(`run/guardian_view.py`). Living guardians, runners and orchestrators are adopted: each process finds its children by
name (`Supervisor.observe_child`) and starts only the missing ones.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from importlib import resources
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.directories import checkout, homes_list, trees_root
from garrison.errors import AlreadyAlive, Fenced, GarrisonError, Refused
from garrison.launch.preflight import LOCALE, launch_to_resume, run_exists, run_is_foreign
from garrison.merge.queue import MergeQueue
from garrison.processes.loop import BLOCKED_SIGNALS, log_line
from garrison.processes.spawn import first_modules, process_argv
from garrison.records import atomic, budget, signals
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.names import Key, check_node, check_run, format_marker, launcher_key, to_run_stem
from garrison.records.run import Launch
from garrison.records.signals import ResumeRun, SetBudget, resume_id
from garrison.run import git_record
from garrison.run.follower import follower_variables
from garrison.run.plan import graph_hash
from garrison.run.status import read_run_state, running_runs
from garrison.run.user_signals import signal_by_person
from garrison.sandbox.git_view import GitView
from garrison.sandbox.place import MODE_VARIABLE
from garrison.sandbox.probe import summarize_sandbox
from garrison.supervise.incarnation import SpawnRequest, acquire_lease, replace_incarnation
from garrison.supervise.observer import judge_now
from garrison.system import forks, systemd
from garrison.system.environment import NOTIFY_URLS, list_withheld
from garrison.system.git import ABSENT, Git, validate_repository
from garrison.system.git.repository import key_of
from garrison.system.git.rescues import RUNS
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from garrison.launch.preflight import PreparedLaunch
    from garrison.merge.entry import MergeEntry
    from garrison.processes.runtime import Runtime
    from garrison.supervise.observer import Inspection
    from garrison.supervise.verdict import Verdict
    from garrison.system.forks import StartProcess

INSPECTION_PAUSE = 2.0
"""Minimum number of seconds between two inspections of a launcher: a working one beats at every rescan."""


# ---- make the run durable --------------------------------------------------------------------------------------------


def create_run(runtime: Runtime, prepared: PreparedLaunch, report: Callable[[str], None]) -> Launch:
    """Claim a run id and make launch.json and graph.dot durable; return the launch with its id."""
    launch, root = claim_run(runtime, prepared.launch, report)
    write_readme(runtime.home)
    run, launch = launch.run_id, replace(launch, graph_hash=graph_hash(prepared.text, prepared.plan))
    files = runtime.files(run)
    for name, text in prepared.plan.texts.items():
        atomic.write(atomic.make_directory(files.graphs) / f"{name}.dot", text.encode())
    atomic.write(files.launched_graph, prepared.text.encode())
    git_record.save(files.root / "git", Git(Path(launch.repo), home=runtime.home))
    budget.limit_run(runtime.home, run, prepared.budget_run)
    # last: readers ignore a run without launch.json, so a killed launch leaves no partial run
    run_records.save(files.launch, launch)
    atomic.sync_directory(root.parent)
    register_home(runtime)
    return launch


def create_adhoc_run(runtime: Runtime, node: str, prd: str, target: Path,
                     **task: object) -> tuple[Launch, run_records.Task]:
    """Create an ad-hoc run of one node: launch.json and task.json, without graph, guardian and launcher."""
    repo = validate_repository(target)
    git = Git(repo, home=runtime.home)
    git.check_branch_space()
    base = git.current_branch()
    if base is None:
        raise Refused(f"{repo} has a detached HEAD; check out the branch on which the work should land")
    launch = Launch(
        run_id=str(task.pop("run", "") or ""), pipeline_id=f"adhoc-{check_node(node)}", repo=str(repo), base=base,
        created_at=runtime.clock.utc(), trees=str(trees_root(runtime.environ)),
        base_oid=git.branch_tip(base) or "", agent=str(task.get("agent") or "command"),
        path=runtime.environ.get("PATH", os.defpath), prd_ref=prd, adhoc=True,
        locale={name: runtime.environ[name] for name in LOCALE if name in runtime.environ},
        max_respawn=int(str(task.pop("max_respawn", None) or 10)), terminal=str(task.pop("terminal", None) or "auto"),
        held_back=list_withheld(runtime.environ, []), sandbox_mode=runtime.environ.get(MODE_VARIABLE, ""))
    held = summarize_sandbox(runtime.home, {launch.agent}, runtime.environ, git=git)
    launch = replace(launch, sandbox=held.line, sandbox_modes=held.modes, sandbox_gaps=held.gaps)
    if launch.is_held_by_landlock and launch.terminal in ("auto", "tmux"):
        launch = replace(launch, terminal="process")
    launch, root = claim_run(runtime, launch, log_line)
    run = root.name
    allow_empty = launch.agent == "command" and not task.get("prompt")
    created = run_records.Task(run_id=run, node=node, attempt=1, prd_ref=prd,
                               allow_empty=allow_empty, words=[], **task)  # type: ignore[arg-type]
    run_records.save(runtime.files(run).attempt(node, 1) / "task.json", created)
    run_records.save(runtime.files(run).launch, launch)
    register_home(runtime)
    return launch, created


def claim_run(runtime: Runtime, launch: Launch, report: Callable[[str], None]) -> tuple[Launch, Path]:
    """Claim the requested run id, else the pipeline's name with the next free number, in the home and, by a ref, in the
    repository; return the launch with it, and its folder. A host's run keeps the id chosen by its home."""
    folder, git = atomic.make_directory(runtime.home / "runs"), Git(Path(launch.repo), home=runtime.home)
    stem, holds_id = to_run_stem(launch.pipeline_id), not launch.claimed_for
    taken = git.find_refs_of_runs() if holds_id else {}
    others: list[str] = []
    for number in count(1):
        run = launch.run_id or f"{stem}-{number}"
        try:
            os.mkdir(folder / check_run(run), 0o700)  # noqa: PTH102  # the exclusive creation is the claim
        except FileExistsError:
            if launch.run_id:
                raise run_exists(run) from None
            continue
        # reading the list once saves a try for each number; between two homes the creation of the ref decides
        try:
            ref = taken.get(run, "") or (_hold_id(git, run, launch.base_oid) if holds_id else "")
        except GarrisonError:
            (folder / run).rmdir()
            raise
        if not ref:
            if others:
                more = f" and {len(others) - 1} more" if others[1:] else ""
                report(f"note: {launch.repo} has {others[0]}{more} of an earlier run, or of another home's; none of "
                       "it is used")
            return replace(launch, run_id=run, holds_id=holds_id), folder / run
        (folder / run).rmdir()
        if launch.run_id:
            raise run_is_foreign(runtime, git, run, ref)
        others.append(ref)
    raise AssertionError


def _hold_id(git: Git, run: str, base_oid: str) -> str:
    """Create the ref that claims a run's id in the repository; return '', or the ref if another home was faster."""
    ref = f"{RUNS}/{run}"
    if git.update_ref(ref, base_oid, ABSENT, message="garrison: start the run"):
        return ""
    # not created: another home has created it, or git could not write at all
    if git.rev(ref) is None:
        raise GarrisonError(f"git cannot write {ref} in {git.root}; `git update-ref {ref} {base_oid[:10]}` says "
                            "why")
    return ref


def register_home(runtime: Runtime) -> None:
    """Add this home to the user's list of homes, if that is writable."""
    path = homes_list(runtime.environ)
    with contextlib.suppress(OSError):
        homes = path.read_text().splitlines() if path.exists() else []
        if str(runtime.home) not in homes:
            atomic.make_directory(path.parent)
            path.touch(0o600)
            with path.open("a") as file:
                file.write(f"{runtime.home}\n")


# ---- start the launcher ----------------------------------------------------------------------------------------------


def exec_launcher(runtime: Runtime, launch: Launch, options: list[str], steps: int | None = None) -> None:
    """Lease the launcher's incarnation and re-execute this process as the launcher. Does not return.

    `steps`: further node visits allowed in a resumed run.
    """
    # The signal mask survives execve: from here on a Ctrl-C stays pending until the launcher handles it as a stop;
    # Python's default handler would end the process after its lease.
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    prefix = systemd_scope(runtime)
    argv, env = launcher_command(runtime, launch, _lease_with_requests(runtime, launch, options, steps), options)
    argv = [*prefix, *argv]
    os.execve(argv[0], argv, env)


def check_move(runtime: Runtime, run: str, target: Path) -> Git | None:
    """Return the new place of a run's repository; None if the run already uses it.

    Refused if it is another repository, or if the old one still exists.
    """
    launch = launch_to_resume(runtime, run)
    git, old = Git(validate_repository(target), home=runtime.home), Path(launch.repo)
    if git.root == old:
        return None
    if old.is_dir():
        raise Refused(f"the repository of run {run} is still in {old}; --target-dir is for one that has moved")
    if not git.has_object(launch.base_oid):
        raise Refused(f"{git.root} is not the repository of run {run}: it lacks the commit {launch.base_oid[:10]} at "
                      "which the run started; pass the new folder of its repository")
    if git.common not in (git.root, git.root / ".git"):
        raise Refused(f"{git.root} is a worktree or a submodule; name the repository itself")
    return git


def move_run(runtime: Runtime, run: str, git: Git) -> None:
    """Move a stopped run, with its queue and worktrees, to the new place of its repository.

    Idempotent.
    """
    launch = runtime.launch(run)
    old = Path(launch.repo)
    before = key_of(old / git.common.relative_to(git.root))
    for folder in (runtime.home / "merge-queue", Path(launch.trees)):
        if (folder / before).is_dir() and not (folder / git.key).exists():
            (folder / before).rename(folder / git.key)
    moved, here = Path(launch.trees) / before, Path(launch.trees) / git.key
    if (moved / run).is_dir() and not (here / run).exists():  # other runs have started at the new place
        (moved / run).rename(here / run)
    registered = [Path(file.read_text().strip()).parent for file in (git.common / "worktrees").glob("*/gitdir")]
    trees = [here / path.relative_to(moved) for path in registered if path.is_relative_to(moved)]
    if trees := [path for path in trees if path.is_dir()]:
        git.run("worktree", "repair", *map(str, trees))
    for path in {*trees, *(path for path in registered if path.is_relative_to(here))}:
        GitView(git, path).follow()
    files = runtime.files(run)
    # last: until then the run has its old place, and an interrupted move starts over
    if (saved := run_records.load(Launch, files.launch)) is not None:
        run_records.save(files.launch, replace(saved, repo=str(git.root)))


@contextlib.contextmanager
def prepare_launcher(runtime: Runtime, terminal: str, agent: str) -> Iterator[StartProcess]:
    """Begin a copy of this process that loads what a run needs until its first agent begins, while the launch is
    checked; yield the function that starts the launcher."""
    if prefix := systemd_scope(runtime):
        yield lambda argv, **how: runtime.processes.start([*prefix, *argv], **how)
    else:
        modules = first_modules(terminal, agent, runtime.home)
        with forks.start_early(("garrison.processes.main", "garrison.run.launcher", *modules)) as start:
            yield start


def spawn_launcher(runtime: Runtime, launch: Launch, options: list[str], steps: int | None = None, *,
                   start: StartProcess | None = None) -> int:
    """Start the launcher in its own session with its output in the run's launch.log; return its pid.

    Args:
        steps: further node visits allowed in a resumed run.
        start: from `prepare_launcher`, if this process stays to follow the run; a new interpreter costs more.
    """
    prefix = [] if start else systemd_scope(runtime)
    identity = _lease_with_requests(runtime, launch, options, steps)
    argv, env = launcher_command(runtime, launch, identity, [*options, "--quiet"])
    log = runtime.begin_log(launch.run_id, "launch")
    child = (start or runtime.processes.spawn)([*prefix, *argv], env=env, cwd=str(runtime.home), log=log)
    child.close()
    return child.pid


def _lease_with_requests(runtime: Runtime, launch: Launch, options: list[str], steps: int | None) -> Identity:
    """Take the launcher's lease and write the requests to the guardian: to resume, and a new step budget."""
    # The lease first, since the requests are named after its incarnation: if this launcher dies before the guardian
    # applies them, `garrison up` finds by that name what its successor has to repeat.
    identity = lease_launcher(runtime, launch.run_id)
    guardian = Key("guardian", launch.pipeline_id, launch.run_id)
    if steps:
        signals.post(runtime.home, signal_by_person(guardian, SetBudget(steps), now=runtime.clock.utc(),
                                                    id=f"{launch.run_id}-budget-{identity.incarnation}"))
    retry_failed = "--again" in options
    nodes = tuple(options[options.index("--only") + 1].split(",")) if "--only" in options else None
    if "--resume" in options and (retry_failed or not read_run_state(runtime, launch.run_id).over):
        signals.post(runtime.home, signal_by_person(guardian, ResumeRun(retry_failed or None, nodes),
                                                    id=resume_id(launch.run_id, identity.incarnation),
                                                    now=runtime.clock.utc()))
    return identity


def lease_launcher(runtime: Runtime, run: str) -> Identity:
    """Take the launcher's lease; replace a dead predecessor first. AlreadyAlive if a launcher is alive."""
    key = launcher_key(run)
    metadata: dict[str, object] = {}
    old = runtime.store.read(Identity, key)
    if old is not None:
        inspection = judge_launcher(runtime, old)
        verdict = inspection.verdict
        if verdict.state == "elsewhere":
            raise AlreadyAlive(f"the launcher of run {run} is {verdict.why}; follow or stop the run there")
        if verdict.living:
            raise AlreadyAlive(f"run {run} has a launcher already (pid {old.pid}); `garrison status {run}` shows it")
        metadata = {"succeeds": _succession(old, verdict)}
        # a crashed one as well: the process that fenced it may have died before killing it
        if verdict.state != "ended" or old.status == "crashed":
            try:
                replace_incarnation(runtime.observer, old, verdict.why, runtime.timing.sweep_grace,
                                    inspection.evidence)
            except Fenced as error:
                raise AlreadyAlive(f"another launcher of run {run} has just been started; `garrison status {run}` "
                                   "shows it") from error
    return acquire_lease(runtime.observer, SpawnRequest(key, metadata=metadata), runtime.timing.spawn_deadline)


def judge_launcher(runtime: Runtime, identity: Identity) -> Inspection:
    """Judge a launcher: at once if its heartbeat is fresh, otherwise after a moment in which it may beat."""
    pause = max(INSPECTION_PAUSE, 3 * runtime.timing.rescan)
    return judge_now(runtime.observer, identity, runtime.timing.beat_timeout, time.sleep, pause)


def _succession(old: Identity, verdict: Verdict) -> str:
    how = f"had ended ({old.reason or old.status})" if verdict.state == "ended" \
        else f"was {verdict.state}: {verdict.why}"
    return f"incarnation {old.incarnation} {how}"


def launcher_command(runtime: Runtime, launch: Launch, identity: Identity,
                     options: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of the launcher's process."""
    key = launcher_key(launch.run_id)
    variables = {"GARRISON_LIFE": format_marker(str(runtime.home), key, identity.incarnation),
                 "GARRISON_INCARNATION": str(identity.incarnation)}
    passed = (*systemd.SERVICE_VARIABLES, NOTIFY_URLS, *launch.launcher_env)
    variables |= {name: runtime.environ[name] for name in passed if runtime.environ.get(name)}
    variables |= follower_variables(launch, runtime.environ)
    if manager := systemd.find_manager(runtime.environ):
        variables["XDG_RUNTIME_DIR"] = manager.runtime  # cron sets none, and the tmux server gets a scope as well
    return process_argv(key, runtime.home, identity.incarnation, options), runtime.environment(launch, variables)


def systemd_scope(runtime: Runtime) -> list[str]:
    """Return the command prefix that puts a launcher into its own systemd scope if that keeps it alive; else []."""
    manager = systemd.find_manager(runtime.environ)
    in_unit = bool(runtime.environ.get("NOTIFY_SOCKET"))
    method = systemd.choose_start_method(in_unit=in_unit, unit=False, manager=manager is not None,
                                         lingering=systemd.is_lingering(manager))
    return systemd.scope_prefix(manager) if method == "scope" and systemd.can_start_scope(manager) else []


# ---- notes at the launch ---------------------------------------------------------------------------------------------

MAX_NAMED_ENTRIES = 5


def logout_note(runtime: Runtime) -> str:
    if systemd.is_lingering(systemd.find_manager(runtime.environ)) is not False:
        return ""
    return "note: systemd may end this run when you log out; `loginctl enable-linger` prevents that"


def foreign_entries_note(runtime: Runtime, launch: Launch) -> str:
    """Return a line about merge entries of inactive runs, which this run's processor will land; '' for none."""
    queue = MergeQueue(runtime.home, Path(launch.repo), launch.base, clock=runtime.clock)
    entries = [entry for entry in queue.state.unfinished()
               if entry.run != launch.run_id and not entry.awaits_approval]
    running = running_runs(runtime) if entries else ()  # reads the records of all runs
    return describe_foreign_entries([entry for entry in entries if entry.run not in running])


def describe_foreign_entries(entries: list[MergeEntry]) -> str:
    """Return a line about entries that will land as well, and how to withdraw one. Pure."""
    if not entries:
        return ""
    named = ", ".join(f"{entry.id} ({entry.branch})" for entry in entries[:MAX_NAMED_ENTRIES])
    more = f" and {len(entries) - MAX_NAMED_ENTRIES} more" if len(entries) > MAX_NAMED_ENTRIES else ""
    return (f"note: the merge queue has entries of runs that are not running; they will also be tested and land: "
            f"{named}{more}; `garrison merge-queue cancel ID` withdraws one")


# ---- home readme -----------------------------------------------------------------------------------------------------

# Information that a release writes for a home: README.md on its files, and, once, the changed defaults.

NAME = "README.md"
TOLD = "defaults-told"
"""File of a home with the number of changed defaults shown to its user."""
CHANGED_DEFAULTS = (
    "agents wait until an outage of their API is over; before, a node failed after a few minutes",
    "work that acceptance, validator, review or gate refused is kept for the next attempt of an agent (rework=merge); "
    "rework=fresh on the node starts over, as before",
    "if a validator cannot judge, the finished branch is held and you are asked; before, the work was refused",
    "submodules are fetched with the network rights of set-ups ([sandbox.setup]), before with your own; hosts not in "
    "hosts = [...] are refused and named",
    "a goal gate accepts a partial success; allow_partial=false on its node requires full success, as before",
    "rework continues the refused session, once; rework=fresh on the node starts a new one, as before",
    "work that changes the gate's own files or agents' instructions waits for your approval, and secrets, nested "
    "repositories and large files that it commits are refused; [guard] gate = \"tell\" and so on land it as before",
    "work that its agent reports as a partial success waits for your approval; allow_partial=true on the node, or "
    "[guard] partial = \"tell\", lands it as before",
    "you are asked when a session loops a second time; before, its attempt failed. ACP agents and programs with a "
    "stream are watched as well",
    "ACP and command agents may make 300 model calls in an attempt, as Claude agents; [agents] turns = \"none\" sets "
    "no limit, as before",
    "Claude sessions get the instructions imported by CLAUDE.md and AGENTS.md, and those of folders they read; "
    "before, only the text of the top-level files",
    "the log-in of `garrison login` stays outside the sandbox, and the proxy adds its token; `garrison login --where "
    "file` has agents work with a copy of it, as before",
)
"""Changes of defaults since version 0.1, oldest first; docs/upgrading.md has them all. Lines are only added."""


def write_readme(home: Path) -> None:
    """Write this release's page into a home, unless it is there already."""
    text = readme_text().encode()
    if atomic.read(home / NAME) != text:
        atomic.write(home / NAME, text, durable=False)


def readme_text() -> str:
    """Return the page: the checkout's, else the installed package's."""
    source = checkout()
    page = source / "state" / NAME if source is not None else resources.files("garrison") / "state" / NAME
    return page.read_text(encoding="utf-8")


def tell_changed_defaults(home: Path) -> list[str]:
    """Return a line for each default changed since this home was last used, once; none for a new home."""
    is_new = not any((home / "runs").iterdir()) if (home / "runs").is_dir() else True
    noted = (atomic.read(home / TOLD) or b"").strip()
    told = len(CHANGED_DEFAULTS) if is_new else int(noted) if noted.isdigit() else 0
    if (count := b"%d" % len(CHANGED_DEFAULTS)) != noted:
        atomic.write(atomic.make_directory(home) / TOLD, count + b"\n", durable=False)
    lines = [f"changed since your last launch: {line}" for line in CHANGED_DEFAULTS[told:]]
    return [*lines, "docs/upgrading.md lists every changed default"] if lines else []
