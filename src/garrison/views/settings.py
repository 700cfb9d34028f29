"""Settings: each value that configuration decides, and which file, variable or default it comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from garrison.config import (
    LAUNCH_KEYS,
    PROFILE_RIGHTS,
    PROJECT_FILE,
    ChatConfig,
    ConfigFile,
    HostsConfig,
    LimitsConfig,
    MergeConfig,
    NotifyConfig,
    SetupConfig,
    Timing,
    read_config,
    trees_root,
)
from garrison.frozen import frozen
from garrison.processes.forge_access import read_options
from garrison.processes.launch_request import read_project, read_project_tables
from garrison.processes.pull_request_facts import PullRequestOptions
from garrison.sandbox.place import MODE_VARIABLE, Role
from garrison.sandbox.rights import ROLE_TABLES, rights_of

DEFAULT = "default"
"""Origin of a value that nobody has set."""
_SECRET = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
HIDDEN = "(hidden)"
"""Shown instead of the value of a variable that looks like a secret."""


@frozen
class Setting:
    """One value; `origin` is a file with its line, an environment variable, or `default`."""

    key: str
    value: Any
    origin: str

    @property
    def text(self) -> str:
        """Return the value as TOML would have it, `none` for none."""
        return "none" if self.value is None else json.dumps(self.value, ensure_ascii=False)


def read_settings(home: Path, environ: Mapping[str, str], repo: Path | None) -> Iterator[Setting]:
    """Yield all settings of a home, and of a repository's garrison.toml; UsageError for a malformed file."""
    config = read_config(home)
    yield Setting("home", str(home), "GARRISON_HOME" if environ.get("GARRISON_HOME") else DEFAULT)
    yield Setting("trees", str(trees_root(environ)), "GARRISON_TREES" if environ.get("GARRISON_TREES") else DEFAULT)
    launch = config.launch() if repo is None else read_project(repo).over(config.launch())
    for key in LAUNCH_KEYS:
        value, source = getattr(launch, key), launch.sources.get(key, DEFAULT)
        origin = config.place("launch", key) if source == str(config.path) else source
        yield Setting(f"launch.{key}", _plain(value), origin)
    tables = (("notify", config.notify()), ("setup", config.setup()), ("chat", config.chat()),
              ("hosts", config.hosts()), ("merge", config.merge()), ("limits", config.limits()),
              ("pull_requests", read_options(home)))
    for table, record in tables:
        yield from _of_record(config, table, record)
    yield from _guard(config, repo)
    yield from _sandbox(config, environ)
    yield from _profiles(config)
    timing = Timing.read(environ)
    for declared in fields(Timing):
        variable = f"GARRISON_{declared.name.upper()}"
        yield Setting(f"timing.{declared.name}", getattr(timing, declared.name),
                      variable if variable in environ else DEFAULT)


def _of_record(config: ConfigFile, table: str, record: NotifyConfig | SetupConfig | ChatConfig | HostsConfig
               | LimitsConfig | MergeConfig | PullRequestOptions) -> Iterator[Setting]:
    stated = config.tables.get(table, {})
    for declared in fields(record):
        origin = config.place(table, declared.name) if declared.name in stated else DEFAULT
        yield Setting(f"{table}.{declared.name}", _plain(getattr(record, declared.name)), origin)


def _guard(config: ConfigFile, repo: Path | None) -> Iterator[Setting]:
    """Yield the limits of what is committed for an agent; the patterns of both files hold."""
    record, project, own = config.guard(), {}, config.tables.get("guard", {})
    if repo is not None:
        project = read_project_tables(repo).get("guard", {})
        record = record.with_project(project, f"{repo / PROJECT_FILE}, [guard]")
    for declared in fields(record):
        name, value = declared.name, getattr(record, declared.name)
        places = [*([str(repo / PROJECT_FILE)] if repo is not None and name in project else []),
                  *([config.place("guard", name)] if name in own else [])]
        yield Setting(f"guard.{name}", _plain(value),
                      (" and ".join(places) if isinstance(value, tuple) else places[0]) if places else DEFAULT)


def _sandbox(config: ConfigFile, environ: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the sandbox of all, then what single roles have instead."""
    rights, stated = rights_of(config, Role.AGENT, "", environ), config.tables.get("sandbox", {})
    for key in ("mode", *PROFILE_RIGHTS[1:]):
        origin = config.place("sandbox", key) if key in stated else DEFAULT
        if key == "mode" and MODE_VARIABLE in environ:
            origin = MODE_VARIABLE
        yield Setting(f"sandbox.{key}", _plain(getattr(rights, key)), origin)
    for role in ROLE_TABLES:
        for key, value in stated.get(role, {}).items():
            yield Setting(f"sandbox.{role}.{key}", value, config.place("sandbox", role, key))


def _profiles(config: ConfigFile) -> Iterator[Setting]:
    """Yield what holds for every agent, then each profile."""
    for key, value in config.agent_defaults().items():
        yield Setting(f"agents.{key}", value, config.place("agents", key))
    for profile in config.agents():
        table = config.tables["agents"][profile.name]
        for key, value in {"kind": profile.kind, **table}.items():
            origin = config.place("agents", profile.name, key) if key in table else DEFAULT
            yield Setting(f"agents.{profile.name}.{key}", _without_secrets(value), origin)


def _without_secrets(value: Any) -> Any:
    """Return a profile's value with the variables hidden that it sets to what may be secrets."""
    if not isinstance(value, dict):
        return value
    return {key: HIDDEN if isinstance(each, str) and _SECRET.search(key) else _without_secrets(each)
            for key, each in value.items()}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, (Path, str)) else value
