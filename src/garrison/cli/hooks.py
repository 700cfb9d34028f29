"""Hooks by hand and from prompts: `hook_manager.py`, and the functions the seeds call.

Light, as identity_door is. Every function returns JSON's shapes; refusals are GarrisonErrors.
"""

from __future__ import annotations

from garrison.cli import resolve
from garrison.cli.arguments import Command, DoorParser, add_life
from garrison.cli.output import print_error_json, print_json, print_message, run_guarded
from garrison.errors import Fenced, NotFound
from garrison.records import record
from garrison.records.hook import PHASES, Hook, change_phase, check_phase, update_notes
from garrison.records.identity import Identity
from garrison.records.names import ROLES, Key
from garrison.records.wisdom import build_wisdom_prompt_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import Any

    from garrison.records.store import Store

__all__ = ["build_wisdom_prompt_block", "create_hook", "main", "read_hook", "update_phase", "update_resumption"]

# -------------------------------------------------------------------------------------------------------- as functions


def create_hook(role: str, name: str, phase: str = "planning", run: str | None = None,
                home: str | None = None) -> dict[str, Any]:
    """Make a hook. Where there is one already, the life that asks continues it: new id, linked, the phase kept."""
    from garrison.supervise.lease import next_hook
    from garrison.supervise.start import new_id
    from garrison.system.clock import SystemClock

    check_phase(phase)
    store = resolve.open_store(home)
    key = _key_for_new(store, role, name, run)
    now = SystemClock().utc()
    identity = store.read(Identity, key)

    def begin(old: Hook | None) -> Hook:
        if old is None:
            incarnation = identity.incarnation if identity else 1
            return Hook(new_id(), role, name, key.run, now, now, phase=phase, incarnation=incarnation)
        return next_hook(old, key, identity.incarnation if identity else old.incarnation + 1, now, new_id())

    return record.to_dict(store.update(Hook, key, begin))


def _key_for_new(store: Store, role: str, name: str, run: str | None) -> Key:
    """A new hook without a run belongs to the identity of that name, if there is one."""
    key = Key(role, name, resolve.run_for_new(store, run))
    if run is not None or key.run:
        return key
    try:
        return resolve.find_key(store, Identity, role, name, None)
    except NotFound:
        return key


def read_hook(role: str, name: str, run: str | None = None, home: str | None = None) -> dict[str, Any] | None:
    """A hook, or None if there is none."""
    store = resolve.open_store(home)
    try:
        return record.to_dict(store.get(Hook, resolve.find_key(store, Hook, role, name, run)))
    except NotFound:
        return None


def update_phase(role: str, name: str, phase: str, run: str | None = None, incarnation: int | None = None,
                 home: str | None = None) -> dict[str, Any]:
    """Move a hook; ForbiddenTransition if the table of phases does not list the step."""
    check_phase(phase)
    return _change(role, name, run, incarnation, home, lambda hook, now: change_phase(hook, phase, now))


def update_resumption(role: str, name: str, text: str, last_committed_node: str | None = None, run: str | None = None,
                      incarnation: int | None = None, home: str | None = None) -> dict[str, Any]:
    """Leave notes, and optionally the last commit, for a successor."""
    return _change(role, name, run, incarnation, home,
                   lambda hook, now: update_notes(hook, now, text=text, last_committed=last_committed_node))


def _change(role: str, name: str, run: str | None, incarnation: int | None, home: str | None,
            change: Callable[[Hook, str], Hook]) -> dict[str, Any]:
    from garrison.system.clock import SystemClock

    store = resolve.open_store(home)
    key = resolve.find_key(store, Hook, role, name, run)
    own = resolve.writer_incarnation(store, key, incarnation)
    _check_life(store, key, own)
    now = SystemClock().utc()

    def present(old: Hook | None) -> Hook:
        if old is None:
            raise NotFound(f"no hook {key.full} any more; `create` makes one")
        return change(old, now)

    return record.to_dict(store.update(Hook, key, present, incarnation=own))


def _check_life(store: Store, key: Key, incarnation: int | None) -> None:
    """Fenced if the identity has a later life than `incarnation`; its hook is linked a moment after its lease."""
    identity = store.read(Identity, key) if incarnation is not None else None
    if identity is not None and incarnation is not None and identity.incarnation > incarnation:
        raise Fenced(f"{key.full} has a later life ({identity.incarnation} > {incarnation}); stopping without writing")


def wisdom(role: str, name: str, run: str | None = None, home: str | None = None) -> str:
    """What a successor is told; NotFound without a hook."""
    store = resolve.open_store(home)
    return build_wisdom_prompt_block(store.get(Hook, resolve.find_key(store, Hook, role, name, run)))


# --------------------------------------------------------------------------------------------------------- as commands


def main(argv: Sequence[str] | None = None) -> int:
    """The door's command line; returns the exit code."""
    work, options = _parser().parse(argv)
    return run_guarded(lambda: work(options), print_error_json)


def _parser() -> DoorParser:
    parser = DoorParser("hook_manager.py", "How far each one's work is.", "read runner add_tests --run crew-1")

    def command(name: str, work: Callable[[argparse.Namespace], None], text: str) -> Command:
        made = parser.command(name, work, text)
        made.add_argument("role", choices=ROLES, metavar="ROLE", help=", ".join(ROLES))
        made.add_argument("name", metavar="NAME")
        made.add_argument("--run", help="the run, if several have that name")
        return made

    create = command("create", _create, "make a hook, or continue the one that is there")
    create.add_argument("--phase", help="where a new one begins (default: planning)")
    update = command("update-phase", _update_phase, "move a hook to the next phase")
    update.add_argument("phase", metavar="PHASE", help=", ".join(PHASES))
    add_life(update)
    command("read", _read, "show a hook as JSON")
    resumption = command("update-resumption", _update_resumption, "leave notes for a successor")
    resumption.add_argument("text", metavar="TEXT")
    resumption.add_argument("--last-committed-node", metavar="X")
    add_life(resumption)
    command("wisdom", _wisdom, "print what a successor is told")
    return parser


def _create(options: argparse.Namespace) -> None:
    made = create_hook(options.role, options.name, options.phase or "planning", options.run, options.home)
    if options.phase and made["phase"] != options.phase:
        print_message(f"the hook was there already and keeps its phase, {made['phase']}; `update-phase` moves it")
    print_json(made)


def _update_phase(options: argparse.Namespace) -> None:
    print_json(update_phase(options.role, options.name, options.phase, options.run, options.incarnation, options.home))


def _read(options: argparse.Namespace) -> None:
    store = resolve.open_store(options.home)
    print_json(record.to_dict(store.get(Hook, resolve.find_key(store, Hook, options.role, options.name, options.run))))


def _update_resumption(options: argparse.Namespace) -> None:
    print_json(update_resumption(options.role, options.name, options.text, options.last_committed_node, options.run,
                                options.incarnation, options.home))


def _wisdom(options: argparse.Namespace) -> None:
    print(wisdom(options.role, options.name, options.run, options.home))
