"""Places of a node's processes: the rights of its set-up, agent, acceptance and validator, and what they are given.

Each kind of process has a home and a temporary folder of its own, beside the worktree. What the set-up left in its home
lies under those of the others, who may change it without anybody's seeing it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import GuardHooks, read_config
from garrison.errors import UsageError
from garrison.sandbox import setups
from garrison.sandbox.collect import find_checkout, git_mounts
from garrison.sandbox.git_config import NO_PUSH
from garrison.sandbox.git_view import sandbox_folder
from garrison.sandbox.named_files import show_named_programs
from garrison.sandbox.place import Mode, Mount, Place, Role
from garrison.sandbox.probe import mode_here
from garrison.sandbox.rights import read_rights
from garrison.system import untrusted
from garrison.system.git import Git, excludes
from garrison.system.git.neutral import HOOKS_KEY, to_variables

VALIDATOR_SUFFIX = ".validator"
"""Ends the name of a validator's worktree, beside the node's: no node's name has a dot."""

if TYPE_CHECKING:
    from collections.abc import Iterable

    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task


def read_hooks_mode(home: Path) -> GuardHooks:
    """Return where the repository's own commit hooks run, by the home's `[guard]`."""
    try:
        return read_config(home).guard().hooks
    except UsageError:  # it was well-formed at the launch
        return GuardHooks.AGENT


def node_place(runtime: Runtime, launch: Launch, task: Task, worktree: Path, role: Role, *, agent: str = "",
               mounts: Iterable[Mount] = (), turn: int = 0, home_of: int = 0) -> Place | None:
    """Return the place of a process in a node's worktree; None where nothing is confined.

    Each agent of an attempt, by its `turn`, has a home of its own: another one's may hold a log-in. `home_of` is the
    earlier attempt whose session it goes on with, and whose home, where its program keeps that, it has; 0 for none.
    """
    rights = read_rights(runtime.home, role, agent, runtime.environ)
    if rights.mode is Mode.NONE:
        return None
    command = {Role.AGENT: task.command, Role.SETUP: task.setup, Role.ACCEPTANCE: task.acceptance}.get(role)
    rights = show_named_programs(rights, command or "")
    own = worktree.with_name(worktree.name.removesuffix(VALIDATOR_SUFFIX))
    layer = setups.layer_of(own) if role is not Role.SETUP else None
    setup = sandbox_folder(worktree) / Role.SETUP  # an unchanged set-up of an earlier attempt is not run again
    name = f"{role}-{task.attempt}-{turn}" if turn else f"{role}-{home_of or task.attempt}"
    private = setup if role is Role.SETUP else sandbox_folder(worktree) / name
    git = Git(Path(launch.repo), home=runtime.home)
    # What the set-up of an earlier version left in the worktree itself names the worktree's own path.
    is_earlier = bool(task.setup) and layer is None and role is not Role.SETUP
    checkout = None if is_earlier else find_checkout(git, rights, runtime.environ)
    shown = git_mounts(git, worktree, rights, role, str(task.attempt), checkout,
                       hooks=read_hooks_mode(runtime.home) is GuardHooks.AGENT)
    return Place(role, rights, worktree, private, (*shown, *mounts), worktree_writable=role is not Role.VALIDATOR,
                 under_home=() if role is Role.SETUP else (setup / "home" if layer is None else layer.home,),
                 under_worktree=() if layer is None else (layer.tree,), caches=read_config(runtime.home).setup().caches,
                 under_caches=None if layer is None else layer.caches, checkout=checkout,
                 secret=(git.root, git.common))


def git_variables(runtime: Runtime, git: Git, worktree: Path, agent: str,
                  excluded: Path | None = None) -> dict[str, str]:
    """Return settings of an agent's git where its worktree has the repository's own git directory, as variables.

    What it commits survives a power cut once it has landed. It has no address to push to and no credential helper,
    unless its profile has `push = true`: it could unset the variables, so that stops a habit, no intent. Empty where
    its private git directory says so already; what is collected from that is synced. `excluded` is the file with the
    patterns of what its git ignores.
    """
    rights = read_rights(runtime.home, Role.AGENT, agent, runtime.environ)
    if mode_here(rights.mode) is not Mode.NONE:
        return {}
    settings = [("core.fsync", "committed,loose-object,reference"), ("core.fsyncMethod", "fsync"),
                ("commit.gpgSign", "false"), ("tag.gpgSign", "false")]  # the key is the user's alone
    if read_hooks_mode(runtime.home) is not GuardHooks.AGENT:
        settings.append((HOOKS_KEY, os.devnull))
    if excluded is not None:
        settings.append((excludes.SETTING, str(excluded)))
    if not rights.push:
        settings += [("push.default", "nothing"), ("credential.helper", "")]
        for remote, address in git.remotes(worktree).items():
            settings.append((f"url.{NO_PUSH}.insteadOf", address) if address else (f"remote.{remote}.pushurl", NO_PUSH))
    return to_variables(settings)


def remove_sandbox_folder(worktree: Path) -> None:
    """Remove what a worktree's processes had of their own; nothing in it is followed."""
    folder = sandbox_folder(worktree)
    untrusted.remove(folder.parent, folder.name)
