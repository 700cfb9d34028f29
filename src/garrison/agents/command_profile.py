"""Profile of a command agent: its settings in config.toml, read and checked.

    [agents.codex-exec]
    argv = ["codex", "exec", "--json", "-"]
    resume_argv = ["codex", "exec", "resume", "{session}", "--json", "-"]
    stdin = "prompt"
    stream = "codex"
    success = {exit = [0]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from garrison.agents.claude.settings import LIMITS, READERS, read_values
from garrison.agents.success_rule import EXIT_ZERO, SuccessRule, read_rule
from garrison.config import string_list
from garrison.errors import UsageError
from garrison.frozen import frozen
from garrison.records.costs import NO_LIMITS, Limits

if TYPE_CHECKING:
    from garrison.agents.program_stream import StreamFormat

RULES = ("exit_zero", "result_file")
PROMPT = "prompt"
"""Value of `stdin` that feeds the prompt."""
STREAMS = ("claude", "codex")
"""Values of `stream`."""
SESSION = "{session}"
"""Placeholder in `resume_argv`."""
SETTINGS = ("argv", "resume_argv", "success", "tty", "stdin", "stream", "exclude", "set", "silence", *LIMITS)
"""Settings of a command agent, besides `kind` and `env`."""


@frozen
class CommandProfile:
    """A command agent as the configuration names it."""

    name: str
    argv: tuple[str, ...] = ()
    """Words with {prompt_file} {prompt} {tree} {node} {run} {attempt} {result_file} {command} and {env:NAME} filled in.
    """
    env: tuple[str, ...] = ()
    """Variables of the caller's environment that it may see."""
    success: str = "exit_zero"
    """`exit_zero`, or `result_file`: the program itself writes GARRISON_RESULT_FILE with {"status": "success"}."""
    limits: Limits = NO_LIMITS
    """On what its calls of model APIs may cost, where the run's proxy makes them."""
    rule: SuccessRule = EXIT_ZERO
    """What `success` says as a table, in addition to `exit_zero`."""
    tty: bool = False
    """Give it a terminal of its own, into which a person may type."""
    stdin: str = ""
    """`prompt`: its standard input is the prompt; else it is empty."""
    stream: str = ""
    """Format of the lines of JSON that it prints (`program_stream.FORMATS`), '' for plain text."""
    resume_argv: tuple[str, ...] = ()
    """Words that continue its session {session} after a death, in place of `argv`."""
    exclude: tuple[str, ...] = ()
    """Patterns, as in .gitignore, of files that are not committed."""
    set: Mapping[str, str] = field(default_factory=dict)
    """Variables set for its program."""
    silence: float | None = None
    """Seconds without output or use of a processor after which it counts as hung; None: its timeout bounds it."""

    @property
    def has_own_input(self) -> bool:
        """Return whether its program's standard streams are not those of every command."""
        return self.tty or bool(self.stdin or self.stream)

    @property
    def format(self) -> StreamFormat | None:
        """Return the format of its stream, None for plain text."""
        if not self.stream:
            return None
        from garrison.agents.program_stream import FORMATS  # most agents print no stream

        return FORMATS[self.stream]


SHELL = CommandProfile("command", ("/bin/sh", "-c", "{command}"))
"""Runs the node's own `command` in a shell."""


def from_profile(where: str, name: str, values: Mapping[str, Any], env: tuple[str, ...]) -> CommandProfile:
    """Return the profile of a table; UsageError, beginning with `where`, for an invalid one."""
    argv = string_list(where, "argv", values.get("argv"))
    if not argv or not argv[0]:
        raise UsageError(f"{where}: argv is empty; name the program to run")
    success = values.get("success", "exit_zero")
    rule = read_rule(f"{where}: success", success) if isinstance(success, dict) else EXIT_ZERO
    if not isinstance(success, dict) and success not in RULES:
        raise UsageError(f"{where}: success is {success!r}; use one of {', '.join(RULES)}, or a table such as "
                         "{exit = [0, 2]}")
    resume = string_list(where, "resume_argv", values.get("resume_argv", []))
    profile = CommandProfile(
        name, argv, env, "exit_zero" if isinstance(success, dict) else success, read_limits(where, values), rule,
        _flag(where, "tty", values), _choice(where, "stdin", values, (PROMPT,)),
        _choice(where, "stream", values, STREAMS), resume, _patterns(where, values), _variables(where, values),
        read_values(where, {"stale": values["silence"]}, READERS)["stale"] if "silence" in values else None)
    _check(where, profile)
    return profile


def _check(where: str, profile: CommandProfile) -> None:
    if profile.tty and (profile.stdin or profile.stream):
        other = "stdin" if profile.stdin else "stream"
        raise UsageError(f"{where}: tty = true and {other} exclude each other: a terminal is its input and output")
    if profile.resume_argv and not any(SESSION in word for word in profile.resume_argv):
        raise UsageError(f"{where}: resume_argv names no {SESSION}, the id of the session to resume")
    if profile.resume_argv and not profile.stream:
        raise UsageError(f"{where}: resume_argv needs stream, from which the session's id is read; there are "
                         f"{', '.join(STREAMS)}")


def read_limits(where: str, values: Mapping[str, Any]) -> Limits:
    """Return the limits on what an agent's calls may cost."""
    read = read_values(where, {key: values[key] for key in LIMITS if key in values}, READERS)
    return Limits(*(read.get(key) for key in LIMITS))


def _flag(where: str, key: str, values: Mapping[str, Any]) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(f"{where}: {key} should be true or false")
    return value


def _choice(where: str, key: str, values: Mapping[str, Any], choices: tuple[str, ...]) -> str:
    value = values.get(key, "")
    if value not in ("", *choices):
        words = " or ".join(f'"{each}"' for each in choices)
        raise UsageError(f"{where}: {key}={value!r} should be {words}")
    return str(value)


def _patterns(where: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    patterns = string_list(where, "exclude", values.get("exclude", []))
    if wrong := [each for each in patterns if not each.strip() or "\n" in each or each.startswith(("!", "#"))]:
        raise UsageError(f"{where}: exclude has {wrong[0]!r}; use patterns as in .gitignore, such as \".aider*\"")
    return patterns


def _variables(where: str, values: Mapping[str, Any]) -> Mapping[str, str]:
    try:
        return dict(READERS["set"](values["set"])) if "set" in values else {}
    except ValueError as error:
        raise UsageError(f"{where}: set={values['set']!r} should be {error}") from error
