"""Rights: read from config.toml what a confined process tree may do.

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
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from garrison.config import PROFILE_RIGHTS, SANDBOX_KEYS, ConfigFile, read_config, string_list
from garrison.errors import UsageError
from garrison.sandbox.place import AUTO_VARIABLE, MODE_VARIABLE, Mode, Network, Rights, Role
from garrison.sandbox.proxy.hosts import parse_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLE_TABLES = tuple(role.value for role in Role if role is not Role.AGENT)
"""Tables below `[sandbox]`; an agent has its profile."""

_Word = TypeVar("_Word", bound=StrEnum)


def read_rights(home: Path, role: Role, agent: str = "", environ: Mapping[str, str] | None = None) -> Rights:
    """Return the rights of a tree of a role in a home; `agent` names the profile of an agent or validator."""
    return rights_of(read_config(home), role, agent, os.environ if environ is None else environ)


def rights_of(config: ConfigFile, role: Role, agent: str, environ: Mapping[str, str]) -> Rights:
    """Return the rights that a configuration gives; UsageError for an invalid value."""
    rights, is_network_stated = Rights(), False
    for keys, table in _tables(config, role, agent):
        rights = _override(rights, config, keys, table, _user_home(environ))
        is_network_stated = is_network_stated or "network" in table
    if (word := environ.get(MODE_VARIABLE)) is not None:
        rights = replace(rights, mode=_one_of(Mode, word, f"{MODE_VARIABLE}={word!r}"))
    elif rights.mode is Mode.AUTO and (word := environ.get(AUTO_VARIABLE)) is not None:
        rights = replace(rights, mode=_one_of(Mode, word, f"{AUTO_VARIABLE}={word!r}"))
    return rights if is_network_stated or rights.mode is not Mode.NONE else replace(rights, network=Network.OPEN)


def check_rights(config: ConfigFile) -> None:
    """Refuse invalid values of the sandbox's keys anywhere in a configuration."""
    for role in Role:
        rights_of(config, role, "", {})
    agents = config.tables.get("agents")
    for name in agents if isinstance(agents, dict) else ():
        rights_of(config, Role.AGENT, name, {})


def _tables(config: ConfigFile, role: Role, agent: str) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the tables that state rights, the most general one first, with the keys that lead to them."""
    general = _table(config, ("sandbox",), config.tables.get("sandbox", {}))
    yield ("sandbox",), {key: value for key, value in general.items() if key not in ROLE_TABLES}
    if role is not Role.AGENT:
        keys = ("sandbox", role.value)
        yield keys, _table(config, keys, general.get(role.value, {}))
    profiles = config.tables.get("agents")
    profile = profiles.get(agent) if isinstance(profiles, dict) else None
    if isinstance(profile, dict):
        yield ("agents", agent), {key: value for key, value in profile.items() if key in PROFILE_RIGHTS}


def _table(config: ConfigFile, keys: tuple[str, ...], table: Any) -> Mapping[str, Any]:
    if not isinstance(table, dict):
        raise UsageError(f"{config.place(*keys)}: {'.'.join(keys)} should be a table with {', '.join(SANDBOX_KEYS)}")
    return table


def _override(rights: Rights, config: ConfigFile, keys: tuple[str, ...], table: Mapping[str, Any],
              user_home: Path) -> Rights:
    """Return the rights with the keys of a table over them; other keys are for `agents.config_check`."""
    for key, value in table.items():
        reader = _READERS.get(key)
        if reader is not None:
            where = f"{config.place(*keys, key)}: {key} of [{'.'.join(keys)}]"
            rights = reader(rights, value, where, user_home)
    return rights


def _user_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _one_of(words: type[_Word], value: Any, where: str) -> _Word:
    try:
        return words(value)
    except ValueError:
        raise UsageError(f"{where} is {value!r}; use one of {', '.join(words)}"
                         if "=" not in where else f"{where} should be one of {', '.join(words)}") from None


def _paths(where: str, key: str, value: Any, user_home: Path) -> tuple[Path, ...]:
    paths = []
    for text in string_list(where, key, value):
        path = user_home / text[2:] if text.startswith("~/") else user_home if text == "~" else Path(text)
        if not path.is_absolute():
            raise UsageError(f"{where} names {text!r}; a path should be absolute or begin with ~/")
        paths.append(Path(os.path.normpath(path)))
    return tuple(paths)


def _true_or_false(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{where} is {value!r}; use true or false")
    return value


def _hosts(where: str, value: Any) -> tuple[str, ...]:
    hosts = string_list(where, "hosts", value)
    try:
        parse_rules(hosts)
    except UsageError as error:
        raise UsageError(f"{where}: {str(error).removeprefix('hosts: ')}") from None
    return hosts


_READERS: Mapping[str, Callable[[Rights, Any, str, Path], Rights]] = {
    "mode": lambda rights, value, where, _: replace(rights, mode=_one_of(Mode, value, where)),
    "sandbox": lambda rights, value, where, _: replace(rights, mode=_one_of(Mode, value, where)),
    "network": lambda rights, value, where, _: replace(rights, network=_one_of(Network, value, where)),
    "hosts": lambda rights, value, where, _: replace(rights, hosts=_hosts(where, value)),
    "read": lambda rights, value, where, home: replace(rights, read=_paths(where, "read", value, home)),
    "write": lambda rights, value, where, home: replace(rights, write=_paths(where, "write", value, home)),
    "push": lambda rights, value, where, _: replace(rights, push=_true_or_false(where, value)),
    "hide": lambda rights, value, where, home: replace(rights, hide=_paths(where, "hide", value, home)),
}
"""Key → reader of its value."""
