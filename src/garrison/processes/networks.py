"""Networks of a node's processes: which rights and budget apply, and what a person should know of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.agents import registry
from garrison.sandbox import network
from garrison.sandbox.network import NetworkUser
from garrison.sandbox.place import Mode, Network, Role
from garrison.sandbox.probe import held_mode
from garrison.sandbox.proxy.apis import ApiName
from garrison.sandbox.rights import read_rights
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from garrison.processes.runtime import Runtime
    from garrison.records.run import Task
    from garrison.sandbox.network import NetworkPlace
    from garrison.sandbox.place import Place


def open_network(runtime: Runtime, task: Task, role: Role, folder: Path, env: Mapping[str, str], *, agent: str = "",
                 place: Place | None = None) -> NetworkPlace:
    """Prepare the network of a process tree of a node; Refused or UsageError if that is impossible.

    Args:
        folder: folder of its attempt, for usage and refused hosts.
        env: its variables without a sandbox.
        agent: agent that runs in it, '' for none.
        place: what it is given in the sandbox; None if it is not confined.
    """
    rights, log_in = read_rights(runtime.home, role, agent, runtime.environ), None
    user = NetworkUser(runtime.home, task.run_id, task.node, task.attempt, folder)
    if not agent:  # what works beside the node's agent counts as the agent
        limits = registry.limits_of(task.agent, task.node, task.attributes, runtime.home) if task.agent else \
            network.lowest_limits(runtime.home)
        user = replace(user, limits=limits)
    else:
        env = {**env, **registry.variables_of(agent, runtime.home, env)}
        log_in = registry.log_in_of(agent, runtime.home, env, runtime.environ)
        attributes = task.attributes if role is Role.AGENT else {}
        user = replace(user, limits=registry.limits_of(agent, task.node, attributes, runtime.home),
                       reported_by=registry.reporter_of(agent, runtime.home))
    token = log_in.variables(runtime.clock.time()) if log_in is not None else {}
    opened = network.prepare(rights, held_mode(place), {**env, **token}, user)
    opened.account = network.account_of(env) or agent
    if log_in is not None and token:
        opened.account = network.account_of({**env, **dict.fromkeys(token, str(log_in.folder))})  # it is renewed
        opened.read_keys = lambda: {**env, **log_in.variables(runtime.clock.time())}
    return opened


def network_notes(runtime: Runtime, agents: Iterable[str]) -> Iterator[str]:
    """Yield what does not hold of the network and the keys of these agents, a line each."""
    for agent in sorted(set(agents)):
        rights = read_rights(runtime.home, Role.AGENT, agent, runtime.environ)
        held = rights.mode is not Mode.NONE
        if rights.network is Network.ALLOW and not held:
            yield (f"agent {agent} has network = \"allow\" but no sandbox: its variables lead to the proxy, and a "
                   "program that ignores them reaches every host")
        if registry.claude_settings_of(agent, runtime.home) is None or not held:
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
