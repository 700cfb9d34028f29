"""Rights: read the rights of confined process trees from config.toml.

    [sandbox]                       # every tree
    mode = "auto"
    hide = ["~/.config/company"]

    [sandbox.gate]                  # trees of one role: validator, setup, acceptance, gate, tool, git
    network = "none"

    [agents.aider]                  # one agent; its key for the mode is `sandbox`
    argv = ["aider"]
    sandbox = "none"
    write = ["~/.cache/uv"]

A more specific table replaces a key of a more general one. `GARRISON_SANDBOX` replaces the mode of all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.config import ConfigFile, read_config
from garrison.errors import UsageError
from garrison.sandbox.devcontainer import GUARDED
from garrison.sandbox.place import (
    AUTO_VARIABLE,
    DEFAULT_HOSTS,
    DEFAULT_MODE,
    DEFAULT_NETWORK,
    MODE_VARIABLE,
    Mode,
    Network,
    Rights,
    Role,
)
from garrison.sandbox.proxy.allowed_hosts import parse_rules
from garrison.sandbox.proxy.forwards import MAX_FORWARDS, parse_host_port
from garrison.tables import as_flag, as_strings, member, setting
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from garrison.tables import Table

ROLE_TABLES = tuple(role.value for role in Role if role is not Role.AGENT)
"""Tables below `[sandbox]`; agents use their profiles."""


def _hosts(value: object) -> tuple[str, ...]:
    hosts = as_strings(value)
    try:
        parse_rules(hosts)
    except UsageError as error:
        raise ValueError(f"a list of hosts, and {str(error).removeprefix('hosts: ')}") from None
    return hosts


def _host_ports(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_FORWARDS:
        raise ValueError(f"a list of at most {MAX_FORWARDS} ports and \"NAME:PORT\"")
    return tuple(map(parse_host_port, value))


def _paths(value: object) -> tuple[str, ...]:
    paths = as_strings(value)
    if wrong := [path for path in paths if path != "~" and not path.startswith(("/", "~/"))]:
        raise ValueError(f"a list of paths, each absolute or starting with ~/, not {wrong[0]!r}")
    return paths


def _image(value: object) -> str:
    if not isinstance(value, str) or value.startswith("-") or not value.isprintable() or " " in value:
        raise ValueError("the name of an image, such as \"docker.io/library/python:3.12\"")
    return value


def _devcontainer(value: object) -> tuple[str, ...]:
    keys = as_strings(value)
    if set(keys) - set(GUARDED):
        raise ValueError(f"a list of keys of devcontainer.json among {', '.join(GUARDED)}")
    return keys


class SandboxConfig(Value):
    """The table `[sandbox]`, and its tables for one role each; a profile has the same keys except `mode`."""

    mode: Mode = setting(DEFAULT_MODE, member(Mode))
    network: Network = setting(DEFAULT_NETWORK, member(Network))
    hosts: tuple[str, ...] = setting((DEFAULT_HOSTS,), _hosts)
    read: tuple[str, ...] = setting((), _paths)
    write: tuple[str, ...] = setting((), _paths)
    hide: tuple[str, ...] = setting((), _paths)
    host_ports: tuple[tuple[str, int], ...] = setting((), _host_ports)
    push: bool = setting(False, as_flag)
    image: str = setting("", _image)
    devcontainer: tuple[str, ...] = setting((), _devcontainer)


def read_rights(home: Path, role: Role, agent: str = "", environ: Mapping[str, str] | None = None) -> Rights:
    """Return the rights of a tree of a role in a home; `agent` names the profile of an agent or validator."""
    return rights_of(read_config(home), role, agent, os.environ if environ is None else environ)


def rights_of(config: ConfigFile, role: Role, agent: str, environ: Mapping[str, str]) -> Rights:
    """Return the rights that a configuration gives; UsageError for an invalid value."""
    stated, is_network_stated = SandboxConfig(), False
    for table in rights_tables(config, role, agent):
        names = {"mode": "sandbox"} if table.keys[0] == "agents" else {}
        stated = table.read(SandboxConfig, stated, others=None, names=names)  # other keys: `agents.config_check`
        is_network_stated = is_network_stated or "network" in table.values
    if (word := environ.get(MODE_VARIABLE)) is not None:
        stated = replace(stated, mode=_mode_of(MODE_VARIABLE, word))
    elif stated.mode is Mode.AUTO and (word := environ.get(AUTO_VARIABLE)) is not None:
        stated = replace(stated, mode=_mode_of(AUTO_VARIABLE, word))
    home = Path(environ.get("HOME") or Path.home())
    read, write, hide = (tuple(_expand(path, home) for path in paths)
                         for paths in (stated.read, stated.write, stated.hide))
    network = stated.network if is_network_stated or stated.mode is not Mode.NONE else Network.OPEN
    return Rights(stated.mode, network, stated.hosts, read, (), write, hide, stated.host_ports, stated.image,
                  stated.devcontainer, push=stated.push)


def _expand(path: str, home: Path) -> Path:
    return Path(os.path.normpath(home / path[2:] if path[:1] == "~" else path))


def _mode_of(variable: str, word: str) -> Mode:
    """Return the mode that a variable of the environment sets."""
    try:
        return member(Mode)(word)
    except ValueError as error:
        raise UsageError(f"{variable}={word!r} should be {error}") from None


def check_rights(config: ConfigFile) -> None:
    """Refuse invalid values of the sandbox's keys anywhere in a configuration."""
    for role in Role:
        rights_of(config, role, "", {})
    agents = config.table.below("agents").values
    for name in agents if isinstance(agents, dict) else ():
        rights_of(config, Role.AGENT, name, {})


def rights_tables(config: ConfigFile, role: Role, agent: str) -> Iterator[Table]:
    """Yield the tables with rights, most general first."""
    yield config.table.below("sandbox")
    if role is not Role.AGENT:
        yield config.table.below("sandbox", role.value)
    profiles = config.table.below("agents").values
    if isinstance(profiles, dict) and isinstance(profiles.get(agent), dict):
        yield config.table.below("agents", agent)
