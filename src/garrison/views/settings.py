"""Settings: each configured value, and the file, variable or default that it comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from garrison.agents import registry
from garrison.config import (
    GATES,
    PROJECT_FILE,
    PROJECT_TABLES,
    RECORDS,
    WHOLE_GATE_EVERY,
    AgentsConfig,
    ConfigFile,
    GuardConfig,
    LaunchConfig,
    Timing,
    read_config,
)
from garrison.directories import trees_root
from garrison.ends import ChangeKind
from garrison.merge.gates_by_path import GateRule, place_of_rule, read_rules
from garrison.run.request import read_nested_files, read_project, read_project_file
from garrison.sandbox.place import MODE_VARIABLE, Role
from garrison.sandbox.rights import SandboxConfig, rights_of, rights_tables
from garrison.tables import Table, is_secret, readers_of
from garrison.values import Value, field_names

DEFAULT = "default"
"""Origin of a value that is not set."""
_SECRET = re.compile(r"key|token|secret|password|credential|authorization|cookie", re.IGNORECASE)
HIDDEN = "(hidden)"
"""Shown instead of a secret value, or of a variable that looks like one."""


class ShownSetting(Value):
    """Value; `origin` is a file with its line, an environment variable, or `default`."""

    key: str
    value: Any
    origin: str
    is_inherited: bool = False
    """True if inherited from a more general setting, which is also shown."""

    @property
    def is_set(self) -> bool:
        return self.origin != DEFAULT and not self.is_inherited

    @property
    def text(self) -> str:
        return "none" if self.value is None else json.dumps(self.value, ensure_ascii=False)


def read_settings(home: Path, environ: Mapping[str, str], repo: Path | None,
                  subfolder: str = "") -> Iterator[ShownSetting]:
    """Yield all settings of a home, and of the garrison.toml in a repository and its folders down to `subfolder`;
    UsageError for a malformed file."""
    config, project = read_config(home), Table(PROJECT_FILE, {}) if repo is None else read_project_file(repo)
    yield ShownSetting("home", str(home), "GARRISON_HOME" if environ.get("GARRISON_HOME") else DEFAULT)
    yield ShownSetting("trees", str(trees_root(environ)),
                       "GARRISON_TREES" if environ.get("GARRISON_TREES") else DEFAULT)
    stated = LaunchConfig.of(project.below("launch")) if repo is None else read_project(repo, subfolder)
    nested = [] if repo is None else [file.below("launch") for _, file in read_nested_files(repo, subfolder)]
    yield from _of_record(stated.over(config.launch()), *reversed(nested), project.below("launch"),
                          config.table.below("launch"))
    for name, record in RECORDS.items():
        if name not in PROJECT_TABLES:
            yield from _of_record(config.table.below(name).read(record), config.table.below(name))
    yield from _guard(config.table.below("guard"), project.below("guard"))
    yield from _gates(project)
    for role in Role:
        yield from _rights(config, role, "", environ)
    yield from _profiles(config, environ)
    timing = Timing.read(environ)
    for name in field_names(Timing):
        variable = f"GARRISON_{name.upper()}"
        yield ShownSetting(f"timing.{name}", getattr(timing, name),
                           variable if variable in environ else DEFAULT)


def _of_record(record: Any, *tables: Table) -> Iterator[ShownSetting]:
    """Yield the settings of a record, each from the first table that has it."""
    for key in readers_of(type(record)):
        value = getattr(record, key)
        yield ShownSetting(f"{'.'.join(tables[0].keys)}.{key}", HIDDEN if value and is_secret(type(record), key) else
                           _plain(value), _origin(key, *tables))


def _origin(key: str, *tables: Table) -> str:
    return next((table.place(key) for table in tables if key in table.values), DEFAULT)


def _guard(own: Table, project: Table) -> Iterator[ShownSetting]:
    """Yield the limits of what may land, with the patterns of both files."""
    record = own.read(GuardConfig).with_project(project)
    for key in readers_of(GuardConfig):
        if key in list(ChangeKind):
            yield ShownSetting(f"guard.{key}", str(record.effect(ChangeKind(key))), _origin(key, project, own))
            continue
        value = getattr(record, key)
        places = [table.place(key) for table in (project, own) if key in table.values]
        yield ShownSetting(f"guard.{key}", _plain(value),
                           " and ".join(places) if places and isinstance(value, tuple) else _origin(key, project, own))


def _gates(project: Table) -> Iterator[ShownSetting]:
    """Yield the gates by path. A queue reads them from the target's garrison.toml; this one may land there."""
    declared = read_rules(project)
    if declared.rules or WHOLE_GATE_EVERY in project.values:
        yield ShownSetting(WHOLE_GATE_EVERY, declared.every, _origin(WHOLE_GATE_EVERY, project))
    for number, rule in enumerate(declared.rules):
        for key in [key for key in readers_of(GateRule) if key != "name" and getattr(rule, key)]:
            yield ShownSetting(f"{GATES}.{rule.name}.{key}", _plain(getattr(rule, key)), place_of_rule(project, number))


def _rights(config: ConfigFile, role: Role, agent: str, environ: Mapping[str, str]) -> Iterator[ShownSetting]:
    """Yield the sandbox of a role or an agent: its own settings, and those from the more general `[sandbox]`."""
    rights = rights_of(config, role, agent, environ)
    *general, own = rights_tables(config, role, agent)
    for key in readers_of(SandboxConfig):
        name = "sandbox" if key == "mode" and agent else key
        # the variable overrides every file, for all roles and agents
        origin = MODE_VARIABLE if key == "mode" and MODE_VARIABLE in environ else _origin(name, own)
        inherited = _origin(key, *general) if origin == DEFAULT else DEFAULT
        yield ShownSetting(f"{'.'.join(own.keys)}.{name}", _plain(getattr(rights, key)),
                           origin if inherited == DEFAULT else inherited,
                           is_inherited=inherited != DEFAULT or (origin == MODE_VARIABLE and len(own.keys) > 1))


def _profiles(config: ConfigFile, environ: Mapping[str, str]) -> Iterator[ShownSetting]:
    """Yield the defaults of all agents, then each profile with all settings of its kind."""
    general, defaults = config.table.below("agents"), {"turns": AgentsConfig().turns, **config.agent_defaults()}
    for key, value in defaults.items():
        yield ShownSetting(f"agents.{key}", _plain(value), _origin(key, general))
    profiles, configured = registry.profiles(config.path.parent), {each.name: each for each in config.agents()}
    for name in dict.fromkeys(("claude", *configured)):
        table, profile = general.below(name), configured.get(name)
        kind = profile.kind if profile else "claude"
        values = {"kind": kind, "env": profile.env if profile else (),
                  "failover": profile.failover if profile else None, **profiles[name].settings_shown()}
        shared = registry.kind_of_profile(kind).shared_settings()
        for key, value in values.items():
            inherited = _origin(shared[key], general) if key in shared and key not in table.values else DEFAULT
            yield ShownSetting(f"agents.{name}.{key}", _plain(value),
                               _origin(key, table) if inherited == DEFAULT else inherited,
                               is_inherited=inherited != DEFAULT)
        if profile is not None:
            yield from _rights(config, Role.AGENT, name, environ)


def _plain(value: Any) -> Any:
    """Return a value for JSON, hiding the values of variables that may be secrets."""
    if isinstance(value, Mapping):
        return {key: HIDDEN if isinstance(each, str) and _SECRET.search(key) else _plain(each)
                for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, (Path, str)) else value
