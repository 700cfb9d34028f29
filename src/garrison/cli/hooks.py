"""`hook_manager.py`: create, read and move hooks, as commands and as functions for agents' prompts.

A hook records the progress of one role and name. The functions return the record, which the commands print as JSON, and
raise a GarrisonError to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from garrison.cli import resolve
from garrison.cli.authority import guarded
from garrison.cli.commands import Command, Group, run_command
from garrison.cli.options import home_option, incarnation_option, quiet_option, record_arguments, use_home
from garrison.cli.output import print_error_json, print_message, print_record
from garrison.errors import Fenced, NotFound
from garrison.records.hook import PHASES, Hook, change_phase, check_phase, next_hook, update_notes
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.store import Store, new_id
from garrison.system.clock import SystemClock

if TYPE_CHECKING:
    from typing import Any

__all__ = ["build_wisdom_prompt_block", "create_hook", "main", "read_hook", "update_phase", "update_resumption"]

# ----------------------------------------------------------------------------------------------------------- functions


@guarded("hook-manager create")
def create_hook(role: str, name: str, phase: str = "planning", run: str | None = None, home: str | None = None, *,
                predecessor_hook_id: str | None = None) -> Hook:
    """Create a hook, or continue the existing one with a new id that links to the old one; the phase is kept.

    `predecessor_hook_id` is used if there is no hook to continue.
    """
    check_phase(phase)
    store = resolve.open_store(home)
    key = _key_for_new(store, role, name, run)
    now = SystemClock().utc()
    identity = store.read(Identity, key)

    def created_or_continued(old: Hook | None) -> Hook:
        if old is None:
            incarnation = identity.incarnation if identity else 1
            return Hook(new_id(), role, name, key.run, now, now, phase=phase, incarnation=incarnation,
                        predecessor_hook_id=predecessor_hook_id)
        return next_hook(old, key, identity.incarnation if identity else old.incarnation + 1, now, new_id())

    return store.update(Hook, key, created_or_continued)


def _key_for_new(store: Store, role: str, name: str, run: str | None) -> Key:
    """Return the key of a new hook; without a run it belongs to the identity of that name, if any."""
    key = Key(role, name, resolve.run_for_new(store, run))
    if run is not None or key.run:
        return key
    try:
        return resolve.find_key(store, Identity, role, name, None)
    except NotFound:
        return key


def read_hook(role: str, name: str, run: str | None = None, home: str | None = None) -> Hook:
    """Return a hook; NotFound if there is none."""
    store = resolve.open_store(home)
    return store.get(Hook, resolve.find_key(store, Hook, role, name, run))


@guarded("hook-manager update-phase")
def update_phase(role: str, name: str, phase: str, run: str | None = None, incarnation: int | None = None,
                 home: str | None = None) -> Hook:
    """Move a hook to a phase; ForbiddenTransition if the table of phases does not allow it."""
    check_phase(phase)
    return _update(role, name, run, incarnation, home, lambda hook, now: change_phase(hook, phase, now))


@guarded("hook-manager update-resumption")
def update_resumption(role: str, name: str, text: str, last_committed_node: str | None = None, run: str | None = None,
                      incarnation: int | None = None, home: str | None = None) -> Hook:
    """Record notes, and optionally the last commit, for the successor."""
    return _update(role, name, run, incarnation, home,
                   lambda hook, now: update_notes(hook, now, text=text, last_committed=last_committed_node))


def _update(role: str, name: str, run: str | None, incarnation: int | None, home: str | None,
            change: Callable[[Hook, str], Hook]) -> Hook:
    store = resolve.open_store(home)
    key = resolve.find_key(store, Hook, role, name, run)
    writer = resolve.writer_incarnation(store, key, incarnation)
    _check_not_fenced(store, key, writer)
    now = SystemClock().utc()

    def changed(old: Hook | None) -> Hook:
        if old is None:
            raise NotFound(f"hook {key.full} no longer exists; `create` creates one")
        return change(old, now)

    return store.update(Hook, key, changed, incarnation=writer)


def _check_not_fenced(store: Store, key: Key, incarnation: int | None) -> None:
    """Raise Fenced if the identity has a later incarnation, which may not have linked its hook yet."""
    identity = store.read(Identity, key) if incarnation is not None else None
    if identity is not None and incarnation is not None and identity.incarnation > incarnation:
        raise Fenced(f"{key.full} has a later incarnation ({identity.incarnation} > {incarnation}); "
                     f"stopping without writing")


# ------------------------------------------------------------------------------------------------------------ commands


@click.group(cls=Group, epilog="Example: hook_manager.py read runner add_tests --run crew-1")
@quiet_option
@home_option
def hook_manager(home: str | None) -> None:
    """Create, read and move hooks, which record the progress of each role and name."""
    use_home(home)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `hook_manager.py`; return the exit code."""
    return run_command(hook_manager, argv, "hook_manager.py", report=print_error_json)


@hook_manager.command("create")
@record_arguments
@click.option("--phase", help="Phase of a new hook (default: planning).")
def create_command(role: str, name: str, run: str | None, home: str | None, phase: str | None) -> None:
    """Create a hook, or continue the existing one."""
    hook = create_hook(role, name, phase or "planning", run, home)
    if phase and hook.phase != phase:
        print_message(f"the hook exists and keeps its phase, {hook.phase}; `update-phase` moves it")
    print_record(hook)


@hook_manager.command("update-phase", help=f"Move a hook to PHASE: {', '.join(PHASES)}.")
@record_arguments
@click.argument("phase")
@incarnation_option
def update_phase_command(role: str, name: str, run: str | None, home: str | None, phase: str,
                         incarnation: int | None) -> None:
    """Move a hook."""
    print_record(update_phase(role, name, phase, run, incarnation, home))


@hook_manager.command("read")
@record_arguments
def read_command(role: str, name: str, run: str | None, home: str | None) -> None:
    """Show a hook as JSON."""
    print_record(read_hook(role, name, run, home))


class _NotesCommand(Command):
    """Command whose text may start with a dash, like a Markdown list."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; a word that starts with a dash and contains a space is text, not an option."""
        taking_value = {name for param in self.params if isinstance(param, click.Option) for name in param.opts}
        # spaces before an `=` are text; after it they may be part of an option's value (--last-committed-node='a b')
        is_text = [word.startswith("-") and before not in taking_value and any(map(str.isspace, word.partition("=")[0]))
                   for before, word in zip(["", *args], args, strict=False)]
        if any(is_text) and "--" not in args:
            options = [word for word, text in zip(args, is_text, strict=True) if not text]
            args = [*options, "--", *(word for word, text in zip(args, is_text, strict=True) if text)]
        return super().parse_args(ctx, args)


@hook_manager.command("update-resumption", cls=_NotesCommand)
@record_arguments
@click.argument("text")
@click.option("--last-committed-node", metavar="COMMIT", help="Last commit of the work.")
@incarnation_option
def update_resumption_command(role: str, name: str, run: str | None, home: str | None, text: str,
                              last_committed_node: str | None, incarnation: int | None) -> None:
    """Record TEXT as notes for the successor."""
    print_record(update_resumption(role, name, text, last_committed_node, run, incarnation, home))


@hook_manager.command("wisdom")
@record_arguments
def wisdom_command(role: str, name: str, run: str | None, home: str | None) -> None:
    """Print the part of the successor's prompt that describes the progress of the work."""
    print(build_wisdom_prompt_block(read_hook(role, name, run, home)))


# ---- wisdom ----------------------------------------------------------------------------------------------------------

# Wisdom: the prompt block that tells a successor what its predecessor has done. Pure.

HEADING = "## RESUMPTION CONTEXT (from previous session)"
_SKIP = ("executing", "impl_complete", "validating")


def build_wisdom_prompt_block(hook: Any) -> str:
    """Return the block for `hook` (a Hook or its JSON object): phase reached, last commit, what to skip, the notes."""
    get = hook.get if isinstance(hook, dict) else lambda name, default=None: getattr(hook, name, default)
    phase = get("phase") or "planning"
    lines = [HEADING, f"Previous phase reached: {phase}"]
    if get("last_committed_node"):
        lines.append(f"Last committed node: {get('last_committed_node')}")
    if phase in _SKIP:
        lines.append(f"SKIP planning phase — go directly to {phase}")
    if phase == "merged":
        lines.append("The work is merged: nothing is left to do.")
    if get("resumption_instructions"):
        lines.append(f"Resumption notes: {get('resumption_instructions')}")
    return "\n".join(lines)
