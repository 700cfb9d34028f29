"""Identities by hand and by cron: `identity_registry.py`, and the functions the seeds call.

Light (at most four times the start of bare Python): argparse, and of garrison only records, supervise and settings,
each imported when its command needs it. Every function returns JSON's shapes; refusals are GarrisonErrors.
"""

from __future__ import annotations

import os
import sys

from garrison.cli import resolve
from garrison.cli.arguments import Command, DoorParser, add_life, positive, seconds
from garrison.cli.output import print_error_json, print_json, print_message, print_table, run_guarded
from garrison.errors import NotFound, Refused
from garrison.records import record
from garrison.records.identity import ALIVE, Identity, mark_ended, record_heartbeat
from garrison.records.names import ROLES, Key
from garrison.system.clock import format_age

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from garrison.records.store import Store
    from garrison.supervise.lease import ProcessOrigin
    from garrison.supervise.observer import Observer

STALE_AFTER = 300.0
"""Seconds of silence after which `find-stale` lists a life."""

# -------------------------------------------------------------------------------------------------------- as functions


def create_identity(role: str, name: str, session_id: str = "", worktree: str | None = None, pid: int | None = None,
                    run: str | None = None, home: str | None = None) -> dict[str, Any]:
    """Make the identity of a life begun by hand; over a dead one of the same run, its successor.

    AlreadyAlive if the name has a living holder. Without `pid` the life counts as alive while its beat is fresh.
    """
    from garrison.supervise.lease import SpawnRequest

    store = resolve.open_store(home)
    key = Key(role, name, resolve.run_for_new(store, run))
    observer = resolve.observer_of(store)
    _bury(store, observer, key)
    wish = SpawnRequest(key, worktree=worktree, session_id=session_id)
    process = observer.me(pid) if pid is not None else None
    made = store.update(Identity, key, lambda old: _begin(observer, old, wish, process))
    _link_hook(store, made, observer.clock.utc())
    return record.to_dict(made)


def _bury(store: Store, observer: Observer, key: Key) -> None:
    """A life found dead is fenced, and what it left running ends, before its successor begins."""
    old = store.read(Identity, key)
    if old is None or observer.judge(old).state not in ("dead", "lapsed"):
        return
    from garrison.config import Timing
    from garrison.supervise.replace import replace_incarnation

    replace_incarnation(observer, old, observer.judge(old).why, Timing.read(os.environ).sweep_grace)


def _begin(observer: Observer, old: Identity | None, wish: Any, process: ProcessOrigin | None) -> Identity:
    """The next life, active at once: whoever begins it by hand has no child to wait for."""
    from dataclasses import replace

    from garrison.supervise.lease import activate, grant_lease
    from garrison.supervise.start import new_id

    now, me = observer.clock.utc(), observer.me(os.getpid())
    leased = grant_lease(old, observer.judge(old) if old else None, wish, me, now=now, deadline=now, fresh_id=new_id())
    begun = activate(leased, process or me, now)
    return begun if process else replace(begun, pid=None, start_ticks=None)


def _link_hook(store: Store, made: Identity, now: str) -> None:
    """A hook that is there goes on under the new life."""
    from garrison.records.hook import Hook

    if made.incarnation > 1 and store.path(Hook, made.key).exists():
        from garrison.supervise.lease import next_hook
        from garrison.supervise.start import new_id

        store.update(Hook, made.key, lambda old: next_hook(old, made.key, made.incarnation, now, new_id()))


def update_liveness(role: str, name: str, run: str | None = None, incarnation: int | None = None,
                    home: str | None = None) -> dict[str, Any]:
    """Record a heartbeat: `{"status": "ok", "last_heartbeat": …}`. Refused if that life is over."""
    from garrison.system.clock import SystemClock

    store = resolve.open_store(home)
    key = resolve.find_key(store, Identity, role, name, run)
    now = SystemClock().utc()

    def sign(old: Identity | None) -> Identity:
        found = _present(old, key)
        if found.status not in ALIVE:
            raise Refused(f"{key.full} is {found.status}, a beat does not revive it; `create` begins its next life")
        return record_heartbeat(found, now)

    written = store.update(Identity, key, sign, incarnation=resolve.writer_incarnation(store, key, incarnation))
    return {"status": "ok", "last_heartbeat": written.last_heartbeat}


def find_stale(timeout: float = STALE_AFTER, home: str | None = None) -> list[dict[str, Any]]:
    """Every identity whose beat is older than `timeout` seconds, whose process is gone or whose start deadline passed.

    Each is the whole identity with `stale_reason`: heartbeat, process_gone or start_deadline. Corrupt records are
    named on stderr.
    """
    from garrison.supervise import stale

    found, errors = stale.find_stale(resolve.observer_of(resolve.open_store(home)), timeout)
    for error in errors:
        print_message(str(error))
    return [{**record.to_dict(identity), "stale_reason": reason} for identity, reason in found]


def list_all(home: str | None = None) -> list[dict[str, Any]]:
    """Every readable identity; corrupt ones are named on stderr."""
    return [record.to_dict(identity) for identity in readable(resolve.open_store(home))]


def readable(store: Store) -> list[Identity]:
    """Every readable identity of a home; corrupt ones are named on stderr."""
    identities, errors = store.list(Identity)
    for error in errors:
        print_message(str(error))
    return identities


def show(role: str, name: str, run: str | None = None, home: str | None = None) -> dict[str, Any]:
    """One identity."""
    store = resolve.open_store(home)
    return record.to_dict(store.get(Identity, resolve.find_key(store, Identity, role, name, run)))


def mark_crashed(role: str, name: str, run: str | None = None, incarnation: int | None = None,
                 reason: str = "marked by hand", home: str | None = None) -> dict[str, Any]:
    """Say that a life crashed; saying it again changes nothing."""
    return _mark("crashed", role, name, run, incarnation, reason, home)


def mark_terminated(role: str, name: str, run: str | None = None, incarnation: int | None = None,
                    reason: str = "marked by hand", home: str | None = None) -> dict[str, Any]:
    """Say that a life ended in order; saying it again changes nothing."""
    return _mark("terminated", role, name, run, incarnation, reason, home)


def _mark(status: str, role: str, name: str, run: str | None, incarnation: int | None, reason: str,
          home: str | None) -> dict[str, Any]:
    from garrison.system.clock import SystemClock

    store = resolve.open_store(home)
    key = resolve.find_key(store, Identity, role, name, run)
    now = SystemClock().utc()

    def end(old: Identity | None) -> Identity:
        found = _present(old, key)
        return found if found.status == status else mark_ended(found, status, now, reason)

    own = resolve.writer_incarnation(store, key, incarnation)
    return record.to_dict(store.update(Identity, key, end, incarnation=own))


def _present(old: Identity | None, key: Key) -> Identity:
    """The record as read under its lock; it may have gone since it was looked for."""
    if old is None:
        raise NotFound(f"no identity {key.full} any more; `list` shows what there is")
    return old


# --------------------------------------------------------------------------------------------------------- as commands


def main(argv: Sequence[str] | None = None) -> int:
    """The door's command line; returns the exit code."""
    work, options = _parser().parse(argv)
    return run_guarded(lambda: work(options), print_error_json)


def _parser() -> DoorParser:
    parser = DoorParser("identity_registry.py", "Who exists.", "find-stale --timeout 300 --respawn")
    create = parser.command("create", _create, "make an identity; over a dead one of the same run, its successor")
    _add_who(create)
    create.add_argument("--session-id", default="")
    create.add_argument("--worktree")
    create.add_argument("--pid", type=positive, help="the process whose life this is")
    _add_who(parser.command("update-liveness", _update_liveness, "record a heartbeat"), life=True)
    stale = parser.command("find-stale", _find_stale, "list the lives that are silent, gone or never came up, as JSON")
    stale.add_argument("--timeout", type=seconds, default=STALE_AFTER, help="seconds of silence (default: 300)")
    stale.add_argument("--respawn", action="store_true", help="start a launcher for each unfinished run that has none")
    listing = parser.command("list", _list, "list identities")
    listing.add_argument("--json", action="store_true", dest="as_json")
    listing.add_argument("--stale-only", type=seconds, metavar="SECONDS", help="only what find-stale lists")
    _add_who(parser.command("show", _show, "show one identity as JSON"))
    _add_who(parser.command("mark-crashed", _mark_crashed, "say that a life crashed"), life=True)
    _add_who(parser.command("mark-terminated", _mark_terminated, "say that a life ended in order"), life=True)
    return parser


def _add_who(parser: Command, *, life: bool = False) -> None:
    parser.add_argument("role", choices=ROLES, metavar="ROLE", help=", ".join(ROLES))
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--run", help="the run, if several have that name")
    if life:
        add_life(parser)


def _create(options: argparse.Namespace) -> None:
    print_json(create_identity(options.role, options.name, options.session_id, options.worktree, options.pid,
                              options.run, options.home))


def _update_liveness(options: argparse.Namespace) -> None:
    print_json(update_liveness(options.role, options.name, options.run, options.incarnation, options.home))


def _find_stale(options: argparse.Namespace) -> None:
    print_json(find_stale(options.timeout, options.home))
    if options.respawn:
        sys.stdout.flush()
        _respawn(options.home)


def _respawn(home: str | None) -> None:
    from garrison.config import find_home
    from garrison.processes.resume_all import REPORTED_TO_CRON, resume_all

    for word in resume_all(find_home(home)):
        if word.state in REPORTED_TO_CRON:
            print_message(word.line)


def _list(options: argparse.Namespace) -> None:
    found = list_all(options.home) if options.stale_only is None else find_stale(options.stale_only, options.home)
    if options.as_json:
        print_json(found)
    else:
        show_identities(found, options.home)


def show_identities(found: list[dict[str, Any]], home: str | None) -> None:
    """Identities as a table: what the record says, and what this machine shows of it."""
    store = resolve.open_store(home)
    observer = resolve.observer_of(store)
    rows = []
    for body in found:
        identity = record.from_dict(Identity, {name: body[name] for name in body if name != "stale_reason"}, store.home)
        verdict, seen = observer.judge(identity), observer.see(identity)
        rows.append((identity.key.full, identity.incarnation, identity.status, verdict.state, identity.pid,
                     format_age(seen.beat_age), body.get("stale_reason") or identity.reason or verdict.why))
    print_table(("NAME", "LIFE", "STATUS", "VERDICT", "PID", "BEAT", "WHY"), rows, f"no identities in {store.home}")


def _show(options: argparse.Namespace) -> None:
    print_json(show(options.role, options.name, options.run, options.home))


def _mark_crashed(options: argparse.Namespace) -> None:
    print_json(mark_crashed(options.role, options.name, options.run, options.incarnation, home=options.home))


def _mark_terminated(options: argparse.Namespace) -> None:
    print_json(mark_terminated(options.role, options.name, options.run, options.incarnation, home=options.home))
