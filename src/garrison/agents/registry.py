"""Agent registry: look up an agent by name, built in or from a profile in the home's config.toml.

    [agents.aider]
    argv = ["aider", "--yes", "--message-file", "{prompt_file}"]
    env = ["OPENAI_API_KEY"]
    success = "exit_zero"

    [agents.codex]
    kind = "acp"
    argv = ["codex-acp"]
    env = ["OPENAI_API_KEY"]

    [agents.reviewer]
    kind = "claude"
    model = "haiku"
    tools = ["Read", "Grep"]

With `session=true` on a node, or a profile of kind `session`, a Claude agent (or the scripted one) runs as a session:
see `session_agent`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison import extras
from garrison.agents.base import VALIDATOR, WORKER
from garrison.agents.briefing import Reporting
from garrison.agents.command_profile import SHELL, CommandProfile
from garrison.agents.failover import read_agents
from garrison.agents.plugin_kinds import PluginProfile
from garrison.agents.presets import PRESETS, Preset, find_preset
from garrison.agents.profile import Profile
from garrison.agents.session_options import SessionOptions, is_session, read_options
from garrison.agents.variables import OWN, expand, references
from garrison.config import PROFILE_KEYS, PROFILE_RIGHTS, AgentsConfig, config_path, parse_agent, read_config
from garrison.errors import Refused, UsageError
from garrison.plugins import PluginGroup, load
from garrison.sandbox import container
from garrison.sandbox.confine import find_hidden
from garrison.sandbox.network import find_keys
from garrison.sandbox.place import Mode, Role
from garrison.sandbox.proxy.apis import APIS
from garrison.sandbox.rights import read_rights
from garrison.spelling import nearest
from garrison.system.environment import child_environment
from garrison.tables import Table, as_text, readers_of
from garrison.values import Value, replace

if TYPE_CHECKING:
    from garrison.agents.base import Agent
    from garrison.agents.profile import OutsideKey
    from garrison.config import AgentTable, ConfigFile
    from garrison.records.budget import Limits
    from garrison.sandbox.place import Rights

OF = "of"
"""Setting of a session's profile, in addition to `SessionOptions`: the agent that it runs."""


class SessionProfile(Value, Profile):
    """An agent that runs another agent's model as a session; the other profile answers what depends on the model.
    """

    name: str
    of: str
    options: SessionOptions

    @classmethod
    def read(cls, config: AgentTable) -> SessionProfile:
        """Read the options and the agent that it runs; UsageError if that is the agent itself."""
        table = config.table
        options = table.read(SessionOptions, others=(OF, *PROFILE_KEYS, *PROFILE_RIGHTS))
        of = table.value(OF, as_text, "claude")
        if of == config.name:
            raise table.error("of should name another agent, one of kind claude or `scripted`", OF)
        return cls(config.name, of, options)

    @classmethod
    def setting_names(cls) -> Collection[str]:
        return (OF, *readers_of(SessionOptions))

    @classmethod
    def shared_settings(cls) -> Mapping[str, str]:
        return {}  # it has the limits of the agent that it runs

    def settings_shown(self) -> dict[str, object]:
        return {OF: self.of, **vars(self.options)}


_OWN_KINDS: Mapping[str, type[Profile]] = {"command": CommandProfile, "session": SessionProfile}
_EXTRA_KINDS: Mapping[str, str] = {"claude": "agent.claude", "acp": "agent.acp"}
"""Kind → name under which an extra registers its profile (`plugins.OWN`)."""


def kind_of_profile(kind: str) -> type[Profile]:
    """Return the profile class of a kind; the packages' class for kinds that are not garrison's."""
    if kind in _EXTRA_KINDS:
        found: type[Profile] = load(PluginGroup.PARTS, _EXTRA_KINDS[kind])
        return found
    return _OWN_KINDS.get(kind, PluginProfile)


def profiles(home: Path) -> dict[str, Profile]:
    """Return the agents of a home by name; UsageError if config.toml is malformed."""
    file = read_config(home)
    return {**{name: _built_in(name, file) for name in _BUILT_IN},
            **{config.name: _read_profile(config, file.agent_defaults()) for config in file.agents()}}


def find_profile(name: str, home: Path) -> Profile:
    """Return the profile with that name; a UsageError lists the existing names."""
    file = read_config(home)
    configured = {config.name: config for config in file.agents()}
    if name in configured:
        return _read_profile(configured[name], file.agent_defaults())
    if name in _BUILT_IN:
        return _built_in(name, file)
    if isinstance(preset := find_preset(name), Preset):
        return _read_preset(preset, file.agent_defaults())
    known = {*configured, *_BUILT_IN}
    near = nearest(name, {*known, *(preset.name for preset in PRESETS)})
    raise UsageError(f"no agent {name!r}; {f'did you mean {near}? ' if near else ''}there are "
                     f"{', '.join(sorted(known))} (more in {config_path(home)})")


def model_profile(name: str, home: Path) -> Profile:
    """Return the profile whose model an agent runs: its own, or the one of the agent that its session runs."""
    return _model_of(find_profile(name, home), home)


def installed_agents(home: Path, path: str) -> list[str]:
    """Return the agents that could do a text task here: configured ones, Claude, presets whose program exists."""
    found = [name for name, profile in profiles(home).items()
             if name not in _NO_TASKS and _model_of(profile, home).is_installed(path)]
    return [*found, *(preset.name for preset in PRESETS if preset.name not in found and preset.find(path))]


def agent(name: str, home: Path, role: str = WORKER, attributes: Mapping[str, Any] | None = None) -> Agent:
    """Return the agent with that name as a worker or a validator; a UsageError lists the existing names.

    Args:
        attributes: attributes of the node, which may make its worker run as a session.
    """
    profile = find_profile(name, home)
    if role == WORKER and _is_session(profile, attributes or {}):
        return _model_of(profile, home).start_session(profile.name, _session_defaults(profile))
    if role == VALIDATOR and not profile.can_validate:
        raise UsageError(f"agent {name} cannot validate: it is neither a Claude nor an ACP agent; for a command, use "
                         "acceptance=")
    return profile.start_as(role)


def check_validator(name: str, home: Path) -> None:
    """Refuse an agent that cannot validate, or whose library is missing, before a run starts."""
    agent(name, home, VALIDATOR)
    check_library(find_profile(name, home), f"validator {name}")


def can_validate(name: str, home: Path) -> bool:
    """Return whether an agent can judge another one's work; False for one that does not exist."""
    try:
        return find_profile(name, home).can_validate
    except UsageError:
        return False


def reporting_of(name: str, home: Path, attributes: Mapping[str, object]) -> Reporting:
    """Return how an agent reports the end of its task."""
    profile = find_profile(name, home)
    return Reporting.TOOLS if _is_session(profile, attributes) else profile.reporting


def validator_agent(attributes: Mapping[str, object]) -> str:
    """Return the agent that validates a node with these attributes, '' for none; `validator=true` means `claude`."""
    name = str(attributes.get(VALIDATOR, "")).strip()
    return {"true": "claude", "false": "", "none": ""}.get(name.lower(), name)


def session_options(name: str, node: str, attributes: Mapping[str, object], home: Path) -> SessionOptions | None:
    """Return the session options of a node's agent, None if it is not a session; UsageError for invalid ones."""
    profile = find_profile(name, home)
    if not _is_session(profile, attributes, f"node {node}"):
        return None
    _model_of(profile, home).start_session(profile.name, SessionOptions())  # refuses an unsuitable model
    return read_options(node, attributes, _session_defaults(profile))


def has_session(name: str, home: Path) -> bool:
    """Return whether an agent works in a session that accepts messages: Claude's, or an ACP agent's."""
    return model_profile(name, home).has_session


def limits_of(name: str, node: str, attributes: Mapping[str, object], home: Path) -> Limits:
    """Return the limits on what a node's agent may cost; UsageError for an invalid one."""
    return model_profile(name, home).limits_of(node, attributes)


def turns_of(name: str, node: str, attributes: Mapping[str, object], home: Path) -> int | None:
    """Return the limit of a node's agent's responses in an attempt; None: no limit."""
    return model_profile(name, home).turns_of(node, attributes)


def does_tasks(name: str, home: Path) -> bool:
    """Return whether an agent does a node's task by itself, unlike the node's own command or a script."""
    return model_profile(name, home) not in [_built_in(each, None) for each in _NO_TASKS]


def followers_of(name: str, home: Path, stated: Iterable[str] | None) -> tuple[str, ...]:
    """Return the agents that take over when an agent cannot continue: `stated` ones, else its profile's.

    UsageError for a missing one, and for `command`, which does no task by itself.
    """
    if stated is None:
        config = next((each for each in read_config(home).agents() if each.name == name), None)
        stated = config.table.value("failover", read_agents, ()) if config is not None else ()
    followers = tuple(each for each in stated if each != name)
    for each in followers:
        try:
            profile = find_profile(each, home)
        except UsageError as error:
            raise UsageError(f"failover: {error}") from error
        if profile is SHELL:
            raise UsageError(f"failover: {each} runs a node's own command; name an agent that does its task")
    return followers


MODEL_CHOICE = frozenset({
    "model", "llm_model", "effort", "reasoning_effort", "fallback_model", "betas", "thinking",
    "session", "tier", "turn_graph", "heartbeat_graph", "initiative"})
"""Attributes of a node that choose the model of its first agent, and how it runs."""


def follower_attributes(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return a node's attributes for an agent after its first one, without the first one's model."""
    return {name: value for name, value in attributes.items() if name not in MODEL_CHOICE}


def variables_of(name: str, home: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an agent's profile sets for its program; UsageError for one that cannot be filled in.

    Keys and base URLs of model APIs, which determine its network, are filled in from `env`. Other values may depend on
    the network, so they are filled in where the agent starts.
    """
    model = model_profile(name, home)
    if not model.fills_variables:
        return dict(model.variables)
    decides = {name for api in APIS.values() for name in (*(key.name for key in api.keys), *api.url_variables)}
    return {key: expand(value, env, f"agent {name}: set.{key}") if key in decides else value
            for key, value in model.variables.items()}


def check_variables(name: str, home: Path, environ: Mapping[str, str], passed: Iterable[str] | None = None) -> None:
    """Refuse an agent whose profile names a variable that is not set where the agent will run.

    Args:
        environ: environment of the launch.
        passed: variables that the agent gets in addition to those of its profile; None if any may be passed.
    """
    model = model_profile(name, home)
    if not model.fills_variables:
        return
    env = dict(environ) if passed is None else child_environment(environ, {*passed, *model.env})
    own = model.variables
    apis = [api for api, _, _ in find_keys({**env, **own})]  # the agent's network has their variables
    env |= dict.fromkeys((name for api in apis for name in api.url_variables), "set")
    env |= dict.fromkeys((name for text in (*own.values(), *model.argv) for name in references(text)
                          if name.startswith(OWN) or name.lower().endswith("_proxy")), "set")
    for key, text in own.items():
        expand(text, env, f"agent {name}: set.{key}")
    model.check_words(env)


def log_in_of(name: str, home: Path, env: Mapping[str, str], environ: Mapping[str, str]) -> OutsideKey | None:
    """Return the log-in that an agent's network uses from outside: the home's, or its own program's; None for any other
    agent, and for one with a key.

    Args:
        env: variables of the agent.
        environ: those of this process, for a CLI that renews it.
    """
    return model_profile(name, home).log_in(home, env, environ)


def check_access(name: str, home: Path, environ: Mapping[str, str], passed: Iterable[str] | None = None) -> None:
    """Refuse a Claude agent without a key or log-in; arguments as for `check_variables`."""
    model_profile(name, home).check_access(name, home, environ, None if passed is None else set(passed))


def _check_preset_access(preset: Preset, home: Path, environ: Mapping[str, str]) -> None:
    if any(environ.get(key) for key in (*preset.env, *preset.urls)):  # a private server may need no key
        return
    log_in = log_in_of(preset.name, home, {}, environ)
    if log_in is not None and log_in.variables(time.time()):
        return
    path = preset.log_in.find(environ) if preset.log_in is not None else None
    if path is None:
        raise Refused(f"agent {preset.name} has {preset.access(environ)}")
    if read_rights(home, Role.AGENT, preset.name, environ).mode is not Mode.NONE:
        raise Refused(f"agent {preset.name} has no key, and its log-in {path} belongs to an account and must be in its "
                      f"sandbox: set {' or '.join(preset.env)} where you launch, or write a profile that shows it "
                      "(docs/agents.md, log-ins)")


def has_terminal(name: str, home: Path) -> bool:
    return model_profile(name, home).tty


def excluded_by(name: str, home: Path) -> tuple[str, ...]:
    return model_profile(name, home).exclude


def required_variables(names: set[str], home: Path) -> list[str]:
    """Return the environment variables that these agents need; UsageError for an unknown agent."""
    return sorted({variable for name in sorted(names) for variable in model_profile(name, home).env})


def check_node(name: str, node: str, attributes: Mapping[str, object], home: Path) -> None:
    """Refuse invalid attributes of a node's agent before a run starts."""
    session_options(name, node, attributes, home)
    model = model_profile(name, home)
    model.check_node(node, attributes)
    check_library(model, f"node {node}")


def check_library(profile: Profile, where: str) -> None:
    """Refuse an agent of a kind whose library is not installed; the refusal starts with `where`."""
    if profile.extra:
        extras.require(profile.extra, where)


def check_program(name: str, home: Path, environ: Mapping[str, str], passed: Iterable[str] | None = None) -> None:
    """Refuse an agent whose program is missing or hidden in its sandbox, whose profile names a variable that is not
    set, or without access to its model; `environ` has its PATH and HOME.

    A relative path with a slash is not checked: it is in the node's worktree, perhaps only after the set-up.
    `passed` is as for `check_variables`.
    """
    check_variables(name, home, environ, passed)
    if passed is not None:  # otherwise nothing is launched, and a pipeline may be checked on another machine
        check_access(name, home, environ, passed)
    profile = model_profile(name, home)
    program = profile.program
    if not _is_stated(program):
        return
    rights = read_rights(home, Role.AGENT, name, environ)
    if rights.mode is Mode.CONTAINER and not profile.is_always_shown:
        describe_program_inside(name, home, rights)
        return
    found = shutil.which(program, path=environ.get("PATH", os.defpath))
    is_own = name in _BUILT_IN or name in (config.name for config in read_config(home).agents())
    preset = None if is_own else find_preset(name)
    if found is None:
        where = "is not a program" if "/" in program else "is not on the PATH"
        if isinstance(preset, Preset):
            raise Refused(f"agent {name} runs {program}, which {where}; install it: {preset.package}")
        raise Refused(f"agent {profile.name} runs {program}, which {where}; install it, or correct [agents."
                      f"{profile.name}] in {config_path(home)}")
    if profile.is_always_shown:
        return
    if isinstance(preset, Preset) and passed is not None:
        _check_preset_access(preset, home, environ)
    for each in dict.fromkeys((found, *profile.scripts())):
        if hidden := find_hidden(each, environ, rights):
            where = f"{each}, a link to {hidden}," if str(hidden) != each else each
            read = installation_of(hidden) if each == found else hidden
            raise Refused(f"agent {profile.name} runs {where} which its sandbox does not show; add read = "
                          f'["{read}"] to [agents.{name}] in {config_path(home)}')


def describe_program_inside(name: str, home: Path, rights: Rights) -> str:
    """Describe where the program of an agent comes from in its container; '' if its profile has no program, or the
    rights have no image, which the launch may still have to build.

    Refused if neither the image has it nor the rights show it.
    """
    profile = model_profile(name, home)
    program = profile.program
    if profile.is_always_shown:
        return f"agent {name}: its program is mounted from this machine"
    if not _is_stated(program) or not rights.image:
        return ""
    if any(Path(program).is_relative_to(path) for path in (*rights.read, *rights.write)):
        return f"agent {name}: {program} is mounted from this machine"
    if found := container.find_program(container.at_launch(rights.image), program):
        return f"agent {name}: {found} comes from the image"
    raise Refused(f"agent {name} runs {program}, which the image {rights.image} lacks; add it to the image, or "
                  f"show the machine's: its full path in argv, and in read = [...] of [agents.{name}] in "
                  f"{config_path(home)}")


def _is_stated(program: str) -> bool:
    """Return whether a program is known before the run: not in a node's worktree or command."""
    return bool(program) and "{" not in program and ("/" not in program or program.startswith("/"))


def installation_of(program: Path) -> Path:
    """Return the folder to show for a program: all of its packages, else its own folder. Pure."""
    for folder in program.parents:
        if folder.name == "node_modules":
            return folder
    return program.parent.parent if program.parent.name == "bin" and len(program.parts) > 4 else program.parent


def _is_session(profile: Profile, attributes: Mapping[str, object], where: str = "") -> bool:
    return isinstance(profile, SessionProfile) or is_session(attributes, where or f"agent {profile.name}")


def _session_defaults(profile: Profile) -> SessionOptions:
    return profile.options if isinstance(profile, SessionProfile) else SessionOptions()


def _model_of(profile: Profile, home: Path) -> Profile:
    if not isinstance(profile, SessionProfile):
        return profile
    model = find_profile(profile.of, home)
    if isinstance(model, SessionProfile):
        raise UsageError(f"agent {profile.name} is a session of {model.name}, which is a session itself; name a Claude "
                         "agent, or `scripted`")
    return model


# ---- config.toml

_NO_TASKS = ("command", "scripted")
"""Built-in agents that do not do text tasks."""
_BUILT_IN = (*_NO_TASKS, "claude")
"""Agents that exist without a configuration."""


def _built_in(name: str, file: ConfigFile | None) -> Profile:
    """Return an agent that exists without a profile; `file` has the settings of `[agents]` for every agent."""
    if name == "command":
        return SHELL
    if name == "scripted":
        from garrison.agents.scripted import SCRIPTED

        return SCRIPTED
    assert file is not None
    return _read_profile(parse_agent(replace(file.table.below("agents", name), values={})), file.agent_defaults())


def _read_preset(preset: Preset, defaults: Mapping[str, object]) -> Profile:
    """Return the profile of a preset, for a home without a profile of that name."""
    file = Table.parse(f"preset {preset.name}", preset.profile().encode())
    return _read_profile(parse_agent(file.below("agents", preset.name)), defaults)


def _read_profile(config: AgentTable, defaults: Mapping[str, object]) -> Profile:
    """Read a profile by its kind, with the settings of `[agents]` for every agent; a plug-in's is checked on use."""
    kind = kind_of_profile(config.kind)
    stated = {"turns": AgentsConfig().turns, **defaults}
    shared = {name: stated[key] for name, key in kind.shared_settings().items() if key in stated}
    return kind.read(replace(config, table=replace(config.table, values={**shared, **config.table.values})))
