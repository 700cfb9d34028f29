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
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from garrison import extras
from garrison.agents.acp import settings as acp_settings
from garrison.agents.acp.settings import AcpSettings
from garrison.agents.base import VALIDATOR, WORKER
from garrison.agents.briefing import Reporting
from garrison.agents.claude.settings import ATTRIBUTES as CLAUDE_ATTRIBUTES
from garrison.agents.claude.settings import ENVIRONMENT, KEYS, LIMITS, PROXY, TOKEN, ClaudeSettings, for_node
from garrison.agents.claude.settings import from_profile as read_claude
from garrison.agents.command import CommandAgent, fill_variables
from garrison.agents.command import programs_of as command_programs
from garrison.agents.command_profile import SHELL, CommandProfile, read_limits
from garrison.agents.command_profile import from_profile as read_command
from garrison.agents.failover import read_agents
from garrison.agents.plugin_kinds import PluginAgent, PluginProfile
from garrison.agents.presets import PRESETS, KeyInFile, Preset, find_log_in, find_preset
from garrison.agents.session_options import SCRIPTED, SessionOptions, is_session, read_options
from garrison.agents.success_rule import EXIT_ZERO
from garrison.agents.variables import OWN, expand, references
from garrison.config import PROFILE_KEYS, PROFILE_RIGHTS, AgentsConfig, config_path, parse_agent, read_config
from garrison.errors import Refused, UsageError
from garrison.extras import EXTRAS
from garrison.records.budget import NO_LIMITS, Limits
from garrison.sandbox.confine import find_hidden
from garrison.sandbox.file_system import named_programs
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
    from garrison.agents.claude.log_in import OutsideLogIn
    from garrison.agents.session_agent import SessionAgent
    from garrison.config import AgentConfig


CLI_USER_AGENT = "claude-cli/"
"""Begins the User-Agent of the Claude CLI, whose calls its session records."""
_KEY_NAMES = frozenset(key.name for api in APIS.values() for key in api.keys)
_OF_CLOUDS = "CLAUDE_CODE_USE_"
"""Beginning of the variables with which the CLI calls the API of another provider, by that one's log-in."""


class ClaudeProfile(Value):
    """A Claude agent from the configuration."""

    name: str
    settings: ClaudeSettings = msgspec.field(default_factory=ClaudeSettings)
    env: tuple[str, ...] = ENVIRONMENT


class AcpProfile(Value):
    """An agent from the configuration that speaks the Agent Client Protocol."""

    name: str
    settings: AcpSettings
    env: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    """On what its calls of model APIs may cost, where the run's proxy makes them."""

    @property
    def argv(self) -> tuple[str, ...]:
        return self.settings.argv


class SessionProfile(Value):
    """An agent that runs another agent's model as a session."""

    name: str
    of: str
    options: SessionOptions


ModelProfile = CommandProfile | ClaudeProfile | AcpProfile | PluginProfile
Profile = ModelProfile | SessionProfile


def profiles(home: Path) -> dict[str, Profile]:
    """Return the agents of a home by name; UsageError if config.toml is malformed."""
    from garrison.agents import scripted

    file = read_config(home)
    defaults = file.agent_defaults()
    claude = _read_profile(parse_agent(replace(file.table.below("agents", "claude"), values={})), defaults)
    by_name: dict[str, Profile] = {"command": SHELL, "scripted": scripted.SCRIPTED, "claude": claude}
    for config in file.agents():
        by_name[config.name] = _read_profile(config, defaults)
    return by_name


def find_profile(name: str, home: Path) -> Profile:
    """Return the profile with that name; a UsageError lists the existing names."""
    by_name = profiles(home)
    if name not in by_name:
        if isinstance(preset := find_preset(name), Preset):
            return _read_preset(preset, read_config(home).agent_defaults())
        near = nearest(name, {*by_name, *(preset.name for preset in PRESETS)})
        raise UsageError(f"no agent {name!r}; {f'did you mean {near}? ' if near else ''}there are "
                         f"{', '.join(sorted(by_name))} (more in {config_path(home)})")
    return by_name[name]


def installed_agents(home: Path, path: str) -> list[str]:
    """Return the agents that could do a task in words here: configured ones, Claude, presets whose program exists."""
    from garrison.agents import scripted

    found = []
    for name, profile in profiles(home).items():
        model = _model_profile(profile, home)
        if isinstance(model, ClaudeProfile):
            if EXTRAS["claude"].is_installed:
                found.append(name)
        elif isinstance(model, PluginProfile) or (name not in ("command", scripted.SCRIPTED.name)
                                                  and shutil.which(model.argv[0], path=path)):
            found.append(name)
    return [*found, *(preset.name for preset in PRESETS if preset.name not in found and preset.find(path))]


def agent(name: str, home: Path, role: str = WORKER, attributes: Mapping[str, Any] | None = None) -> Agent:
    """Return the agent with that name as a worker or a validator; a UsageError lists the existing names.

    Args:
        attributes: attributes of the node, which may make its worker run as a session.
    """
    profile = find_profile(name, home)
    if role == WORKER and (
            isinstance(profile, SessionProfile) or is_session(attributes or {}, f"agent {name}")):
        return _session_agent(profile, home)
    if isinstance(profile, ClaudeProfile):
        from garrison.agents.claude.attempt import ClaudeAgent

        return ClaudeAgent(profile.name, profile.settings, role)
    if isinstance(profile, AcpProfile):
        from garrison.agents.acp.attempt import AcpAgent

        return AcpAgent(profile.name, profile.settings, role)
    if role == VALIDATOR or isinstance(profile, SessionProfile):
        raise UsageError(f"agent {name} cannot validate: it is neither a Claude nor an ACP agent; for a command, use "
                         "acceptance=")
    return PluginAgent(profile) if isinstance(profile, PluginProfile) else CommandAgent(profile)


def check_validator(name: str, home: Path) -> None:
    """Refuse an agent that cannot validate, or whose library is missing, before a run begins."""
    agent(name, home, VALIDATOR)
    check_library(find_profile(name, home), f"validator {name}")


def can_validate(name: str, home: Path) -> bool:
    """Return whether an agent can judge another one's work; False for one that does not exist."""
    try:
        return isinstance(find_profile(name, home), (ClaudeProfile, AcpProfile))
    except UsageError:
        return False


def has_socket(name: str, home: Path) -> bool:
    """Return whether a validator's agent gives its verdict through a socket; a Claude session's tool writes a file."""
    return isinstance(find_profile(name, home), AcpProfile)


def reporting_of(name: str, home: Path, attributes: Mapping[str, object]) -> Reporting:
    """Return how an agent reports how its task ended."""
    profile = find_profile(name, home)
    if isinstance(profile, PluginProfile) and not is_session(attributes, f"agent {name}"):
        return PluginAgent(profile).reporting
    if not isinstance(profile, CommandProfile) or is_session(attributes, f"agent {name}"):
        return Reporting.TOOLS
    if profile.success == "result_file":
        return Reporting.RESULT_FILE
    return Reporting.LAST_MESSAGE if profile.stream else Reporting.EXIT_CODE


def validator_agent(attributes: Mapping[str, object]) -> str:
    """Return the agent that validates a node with these attributes, '' for none; `validator=true` means `claude`."""
    name = str(attributes.get(VALIDATOR, "")).strip()
    return {"true": "claude", "false": "", "none": ""}.get(name.lower(), name)


def session_options(name: str, node: str, attributes: Mapping[str, object], home: Path) -> SessionOptions | None:
    """Return the session options of a node's agent, None if it is not a session; UsageError for invalid ones."""
    profile = find_profile(name, home)
    if not isinstance(profile, SessionProfile) and not is_session(attributes, f"node {node}"):
        return None
    return read_options(node, attributes, _session_agent(profile, home).defaults)


def graph_settings(home: Path) -> tuple[ClaudeSettings, dict[str, object]]:
    """Return (settings, metadata) for a Claude node of an agent graph, with the home's settings and log-in."""
    from garrison.agents.claude import cli_process
    from garrison.records import atomic

    extras.require("claude", "a conversation with a model")
    profile = find_profile("claude", home)
    if not isinstance(profile, ClaudeProfile):
        raise UsageError("the agent `claude` of config.toml is not a Claude agent, and chat and sessions need one")
    atomic.make_directory(cli_process.config_folder(home))
    return profile.settings, cli_process.graph_metadata(profile.settings, home, home)


def claude_settings_of(name: str, home: Path) -> ClaudeSettings | None:
    """Return the settings of a Claude agent, or of the one that a session runs; None for any other agent."""
    model = _model_profile(find_profile(name, home), home)
    return model.settings if isinstance(model, ClaudeProfile) else None


def has_session(name: str, home: Path) -> bool:
    """Return whether an agent works in a session that takes messages: Claude's, or an ACP agent's."""
    return isinstance(_model_profile(find_profile(name, home), home), (ClaudeProfile, AcpProfile))


def acp_settings_of(name: str, home: Path) -> AcpSettings | None:
    """Return the settings of an ACP agent; None for any other agent."""
    profile = find_profile(name, home)
    return profile.settings if isinstance(profile, AcpProfile) else None


def limits_of(name: str, node: str, attributes: Mapping[str, object], home: Path) -> Limits:
    """Return the limits on what a node's agent may cost; UsageError for an invalid one."""
    model = _model_profile(find_profile(name, home), home)
    if isinstance(model, ClaudeProfile):
        return for_node(model.settings, node, attributes).limits
    stated = read_limits(Table(f"node {node}", {key: attributes[key] for key in ("budget", "max_turns")
                                                if key in attributes}))
    limits = replace(model.limits, node=stated.node) if "budget" in attributes else model.limits
    return replace(limits, turns=stated.turns) if "max_turns" in attributes else limits


def turns_of(name: str, node: str, attributes: Mapping[str, object], home: Path) -> int | None:
    """Return how many responses a node's agent may make in an attempt; None: any number."""
    settings = claude_settings_of(name, home)
    return limits_of(name, node, attributes, home).turns if settings is None else \
        for_node(settings, node, attributes).max_turns


def does_tasks(name: str, home: Path) -> bool:
    """Return whether an agent does a node's task by itself, as neither the node's own command nor a script does."""
    from garrison.agents import scripted

    return _model_profile(find_profile(name, home), home) not in (SHELL, scripted.SCRIPTED)


def silence_of(name: str, home: Path) -> float | None:
    """Return the seconds of silence that are a hang of an agent whose session does not watch them itself."""
    profile = find_profile(name, home)
    return profile.silence if isinstance(profile, CommandProfile) else None


def followers_of(name: str, home: Path, stated: Iterable[str] | None) -> tuple[str, ...]:
    """Return the agents that continue when an agent cannot: those `stated`, else those of its profile.

    UsageError for one that does not exist, and for `command`, which does no task of its own.
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
    *(spelling for setting in ("model", "effort", "fallback_model", "betas", "thinking")
      for spelling in CLAUDE_ATTRIBUTES[setting]),
    "session", "tier", "turn_graph", "heartbeat_graph", "initiative"})
"""Attributes of a node that choose the model of its first agent, and how it runs."""


def follower_attributes(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return a node's attributes as they apply to an agent that follows its first one, whose model they do not name."""
    return {name: value for name, value in attributes.items() if name not in MODEL_CHOICE}


def variables_of(name: str, home: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an agent's profile sets for its program; UsageError for one that cannot be filled in.

    For a key or base URL of a model API, which decides its network, the variables are filled in from `env`. Other
    values may name what the network decides, so they are filled in where the agent starts.
    """
    model = _model_profile(find_profile(name, home), home)
    if isinstance(model, PluginProfile):
        return {}
    if isinstance(model, ClaudeProfile):  # its values are taken as they are
        return dict(model.settings.set)
    values = model.set if isinstance(model, CommandProfile) else model.settings.set
    decides = {name for api in APIS.values() for name in (*(key.name for key in api.keys), *api.url_variables)}
    return {key: expand(value, env, f"agent {name}: set.{key}") if key in decides else value
            for key, value in values.items()}


def check_variables(name: str, home: Path, environ: Mapping[str, str], passed: Iterable[str] | None = None) -> None:
    """Refuse an agent whose profile names a variable that is not set where the agent will run.

    Args:
        environ: environment of the launch.
        passed: variables that the agent gets in addition to those of its profile; None if any may be passed.
    """
    model = _model_profile(find_profile(name, home), home)
    if not isinstance(model, (AcpProfile, CommandProfile)):
        return
    env = dict(environ) if passed is None else child_environment(environ, {*passed, *model.env})
    own = model.set if isinstance(model, CommandProfile) else model.settings.set
    apis = [api for api, _, _ in find_keys({**env, **own})]  # the network of the agent has their variables
    env |= dict.fromkeys((name for api in apis for name in api.url_variables), "set")
    env |= dict.fromkeys((name for text in (*own.values(), *model.argv) for name in references(text)
                          if name.startswith(OWN) or name.lower().endswith("_proxy")), "set")
    for key, text in own.items():
        expand(text, env, f"agent {name}: set.{key}")
    if isinstance(model, AcpProfile):
        for word in (*model.argv, *model.settings.takeover):
            expand(word, env, f"agent {name}: argv")
        return
    for word in (*model.argv, *model.resume_argv):
        fill_variables(word, {**env, **own}, name)


def log_in_of(name: str, home: Path, env: Mapping[str, str],
              environ: Mapping[str, str]) -> OutsideLogIn | KeyInFile | None:
    """Return the log-in for the network of an agent that is to work with it from outside: the home's, or that of its
    own program; None for any other agent, and for one that has a key.

    Args:
        env: variables of the agent.
        environ: those of this process, for a CLI that renews it.
    """
    model = _model_profile(find_profile(name, home), home)
    if isinstance(model, (AcpProfile, CommandProfile)):
        return _log_in_of_program(model, env, environ)
    if not isinstance(model, ClaudeProfile) or model.settings.login != PROXY or any(
            {**env, **model.settings.set}.get(key) for key in KEYS):
        return None
    from garrison.agents.claude.cli_process import find_cli, log_in_environment
    from garrison.agents.claude.log_in import OutsideLogIn

    return OutsideLogIn(_config_of(model, home), (find_cli(model.settings),),
                        log_in_environment(home, model.settings, model.env, environ))


def _log_in_of_program(model: AcpProfile | CommandProfile, env: Mapping[str, str],
                       environ: Mapping[str, str]) -> OutsideLogIn | KeyInFile | None:
    """Return the log-in of an agent's own program, if its profile names the variable that stands for it, and no key."""
    found = find_log_in(model.argv[0]) if model.argv else None
    path = found.find(environ) if found is not None else None
    own = model.set if isinstance(model, CommandProfile) else model.settings.set
    if found is None or path is None or any({**env, **own}.get(name) for name in model.env if name in _KEY_NAMES):
        return None
    if found.key_variable in model.env:
        return KeyInFile(path.parent, found)
    if TOKEN not in model.env:
        return None
    from garrison.agents.claude.log_in import OutsideLogIn

    names = {"CLAUDE_CONFIG_DIR": str(path.parent)} if environ.get("CLAUDE_CONFIG_DIR") else {}
    return OutsideLogIn(path.parent, ("claude",), child_environment(environ, (), names))


def _config_of(model: ClaudeProfile, home: Path) -> Path:
    from garrison.agents.claude.cli_process import config_folder

    return Path(model.settings.set.get("CLAUDE_CONFIG_DIR") or config_folder(home))


def check_access(name: str, home: Path, environ: Mapping[str, str], passed: Iterable[str] | None = None) -> None:
    """Refuse a Claude agent that has neither a key nor a log-in; the arguments are those of `check_variables`."""
    model = _model_profile(find_profile(name, home), home)
    if not isinstance(model, ClaudeProfile):
        return
    from garrison.agents.claude.log_in import OutsideLogIn, has_log_in

    env = dict(environ) if passed is None else child_environment(environ, {*passed, *model.env})
    known = {key for key, value in {**env, **model.settings.set}.items() if value}
    folder = _config_of(model, home)
    is_elsewhere = any(key.startswith(_OF_CLOUDS) for key in known)
    if known & set(KEYS) or is_elsewhere:
        return
    if not has_log_in(folder):
        raise Refused(f"agent {name} has no key and no log-in: set ANTHROPIC_API_KEY where you launch, or run "
                      "`garrison login`")
    log_in = log_in_of(name, home, {}, environ)
    if isinstance(log_in, OutsideLogIn) and (not log_in.variables(now := time.time()) or log_in.has_expired(now)):
        raise Refused(f"the log-in of agent {name} has expired, and its CLI did not renew it: run `garrison login`")


def _check_preset_access(preset: Preset, home: Path, environ: Mapping[str, str]) -> None:
    if any(environ.get(key) for key in (*preset.env, *preset.urls)):  # a server of one's own may want no key
        return
    log_in = log_in_of(preset.name, home, {}, environ)
    if log_in is not None and log_in.variables(time.time()):
        return
    path = preset.log_in.find(environ) if preset.log_in is not None else None
    if path is None:
        raise Refused(f"agent {preset.name} has {preset.access(environ)}")
    if read_rights(home, Role.AGENT, preset.name, environ).mode is not Mode.NONE:
        raise Refused(f"agent {preset.name} has no key, and its log-in {path} is of an account, which has to be inside "
                      f"its sandbox: set {' or '.join(preset.env)} where you launch, or write a profile that shows it "
                      "(docs/agents.md, log-ins)")


def reporter_of(name: str, home: Path) -> str:
    """Return how the User-Agent of an agent's program begins if that program reports its own usage, '' if none does."""
    model = _model_profile(find_profile(name, home), home)
    if isinstance(model, CommandProfile):
        return model.format.reporter if model.format is not None else ""
    return CLI_USER_AGENT if isinstance(model, ClaudeProfile) else ""


def has_terminal(name: str, home: Path) -> bool:
    model = _model_profile(find_profile(name, home), home)
    return isinstance(model, CommandProfile) and model.tty


def excluded_by(name: str, home: Path) -> tuple[str, ...]:
    model = _model_profile(find_profile(name, home), home)
    return model.exclude if isinstance(model, CommandProfile) else ()


def required_variables(names: set[str], home: Path) -> list[str]:
    """Return the environment variables that these agents need; UsageError for an unknown agent."""
    return sorted({variable for name in sorted(names)
                   for variable in _model_profile(find_profile(name, home), home).env})


def check_node(name: str, node: str, attributes: Mapping[str, object], home: Path) -> None:
    """Refuse invalid attributes of a node's agent before a run begins."""
    profile = find_profile(name, home)
    session_options(name, node, attributes, home)
    model = _model_profile(profile, home)
    if isinstance(model, ClaudeProfile):
        for_node(model.settings, node, attributes)
    if isinstance(model, PluginProfile):
        PluginAgent(model)
    if isinstance(model, AcpProfile):
        acp_settings.for_node(model.settings, node, attributes)
    check_library(model, f"node {node}")


def check_library(profile: Profile, where: str) -> None:
    """Refuse an agent of a kind whose library is not installed; the refusal begins with `where`."""
    if isinstance(profile, (ClaudeProfile, AcpProfile)):
        extras.require("claude" if isinstance(profile, ClaudeProfile) else "acp", where)


def check_program(name: str, home: Path, environ: Mapping[str, str], passed: Iterable[str] | None = None) -> None:
    """Refuse an agent whose program does not exist, or is not shown in its sandbox, whose profile names a variable that
    is not set, or that has no access to its model; `environ` has its PATH and HOME.

    A relative path with a slash is not checked: it is in the node's worktree, perhaps only after the set-up.
    `passed` is as for `check_variables`.
    """
    check_variables(name, home, environ, passed)
    if passed is not None:  # else nothing is launched, and a pipeline is judged wherever its writer is
        check_access(name, home, environ, passed)
    profile = _model_profile(find_profile(name, home), home)
    if isinstance(profile, PluginProfile):
        program: str | None = PluginAgent(profile).program
    else:
        program = profile.settings.cli if isinstance(profile, ClaudeProfile) else profile.argv[0]
    if not program or "{" in program or ("/" in program and not program.startswith("/")):
        return
    found = shutil.which(program, path=environ.get("PATH", os.defpath))
    preset = find_preset(name) if name not in profiles(home) else None
    if found is None:
        where = "is no program" if "/" in program else "is not on the PATH"
        if isinstance(preset, Preset):
            raise Refused(f"agent {name} runs {program}, which {where}; install it: {preset.package}")
        raise Refused(f"agent {profile.name} runs {program}, which {where}; install it, or correct [agents."
                      f"{profile.name}] in {config_path(home)}")
    if isinstance(profile, ClaudeProfile):
        return  # its place shows the CLI
    if isinstance(preset, Preset) and passed is not None:
        _check_preset_access(preset, home, environ)
    rights = read_rights(home, Role.AGENT, name, environ)
    scripts = [word for word in named_programs(shlex.join(profile.argv))
               if word.startswith("/") and Path(word).is_file()] if isinstance(profile, CommandProfile) else []
    for each in dict.fromkeys((found, *scripts)):
        if hidden := find_hidden(each, environ, rights):
            where = f"{each}, a link to {hidden}," if str(hidden) != each else each
            read = installation_of(hidden) if each == found else hidden
            raise Refused(f"agent {profile.name} runs {where} which its sandbox does not show; add read = "
                          f'["{read}"] to [agents.{name}] in {config_path(home)}')


def programs_of(name: str, home: Path, command: str | None) -> list[str]:
    """Return the programs that a command agent may run for a node with that `command`; none for another kind."""
    profile = find_profile(name, home)
    return command_programs(profile.argv, command) if isinstance(profile, CommandProfile) else []


def installation_of(program: Path) -> Path:
    """Return the folder that a program needs to be shown: all of its packages, else its own folder. Pure."""
    for folder in program.parents:
        if folder.name == "node_modules":
            return folder
    return program.parent.parent if program.parent.name == "bin" and len(program.parts) > 4 else program.parent


def _session_agent(profile: Profile, home: Path) -> SessionAgent:
    """Return the agent as a session; UsageError if its model cannot be called turn by turn."""
    from garrison.agents.session_agent import SessionAgent

    model = _model_profile(profile, home)
    defaults = profile.options if isinstance(profile, SessionProfile) else SessionOptions()
    if isinstance(model, ClaudeProfile):
        return SessionAgent(profile.name, model.settings, defaults)
    if model.name == SCRIPTED:
        return SessionAgent(profile.name, None, defaults)
    raise UsageError(f"agent {model.name} cannot run as a session; a Claude agent can, and `scripted`")


def _model_profile(profile: Profile, home: Path) -> ModelProfile:
    """Return the profile whose model a profile runs: itself, or the one that a session names."""
    model = find_profile(profile.of, home) if isinstance(profile, SessionProfile) else profile
    if isinstance(model, SessionProfile):
        raise UsageError(f"agent {profile.name} is a session of {model.name}, which is a session itself; name a Claude "
                         "agent, or `scripted`")
    return model


# ---- config.toml


def _read_preset(preset: Preset, defaults: Mapping[str, object]) -> Profile:
    """Return the profile of a preset, for a home that has none of its name."""
    file = Table.parse(f"preset {preset.name}", preset.profile().encode())
    return _read_profile(parse_agent(file.below("agents", preset.name)), defaults)


def _read_session(table: Table) -> SessionProfile:
    name = table.keys[-1]
    options = table.read(SessionOptions, others=(OF, *PROFILE_KEYS, *PROFILE_RIGHTS))
    of = table.value(OF, as_text, "claude")
    if of == name:
        raise table.error("of should name another agent, one of kind claude or `scripted`", OF)
    return SessionProfile(name, of, options)


OF = "of"
"""Setting of a session's profile, in addition to `SessionOptions`: the agent that it runs."""
_SILENCE = {"command": "silence", "claude": "stale", "acp": "stale"}
"""Kind of a profile → its setting of the seconds of silence that are a hang."""


def shared_settings(kind: str) -> Mapping[str, str]:
    """Return the settings of a kind's profile that `[agents]` can state for all, each with its key there."""
    if kind == "session":  # it has the limits of the agent that it runs
        return {}
    return {"budget": "budget", "max_turns": "turns", **({_SILENCE[kind]: "silence"} if kind in _SILENCE else {})}


def settings_of(profile: Profile) -> dict[str, object]:
    """Return all settings of a profile that depend on its kind."""
    if isinstance(profile, PluginProfile):
        values, limits = dict(profile.settings), profile.limits
    elif isinstance(profile, SessionProfile):
        return {OF: profile.of, **vars(profile.options)}
    else:
        record = profile if isinstance(profile, CommandProfile) else profile.settings
        values = {key: getattr(record, key) for key in readers_of(type(record))}
        if isinstance(profile, ClaudeProfile):
            return values
        limits = profile.limits
    if isinstance(profile, CommandProfile) and profile.rule != EXIT_ZERO:
        values["success"] = vars(profile.rule)
    return {**values, **dict(zip(LIMITS, (limits.node, limits.run, limits.day, limits.turns), strict=True))}


def _read_profile(config: AgentConfig, defaults: Mapping[str, object]) -> Profile:
    """Read a profile by its kind, with what `[agents]` says of every agent; a plug-in's is checked by who uses it."""
    table, env = config.table, config.env
    stated = {"turns": AgentsConfig.turns, **defaults}
    shared = {name: stated[key] for name, key in shared_settings(config.kind).items() if key in stated}
    table = replace(table, values={**shared, **table.values})
    if config.kind == "session":
        return _read_session(table)
    if config.kind == "claude":
        return ClaudeProfile(config.name, read_claude(table), (*ENVIRONMENT, *env))
    if config.kind == "acp":
        return AcpProfile(config.name, acp_settings.from_profile(table), env, read_limits(table))
    if config.kind == "command":
        return read_command(table, env)
    settings = {name: value for name, value in config.settings.items() if name not in LIMITS}
    return PluginProfile(config.name, config.kind, config.where, settings, env, read_limits(table))
