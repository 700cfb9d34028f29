"""Check of a home's config.toml before a run begins: keys that nothing reads, with their file and line.

A misspelt key silently removes what it was to say, as in a graph: with `sucess = "result_file"` the exit code decides.
A key near to a known one is an error, any other unknown one a warning; keys that begin with `x_` are free. The settings
of kinds `claude`, `session` and `acp`, of `[notify]`, `[chat]`, `[guard]` and `[sandbox]`, are closed: any unknown key
is an error there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from garrison.agents.acp.settings import SETTINGS as ACP_SETTINGS
from garrison.agents.claude.settings import LIMITS, READERS
from garrison.agents.command_profile import SETTINGS as COMMAND_SETTINGS
from garrison.agents.registry import SESSION_SETTINGS
from garrison.config import (
    AGENT_KINDS,
    AGENTS_KEYS,
    CHAT_KEYS,
    GUARD_KEYS,
    HOSTS_KEYS,
    LIMITS_KEYS,
    MERGE_KEYS,
    NOTIFY_KEYS,
    PROFILE_KEYS,
    PROFILE_RIGHTS,
    PULL_REQUEST_KEYS,
    SANDBOX_KEYS,
    SETUP_KEYS,
    TABLES,
    ConfigFile,
    kind_of,
    read_config,
)
from garrison.errors import UsageError
from garrison.sandbox.rights import ROLE_TABLES, check_rights
from garrison.spelling import nearest

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS: Mapping[str, Collection[str]] = {
    "command": COMMAND_SETTINGS, "claude": tuple(READERS), "session": SESSION_SETTINGS,
    "acp": (*ACP_SETTINGS, *LIMITS)}
"""Kind of a profile → its settings, besides `kind` and `env`."""


class ConfigProblem(NamedTuple):
    """A key that nothing reads; `text` begins with file and line."""

    text: str
    is_error: bool


def check_config(home: Path) -> list[ConfigProblem]:
    """Return the unknown keys of a home's config.toml, in the order of the file; UsageError if it is not TOML."""
    return list(_problems(read_config(home)))


def check_configuration(home: Path, report: Callable[[str], None]) -> None:
    """Refuse a config.toml with misspelt keys, invalid notifications or rights; report what nothing reads."""
    for problem in check_config(home):
        if problem.is_error:
            raise UsageError(problem.text)
        report(f"note: {problem.text}")
    read_config(home).notify()
    read_config(home).setup()
    read_config(home).chat()
    read_config(home).hosts()
    read_config(home).guard()
    read_config(home).merge()
    read_config(home).limits()
    check_rights(read_config(home))


def _problems(config: ConfigFile) -> Iterator[ConfigProblem]:
    yield from _unknown(config, (), config.tables, TABLES, is_closed=False)
    agents = config.tables.get("agents")
    for name, table in agents.items() if isinstance(agents, dict) else ():
        if name in AGENTS_KEYS and not isinstance(table, dict):
            continue
        if not isinstance(table, dict) or (kind := kind_of(name, table)) not in AGENT_KINDS:
            continue
        known = (*PROFILE_KEYS, *SETTINGS[kind], *PROFILE_RIGHTS)  # a plug-in knows the settings of its kind itself
        yield from _unknown(config, ("agents", name), table, known, is_closed=kind != "command")
    for name, keys in (("notify", NOTIFY_KEYS), ("setup", SETUP_KEYS), ("chat", CHAT_KEYS), ("guard", GUARD_KEYS),
                       ("pull_requests", PULL_REQUEST_KEYS), ("hosts", HOSTS_KEYS), ("merge", MERGE_KEYS),
                       ("limits", LIMITS_KEYS)):
        table = config.tables.get(name)
        if isinstance(table, dict):
            yield from _unknown(config, (name,), table, keys, is_closed=True)
    sandbox = config.tables.get("sandbox")
    if isinstance(sandbox, dict):
        yield from _unknown(config, ("sandbox",), sandbox, (*SANDBOX_KEYS, *ROLE_TABLES), is_closed=True)
        for role in ROLE_TABLES:
            table = sandbox.get(role)
            if isinstance(table, dict):
                yield from _unknown(config, ("sandbox", role), table, SANDBOX_KEYS, is_closed=True)


def _unknown(config: ConfigFile, where: tuple[str, ...], table: Mapping[str, object], known: Collection[str], *,
             is_closed: bool) -> Iterator[ConfigProblem]:
    for key in table:
        if key in known or key.startswith("x_"):
            continue
        near = nearest(key, known)
        what = f"{key} is not a setting of [{'.'.join(where)}]" if where else f"garrison reads no table or key {key}"
        fix = f"did you mean {near}?" if near else f"there are {', '.join(known)}; a key of your own begins with x_"
        yield ConfigProblem(f"{config.place(*where, key)}: {what}; {fix}", is_closed or near is not None)
