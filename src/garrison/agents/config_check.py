"""Check a home's config.toml before a run starts: keys that nothing reads, with their file and line.

A misspelt key would silently be ignored: with `sucess = "result_file"` the exit code decides. A key similar to a known
one is an error, any other unknown one a warning; keys that start with `x_` are free. The settings of kinds `claude`,
`session` and `acp`, and of all other tables, are closed: any unknown key is an error there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from garrison.agents.registry import kind_of_profile
from garrison.config import (
    AGENT_KINDS,
    PROFILE_KEYS,
    PROFILE_RIGHTS,
    RECORDS,
    SANDBOX_KEYS,
    TABLES,
    ConfigFile,
    ServiceConfig,
    kind_of,
    read_config,
)
from garrison.errors import UsageError
from garrison.sandbox.rights import ROLE_TABLES, check_rights
from garrison.tables import readers_of

if TYPE_CHECKING:
    from pathlib import Path

class ConfigProblem(NamedTuple):
    """A key that nothing reads; `text` starts with file and line."""

    text: str
    is_error: bool


def check_config(home: Path) -> list[ConfigProblem]:
    """Return the unknown keys of a home's config.toml, in the order of the file; UsageError if it is not TOML."""
    return list(_problems(read_config(home)))


def check_configuration(home: Path, report: Callable[[str], None]) -> None:
    """Refuse a config.toml with misspelt keys or invalid values outside of profiles; report what nothing reads."""
    config = read_config(home)
    for problem in _problems(config):
        if problem.is_error:
            raise UsageError(problem.text)
        report(f"note: {problem.text}")
    check_tables(config)


def check_tables(config: ConfigFile) -> None:
    """Refuse an invalid value of any table but that of a profile's own settings."""
    for name, record in RECORDS.items():
        config.table.below(name).read(record)
    config.services()
    check_rights(config)


def _problems(config: ConfigFile) -> Iterator[ConfigProblem]:
    yield from _unknown(config, (), TABLES, is_closed=False)
    agents = config.table.below("agents").values
    for name, table in agents.items() if isinstance(agents, dict) else ():
        if not isinstance(table, dict) or (kind := kind_of(name, table)) not in AGENT_KINDS:
            continue  # a plug-in knows the settings of its kind itself
        known = (*PROFILE_KEYS, *kind_of_profile(kind).setting_names(), *PROFILE_RIGHTS)
        yield from _unknown(config, ("agents", name), known, is_closed=kind != "command")
    for name, record in RECORDS.items():
        yield from _unknown(config, (name,), tuple(readers_of(record)))
    services = config.table.below("services").values
    for name in services if isinstance(services, dict) else ():
        yield from _unknown(config, ("services", name), tuple(readers_of(ServiceConfig)))
    yield from _unknown(config, ("sandbox",), (*SANDBOX_KEYS, *ROLE_TABLES))
    for role in ROLE_TABLES:
        yield from _unknown(config, ("sandbox", role), SANDBOX_KEYS)


def _unknown(config: ConfigFile, keys: tuple[str, ...], known: Collection[str], *,
             is_closed: bool = True) -> Iterator[ConfigProblem]:
    table = config.table.below(*keys)
    for text, near in table.unknown(known) if isinstance(table.values, dict) else ():
        yield ConfigProblem(text, is_closed or near is not None)
