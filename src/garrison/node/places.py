"""Places of a node's processes: the rights and mounts of its set-up, agent, acceptance and validator.

Each kind of process has a home and its own temporary folder, alongside the worktree. The home of the set-up is the
lower layer of the others' homes, each of which may change it privately.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import registry
from garrison.config import GuardHooks, read_config
from garrison.errors import GarrisonError, UsageError
from garrison.processes.spawn import worktree_path
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.sandbox import network, services, setups
from garrison.sandbox.collect import find_checkout, git_mounts
from garrison.sandbox.devcontainer import with_devcontainer
from garrison.sandbox.file_system import show_named_programs
from garrison.sandbox.git_config import NO_PUSH
from garrison.sandbox.network import NetworkUser
from garrison.sandbox.place import NETWORK_FOLDER, Mode, Mount, Network, Place, Role, sandbox_folder
from garrison.sandbox.probe import held_mode, mode_here
from garrison.sandbox.proxy.allowed_hosts import REFUSED_SERVICES
from garrison.sandbox.proxy.apis import ApiName
from garrison.sandbox.rights import read_rights
from garrison.sandbox.services import ServiceUser
from garrison.system import untrusted
from garrison.system.git import Git, commits
from garrison.system.git.neutral import HOOKS_KEY, to_variables
from garrison.values import replace

VALIDATOR_SUFFIX = ".validator"
"""Ends the name of a validator's worktree, alongside the node's: no node's name has a dot."""

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Task
    from garrison.sandbox.network import NamespaceInMaking, NetworkPlace


def read_hooks_mode(home: Path) -> GuardHooks:
    """Return where the repository's own commit hooks run, by the home's `[guard]`."""
    try:
        return read_config(home).guard().hooks
    except UsageError:  # it was valid at the launch
        return GuardHooks.AGENT


def node_place(runtime: Runtime, launch: Launch, task: Task, worktree: Path, role: Role, *, agent: str = "",
               mounts: Iterable[Mount] = (), turn: int = 0, home_of: int = 0) -> Place | None:
    """Return the place of a process in a node's worktree; None where nothing is confined.

    Each agent of an attempt, by its `turn`, has its own home: another one's may contain a log-in. `home_of` is the
    earlier attempt whose session it continues, in that attempt's home, where its program keeps it; 0 for none.
    """
    rights = read_rights(runtime.home, role, agent, runtime.environ)
    if rights.mode is Mode.NONE:
        return None
    command = {Role.AGENT: task.command, Role.SETUP: task.setup, Role.ACCEPTANCE: task.acceptance}.get(role)
    git = Git(Path(launch.repo), home=runtime.home)
    rights = with_devcontainer(show_named_programs(rights, command or ""), git)
    own = worktree.with_name(worktree.name.removesuffix(VALIDATOR_SUFFIX))
    layer = setups.layer_of(own) if role is not Role.SETUP else None
    setup = sandbox_folder(worktree) / Role.SETUP  # an unchanged set-up of an earlier attempt is not repeated
    name = f"{role}-{task.attempt}-{turn}" if turn else f"{role}-{home_of or task.attempt}"
    private = setup if role is Role.SETUP else sandbox_folder(worktree) / name
    # Files that an earlier version's set-up left in the worktree itself name the worktree's own path.
    is_earlier = bool(task.setup) and layer is None and role is not Role.SETUP
    checkout = None if is_earlier else find_checkout(git, rights, runtime.environ)
    shown = git_mounts(git, worktree, rights, role, str(task.attempt), checkout,
                       hooks=read_hooks_mode(runtime.home) is GuardHooks.AGENT)
    return Place(role, rights, worktree, private, (*shown, *mounts), worktree_writable=role is not Role.VALIDATOR,
                 subfolder="" if role is Role.SETUP else task.subfolder,
                 under_home=() if role is Role.SETUP else (setup / "home" if layer is None else layer.home,),
                 under_worktree=() if layer is None else (layer.tree,), caches=read_config(runtime.home).setup().caches,
                 under_caches=None if layer is None else layer.caches, checkout=checkout,
                 secret=(git.root, git.common))


def git_variables(runtime: Runtime, git: Git, worktree: Path, agent: str,
                  excluded: Path | None = None) -> dict[str, str]:
    """Return settings of an agent's git where its worktree has the repository's own git directory, as variables.

    Its commits survive a power cut once they have landed. It has no address to push to and no credential helper,
    unless its profile has `push = true`: it could unset the variables, so this stops accidents, not intent. Empty where
    its private git directory has these settings; commits collected from it are synced. `excluded` is the file with the
    patterns of what its git ignores.
    """
    rights = read_rights(runtime.home, Role.AGENT, agent, runtime.environ)
    if mode_here(rights.mode) is not Mode.NONE:
        return {}
    settings = [("core.fsync", "committed,loose-object,reference"), ("core.fsyncMethod", "fsync"),
                ("commit.gpgSign", "false"), ("tag.gpgSign", "false")]  # only the user may use the key
    if read_hooks_mode(runtime.home) is not GuardHooks.AGENT:
        settings.append((HOOKS_KEY, os.devnull))
    if excluded is not None:
        settings.append((commits.SETTING, str(excluded)))
    if not rights.push:
        settings += [("push.default", "nothing"), ("credential.helper", "")]
        for remote, address in git.remotes(worktree).items():
            settings.append((f"url.{NO_PUSH}.insteadOf", address) if address else (f"remote.{remote}.pushurl", NO_PUSH))
    return to_variables(settings)


def remove_sandbox_folder(worktree: Path) -> None:
    """Remove the private folders of a worktree's processes; no link in them is followed."""
    folder = sandbox_folder(worktree)
    services.stop(folder / services.FOLDER)
    untrusted.remove(folder.parent, folder.name)


# ---- networks --------------------------------------------------------------------------------------------------------

# Networks of a node's processes: which rights and budget apply, and what the user should know of them.


def begin_network(runtime: Runtime, role: Role, agent: str) -> NamespaceInMaking | None:
    """Start to create the namespace that `open_network` will need; None if it needs none, or that fails now."""
    try:
        rights = read_rights(runtime.home, role, agent, runtime.environ)
        return network.begin_ahead(rights, mode_here(rights.mode))
    except GarrisonError:  # `open_network` reports why
        return None


def open_network(runtime: Runtime, task: Task, role: Role, folder: Path, env: Mapping[str, str], *, agent: str = "",
                 place: Place | None = None, account: str = "", begun: NamespaceInMaking | None = None) -> NetworkPlace:
    """Prepare the network of a process tree of a node; Refused or UsageError if that is impossible.

    Args:
        folder: folder of its attempt, for usage and refused hosts.
        env: its variables without a sandbox.
        agent: agent that runs in it, '' for none.
        place: its rights and mounts in the sandbox; None if it is not confined.
        account: replaces the run in its costs, where there is no run.
        begun: a namespace whose creation was started ahead, for use here.
    """
    rights, log_in = read_rights(runtime.home, role, agent, runtime.environ), None
    shared = _service_user(runtime, task) if place is not None and task.run_id and not account else None
    forwards = () if shared is None else services.provide(runtime.home, shared, env,
                                                          folder / NETWORK_FOLDER / REFUSED_SERVICES)
    user = NetworkUser(runtime.home, task.run_id, task.node, task.attempt, folder, account=account, forwards=forwards)
    if not agent:  # other processes of the node count as its agent
        limits = registry.limits_of(task.agent, task.node, task.attributes, runtime.home) if task.agent else \
            network.lowest_limits(runtime.home)
        user = replace(user, limits=limits)
    else:
        env = {**env, **registry.variables_of(agent, runtime.home, env)}
        log_in = registry.log_in_of(agent, runtime.home, env, runtime.environ)
        attributes = task.attributes if role is Role.AGENT else {}
        user = replace(user, limits=registry.limits_of(agent, task.node, attributes, runtime.home),
                       reported_by=registry.model_profile(agent, runtime.home).reporter)
    token = log_in.variables(runtime.clock.time()) if log_in is not None else {}
    opened = network.prepare(rights, held_mode(place), {**env, **token}, user, begun=begun)
    opened.tend = partial(services.tend, runtime.home, shared, env) if shared is not None else None
    opened.account = network.account_of(env) or agent
    if log_in is not None and token:
        opened.account = network.account_of({**env, **dict.fromkeys(token, str(log_in.folder))})  # it is renewed
        opened.read_keys = lambda: {**env, **log_in.variables(runtime.clock.time())}
    return opened


def _service_user(runtime: Runtime, task: Task) -> ServiceUser | None:
    """Return the node as a user of services; None if it uses none."""
    if not read_config(runtime.home).services():
        return None
    worktree = worktree_path(runtime.launch(task.run_id), task.node)
    store, run = runtime.store, task.run_id
    own = tuple(store.path(Identity, Key(role, task.node, run)) for role in ("runner", "orchestrator"))
    of_run = tuple(store.path(Identity, key) for key in store.keys(Identity, (run,)))
    return ServiceUser(run, sandbox_folder(worktree) / services.FOLDER, runtime.files(run).root / services.FOLDER,
                       worktree.parent.parent / services.TEMPLATES, own, of_run)


def network_notes(runtime: Runtime, agents: Iterable[str]) -> Iterator[str]:
    """Yield gaps in the isolation of these agents' network and keys, and what they share, a line each."""
    shared = {entry for agent in agents for rights in (read_rights(runtime.home, Role.AGENT, agent, runtime.environ),)
              for entry in rights.host_ports if rights.network is not Network.OPEN and rights.mode is not Mode.NONE}
    if shared:
        names = ", ".join(f"{name}:{port}" for name, port in sorted(shared))
        yield f"host_ports: all nodes share {names}: changes of one there are visible to the others"
    for agent in sorted(set(agents)):
        rights = read_rights(runtime.home, Role.AGENT, agent, runtime.environ)
        held = rights.mode is not Mode.NONE
        if rights.network is Network.ALLOW and not held:
            yield (f"agent {agent} has network = \"allow\" but no sandbox: its variables lead to the proxy, and a "
                   "program that ignores them reaches every host")
        if not registry.model_profile(agent, runtime.home).own_log_in or not held:
            continue
        if rights.network is Network.NONE:
            yield f"agent {agent} has network = \"none\": it cannot reach its model"
            continue
        env = runtime.environ
        has_key = any(api.name is ApiName.ANTHROPIC for api, _, _ in network.find_keys(env))
        if not has_key and registry.log_in_of(agent, runtime.home, env, env) is None:
            other = "" if agent == "claude" else f" --agent {agent}"
            yield (f"agent {agent} works with a copy of its CLI's log-in, which it can read; "
                   f"`garrison login --where proxy{other}` keeps that outside")
