"""`identity_registry.py`: create, list, refresh and end identities, as commands and as functions for agents' prompts.

The functions return records, which the commands print as JSON; refusals are GarrisonErrors. Agents and cron call these
commands every minute, so code that judges, replaces and starts processes is imported where it is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from garrison.cli import resolve
from garrison.cli.authority import guarded
from garrison.cli.commands import Group, run_command
from garrison.cli.options import (
    SECONDS,
    home_option,
    incarnation_option,
    json_option,
    quiet_option,
    record_arguments,
    use_home,
)
from garrison.cli.output import print_error_json, print_json, print_message, print_record, print_table
from garrison.directories import find_home
from garrison.errors import Fenced, NotFound, RecordError, Refused
from garrison.records import life_lock, record, signals
from garrison.records.hook import Hook, next_hook
from garrison.records.identity import ALIVE, Identity, mark_ended, record_heartbeat
from garrison.records.names import Key
from garrison.records.signals import AgentCrashed, AgentRegistered, AgentTerminated, Payload, Signal
from garrison.records.store import Store, check_incarnation, new_id
from garrison.system import processes
from garrison.system.clock import SystemClock, format_age
from garrison.values import Value, replace

if TYPE_CHECKING:
    from garrison.supervise.incarnation import SpawnRequest
    from garrison.supervise.observer import Observer, ProcessOrigin

_ENDINGS = {"crashed": AgentCrashed, "terminated": AgentTerminated}
STALE_AFTER = 300.0
"""Seconds without a heartbeat after which `find-stale` lists an incarnation."""

# ----------------------------------------------------------------------------------------------------------- functions


@guarded("identity-registry create")
def create_identity(role: str, name: str, session_id: str = "", worktree: str | None = None, pid: int | None = None,
                    run: str | None = None, home: str | None = None, *, predecessor_id: str | None = None,
                    metadata: Mapping[str, object] | None = None) -> Identity:
    """Create the identity of an incarnation started by hand; if the same run has a dead one, its successor.

    Without `pid` the incarnation counts as alive while its heartbeat is fresh. `predecessor_id` is used if no earlier
    incarnation is recorded.

    Raises:
        AlreadyAlive: the name has a living incarnation.
    """
    from garrison.supervise.incarnation import SpawnRequest

    store = resolve.open_store(home)
    key = Key(role, name, resolve.run_for_new(store, run))
    observer = resolve.observer_of(store)
    _replace_dead(store, observer, key)
    request = SpawnRequest(key, worktree=worktree, session_id=session_id, metadata=dict(metadata or {}))
    process = observer.origin(pid) if pid is not None else None

    def linked(old: Identity | None) -> Identity:
        made = _next_incarnation(observer, old, request, process)
        return replace(made, predecessor_id=made.predecessor_id or predecessor_id)

    identity = store.update(Identity, key, linked)
    _link_hook(store, identity, observer.clock.utc())
    _tell_guardian(store, identity, AgentRegistered(identity.incarnation))
    return identity


def _tell_guardian(store: Store, identity: Identity, payload: Payload) -> None:
    """Send a signal to the guardian of the identity's run (preferably a living one), unless it is the identity itself.
    """
    guardians = [key for key in store.keys(Identity, (identity.run_id,)) if key.role == "guardian"]
    guardian = min(guardians, key=lambda key: store.get(Identity, key).status not in ALIVE, default=None)
    if guardian is None or identity.role in ("guardian", "launch"):
        return
    node = identity.name if identity.role in ("runner", "orchestrator") else None
    source = {"role": identity.role, "name": identity.name, "incarnation": identity.incarnation}
    signals.post(store.home, Signal(new_id()[:12], source, {"role": guardian.role, "name": guardian.name}, payload.type,
                                    identity.run_id, SystemClock().utc(), node, 0, payload.to_data()))


def _replace_dead(store: Store, observer: Observer, key: Key) -> None:
    """Fence a dead incarnation and end its remaining processes, before its successor starts."""
    old = store.read(Identity, key)
    if old is None or observer.judge(old).state not in ("dead", "lapsed"):
        return
    from garrison.config import Timing
    from garrison.supervise.incarnation import replace_incarnation

    replace_incarnation(observer, old, observer.judge(old).why, Timing.read(os.environ).sweep_grace)


def _next_incarnation(observer: Observer, old: Identity | None, request: SpawnRequest,
                      process: ProcessOrigin | None) -> Identity:
    """Return the next incarnation, active at once: when started by hand, there is no child process to wait for."""
    from garrison.supervise.incarnation import activate, grant_lease

    now, this_process = observer.clock.utc(), observer.origin(os.getpid())
    verdict = observer.judge(old) if old else None
    leased = grant_lease(old, verdict, request, this_process, now=now, deadline=now, fresh_id=new_id())
    identity = activate(leased, process or this_process, now)
    return identity if process else replace(identity, pid=None, start_ticks=None)


def _link_hook(store: Store, identity: Identity, now: str) -> None:
    """Let the new incarnation continue an existing hook."""
    if identity.incarnation > 1 and store.path(Hook, identity.key).exists():
        store.update(Hook, identity.key,
                     lambda old: next_hook(old, identity.key, identity.incarnation, now, new_id()))


@guarded("identity-registry update-liveness")
def update_liveness(role: str, name: str, run: str | None = None, incarnation: int | None = None,
                    home: str | None = None) -> Identity:
    """Record a heartbeat and return the identity; Refused if the incarnation has ended."""
    store = resolve.open_store(home)
    key = resolve.find_key(store, Identity, role, name, run)
    now = SystemClock().utc()

    def with_heartbeat(old: Identity | None) -> Identity:
        identity = _existing(old, key)
        if identity.status not in ALIVE:
            raise Refused(f"{key.full} is {identity.status}, a heartbeat does not revive it; "
                          "`create` starts its next incarnation")
        return record_heartbeat(identity, now)

    return store.update(Identity, key, with_heartbeat,
                        incarnation=resolve.writer_incarnation(store, key, incarnation))


class ListedIdentity(Value):
    """Identity with its latest heartbeat, for listings."""

    identity: Identity
    stale_reason: str = ""
    """`heartbeat` (too old), `process_gone` or `start_deadline`; '' if not judged."""

    def body(self) -> dict[str, object]:
        """Return it as JSON values: the fields of the record, and the reason."""
        reason = {"stale_reason": self.stale_reason} if self.stale_reason else {}
        return {**record.to_dict(self.identity), **reason}


def _print_errors(errors: Iterable[RecordError]) -> None:
    for error in errors:
        print_message(str(error))


def find_stale(timeout: float = STALE_AFTER, home: str | None = None,
               report: Callable[[Iterable[RecordError]], None] = _print_errors) -> list[ListedIdentity]:
    """Return the stale identities: without a heartbeat for `timeout` seconds, or without their process.

    Args:
        report: called for each corrupt record (default: printed on stderr).
    """
    from garrison.supervise import observer as stale

    observer = resolve.observer_of(resolve.open_store(home))
    identities, errors = stale.find_stale(observer, timeout)
    report(errors)
    return [ListedIdentity(observer.with_heartbeat(identity), reason) for identity, reason in identities]


def list_all(home: str | None = None) -> list[ListedIdentity]:
    """Return every readable identity; corrupt ones are reported on stderr."""
    store = resolve.open_store(home)
    observer = resolve.observer_of(store)
    return [ListedIdentity(observer.with_heartbeat(identity)) for identity in readable_identities(store)]


def readable_identities(store: Store) -> list[Identity]:
    """Return every readable identity of a home; corrupt ones are reported on stderr."""
    identities, errors = store.list(Identity)
    _print_errors(errors)
    return identities


def show(role: str, name: str, run: str | None = None, home: str | None = None) -> Identity:
    """Return one identity, with its latest heartbeat."""
    store = resolve.open_store(home)
    identity = store.get(Identity, resolve.find_key(store, Identity, role, name, run))
    return resolve.observer_of(store).with_heartbeat(identity)


@guarded("identity-registry mark-crashed")
def mark_crashed(role: str, name: str, run: str | None = None, incarnation: int | None = None,
                 reason: str = "marked by hand", home: str | None = None, *, kill: bool = False) -> Identity:
    """Record that an incarnation crashed; idempotent.

    With `kill` a living process is ended first.

    Raises:
        Refused: its process is alive, so the record would be wrong, and a successor would wait for the process.
    """
    return _mark("crashed", role, name, run, incarnation, reason, home, kill=kill)


@guarded("identity-registry mark-terminated")
def mark_terminated(role: str, name: str, run: str | None = None, incarnation: int | None = None,
                    reason: str = "marked by hand", home: str | None = None, *, kill: bool = False) -> Identity:
    """Record that an incarnation ended normally; idempotent. Otherwise as `mark_crashed`."""
    return _mark("terminated", role, name, run, incarnation, reason, home, kill=kill)


def _mark(status: str, role: str, name: str, run: str | None, incarnation: int | None, reason: str,
          home: str | None, *, kill: bool) -> Identity:
    store = resolve.open_store(home)
    key = resolve.find_key(store, Identity, role, name, run)
    observer, now = resolve.observer_of(store), SystemClock().utc()
    writer = resolve.writer_incarnation(store, key, incarnation)

    def with_status(old: Identity | None) -> Identity:
        identity = _existing(old, key)
        _refuse_living(observer, identity)
        return identity if identity.status == status else mark_ended(identity, status, now, reason)

    before = store.get(Identity, key)
    if not kill:
        marked = store.update(Identity, key, with_status, incarnation=writer)
        if before.status != status:
            _tell_guardian(store, marked, _ENDINGS[status](marked.incarnation, reason))
        return observer.with_heartbeat(marked)
    identity = before
    if writer is not None:
        check_incarnation(identity, key, writer)
    # kill before recording the end, which `with_status` refuses for a living process
    _end_process(observer, identity, reason)
    try:
        return observer.with_heartbeat(store.update(Identity, key, with_status, incarnation=identity.incarnation))
    except Fenced:  # its supervisor was faster: the name has a successor
        return observer.with_heartbeat(store.get(Identity, key))


def _refuse_living(observer: Observer, identity: Identity) -> None:
    """Refuse to record the end of a living process, except one registered by hand that records its own end."""
    verdict, pid = observer.judge(identity), identity.pid
    if not verdict.living or pid is None:  # without a process only the heartbeat tells whether it is alive
        return
    is_caller = pid in {os.getpid(), *processes.ancestors(os.getpid())}
    if is_caller and not life_lock.is_held(observer.store.life_path(identity.key)):
        return
    raise Refused(f"{identity.key.full} is alive (pid {pid}: {verdict.why}), so its end was not recorded; pass --kill "
                  f"to end it, or use `garrison agents park {identity.key.full}` or `garrison stop {identity.run_id}`")


def _end_process(observer: Observer, identity: Identity, reason: str) -> None:
    """Fence a living incarnation and kill its processes, including those that outlive its recorded end."""
    verdict = observer.judge(identity)
    if verdict.state == "elsewhere":
        raise Refused(f"{identity.key.full} is {verdict.why}; end it there")
    if identity.pid is None or not (verdict.living or observer.observe(identity).leaving is not None):
        return
    from garrison.config import Timing
    from garrison.supervise.death_classes import ORDER
    from garrison.supervise.incarnation import fence, kill_incarnation

    fenced = fence(observer, identity, reason, ORDER)
    kill_incarnation(observer, fenced, Timing.read(os.environ).sweep_grace, at_once=True)


def _existing(old: Identity | None, key: Key) -> Identity:
    """Return the record as read under its lock; it may have been removed since its name was resolved."""
    if old is None:
        raise NotFound(f"identity {key.full} no longer exists; `list` shows the existing ones")
    return old


def print_identities(listed: Sequence[ListedIdentity], home: str | None) -> None:
    """Print identities as a table: the record, and the verdict on its process on this machine."""
    store = resolve.open_store(home)
    observer = resolve.observer_of(store)
    rows = []
    for each in listed:
        identity = each.identity
        verdict, seen = observer.judge(identity), observer.observe(identity)
        state = "stale" if verdict.living and each.stale_reason else verdict.state
        rows.append((identity.key.full, identity.incarnation, identity.status, state, identity.pid,
                     format_age(seen.beat_age), each.stale_reason or identity.reason or verdict.why))
    print_table(("NAME", "INCARNATION", "STATUS", "VERDICT", "PID", "HEARTBEAT", "WHY"), rows,
                f"no identities in {store.home}")


# ------------------------------------------------------------------------------------------------------------ commands


@click.group(cls=Group, epilog="Example: identity_registry.py find-stale --timeout 300 --respawn")
@quiet_option
@home_option
def identity_registry(home: str | None) -> None:
    """Create, list, refresh and end identities, the records of garrison's processes."""
    use_home(home)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `identity_registry.py`; returns the exit code."""
    return run_command(identity_registry, argv, "identity_registry.py", report=print_error_json)


@identity_registry.command("create")
@record_arguments
@click.option("--session-id", default="", metavar="ID", help="Session the process works in.")
@click.option("--worktree", metavar="DIR", help="Worktree it works in.")
@click.option("--pid", type=click.IntRange(1), help="Process of the incarnation.")
def create_command(role: str, name: str, run: str | None, home: str | None, session_id: str, worktree: str | None,
                   pid: int | None) -> None:
    """Create an identity; if the same run has a dead one, its successor."""
    print_record(create_identity(role, name, session_id, worktree, pid, run, home))


@identity_registry.command("update-liveness")
@record_arguments
@incarnation_option
def update_liveness_command(role: str, name: str, run: str | None, home: str | None, incarnation: int | None) -> None:
    """Record a heartbeat."""
    beat = update_liveness(role, name, run, incarnation, home)
    print_json({"status": "ok", "last_heartbeat": beat.last_heartbeat})


@identity_registry.command("find-stale")
@click.option("--timeout", type=SECONDS, default=STALE_AFTER, show_default=True, help="Seconds without a heartbeat.")
@click.option("--respawn", is_flag=True, help="Start a launcher for each unfinished run that has none, and the dead "
              "runners of ad-hoc runs.")
@home_option
def find_stale_command(timeout: float, respawn: bool, home: str | None) -> None:
    """List incarnations that are silent, gone or never started, as JSON; exit code 1 if a record is damaged."""
    errors: list[RecordError] = []
    print_json([each.body() for each in find_stale(timeout, home, errors.extend)])
    if respawn:
        sys.stdout.flush()
        from garrison.launch.resume import REPORTED_TO_CRON, resume_all

        for result in resume_all(find_home(home)):
            if result.state in REPORTED_TO_CRON:
                print_message(result.line)
    if errors:
        raise Refused("; ".join(str(error) for error in errors))


@identity_registry.command("list", examples=(
    ("garrison agents list", "every process of every run, with incarnation, verdict and heartbeat"),
    ("garrison agents list --stale-only 300 --json", "the silent and the dead, for programs"),
))
@json_option
@click.option("--stale-only", type=SECONDS, metavar="SECONDS",
              help="Only those without a heartbeat for SECONDS or without a process.")
@home_option
def list_command(as_json: bool, stale_only: float | None, home: str | None) -> None:
    """List agents and their supervising processes: state, process, heartbeat."""
    listed = list_all(home) if stale_only is None else find_stale(stale_only, home)
    if as_json:
        print_json([each.body() for each in listed])
    else:
        print_identities(listed, home)


@identity_registry.command("show")
@record_arguments
def show_command(role: str, name: str, run: str | None, home: str | None) -> None:
    """Show one identity as JSON."""
    print_record(show(role, name, run, home))


kill_option = click.option("--kill", is_flag=True, help="End its processes first; its run starts a successor.")


@identity_registry.command("mark-crashed")
@record_arguments
@incarnation_option
@kill_option
def mark_crashed_command(role: str, name: str, run: str | None, home: str | None, incarnation: int | None,
                         kill: bool) -> None:
    """Record that an incarnation crashed; refused while its process is alive."""
    print_record(mark_crashed(role, name, run, incarnation, home=home, kill=kill))


@identity_registry.command("mark-terminated")
@record_arguments
@incarnation_option
@kill_option
def mark_terminated_command(role: str, name: str, run: str | None, home: str | None, incarnation: int | None,
                            kill: bool) -> None:
    """Record that an incarnation ended normally; refused while its process is alive."""
    print_record(mark_terminated(role, name, run, incarnation, home=home, kill=kill))
