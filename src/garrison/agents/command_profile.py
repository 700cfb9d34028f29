"""Profile of a command agent: its settings in config.toml, read and checked.

    [agents.codex-exec]
    argv = ["codex", "exec", "--json", "-"]
    resume_argv = ["codex", "exec", "resume", "{session}", "--json", "-"]
    stdin = "prompt"
    stream = "codex"
    success = {exit = [0]}
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from garrison.agents.briefing import Reporting
from garrison.agents.presets import find_outside_key
from garrison.agents.profile import LIMITS, Profile, as_program, read_limits, show_limits
from garrison.agents.session_options import SCRIPTED
from garrison.agents.success_rule import EXIT_ZERO, SuccessRule
from garrison.agents.variables import fill_variables
from garrison.plugins import PluginGroup, load
from garrison.records.budget import NO_LIMITS, Limits
from garrison.sandbox.file_system import named_programs
from garrison.tables import as_amount, as_flag, as_mapping, as_strings, empty_table, one_of, readers_of, setting
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from garrison.agents.base import Agent
    from garrison.agents.profile import OutsideKey
    from garrison.agents.program_stream import StreamFormat
    from garrison.agents.session_options import SessionOptions
    from garrison.config import AgentTable

RULES = ("exit_zero", "result_file")
PROMPT = "prompt"
"""Value of `stdin` that feeds the prompt."""
STREAMS = ("claude", "codex")
"""Values of `stream`."""
SESSION = "{session}"
"""Placeholder in `resume_argv`."""
_SEPARATORS = re.compile(r"[\s;&|()]+")


def _patterns(value: object) -> tuple[str, ...]:
    patterns = as_strings(value)
    if wrong := [each for each in patterns if not each.strip() or "\n" in each or each.startswith(("!", "#"))]:
        raise ValueError(f'a list of patterns as in .gitignore, such as ".aider*", not {wrong[0]!r}')
    return patterns


def _resuming(value: object) -> tuple[str, ...]:
    words = as_strings(value)
    if words and not any(SESSION in word for word in words):
        raise ValueError(f"a list of strings with {SESSION}, the id of the session to resume, in one of them")
    return words


def _success(value: object) -> str:
    try:
        return one_of(*RULES)(value)
    except ValueError as error:
        raise ValueError(f"{error}, or a table such as {{exit = [0, 2]}}") from None


class CommandProfile(Value, Profile):
    """A command agent as the configuration names it."""

    modules: ClassVar[tuple[str, ...]] = ("garrison.agents.command",)
    silence_setting: ClassVar[str] = "silence"

    name: str
    argv: tuple[str, ...] = setting((), as_program)
    """Words with {prompt_file} {prompt} {tree} {node} {run} {attempt} {result_file} {command} and {env:NAME} filled in.
    """
    env: tuple[str, ...] = ()
    """Variables of the caller's environment that it gets."""
    success: str = setting(RULES[0], _success)
    """`exit_zero`, or `result_file`: the program itself writes GARRISON_RESULT_FILE with {"status": "success"}."""
    limits: Limits = NO_LIMITS
    """Limits on the cost of its model API calls, if the run's proxy makes them."""
    rule: SuccessRule = EXIT_ZERO
    """`success` as a table, in addition to `exit_zero`."""
    tty: bool = setting(False, as_flag)
    """Give it its own terminal, where the user may type."""
    stdin: str = setting("", one_of("", PROMPT))
    """`prompt`: its standard input is the prompt; else it is empty."""
    stream: str = setting("", one_of("", *STREAMS))
    """Format of the lines of JSON that it prints (`program_stream.FORMATS`), '' for plain text."""
    resume_argv: tuple[str, ...] = setting((), _resuming)
    """Command that continues its session {session} after a death, instead of `argv`."""
    exclude: tuple[str, ...] = setting((), _patterns)
    """Patterns, as in .gitignore, of files that are not committed."""
    set: Mapping[str, str] = empty_table(as_mapping)
    """Variables set for its program."""
    silence: float | None = setting(None, as_amount)
    """Seconds without output or CPU use after which it counts as hung; None: only its timeout applies."""

    @classmethod
    def read(cls, config: AgentTable) -> CommandProfile:
        """Return the profile of a table, whose unknown keys `agents.config_check` reports; UsageError for an invalid
        one.
        """
        own, table = config.table, config.table
        rule = table.below("success")
        if is_rule := "success" in table.values and isinstance(rule.values, dict):
            own = replace(table, values={key: value for key, value in table.values.items() if key != "success"})
        base = cls(table.keys[-1], env=config.env, limits=read_limits(table),
                   rule=rule.read(SuccessRule) if is_rule else EXIT_ZERO)
        profile = own.read(cls, base, others=None)
        if not profile.argv:
            raise table.error("argv is missing; name the program to run")
        if profile.tty and (profile.stdin or profile.stream):
            other = "stdin" if profile.stdin else "stream"
            raise table.error(f"tty = true and {other} exclude each other: a terminal is its input and output", "tty")
        if profile.resume_argv and not profile.stream:
            raise table.error("resume_argv needs stream, from which the session's id is read; there are "
                              f"{', '.join(STREAMS)}", "resume_argv")
        return profile

    @classmethod
    def setting_names(cls) -> Collection[str]:
        return (*readers_of(cls), *LIMITS)

    def settings_shown(self) -> dict[str, object]:
        values = {key: getattr(self, key) for key in readers_of(type(self))} | show_limits(self.limits)
        return values if self.rule == EXIT_ZERO else {**values, "success": vars(self.rule)}

    # ---- where it starts

    def start_as(self, role: str) -> Agent:
        make: Callable[[CommandProfile], Agent] = load(PluginGroup.PARTS, "agent.command")
        return make(self)

    def start_session(self, name: str, defaults: SessionOptions) -> Agent:
        """Return the scripted agent as a session; UsageError for any other program."""
        if self.name != SCRIPTED:
            return super().start_session(name, defaults)
        make: Callable[[str, None, SessionOptions], Agent] = load(PluginGroup.PARTS, "agent.session")
        return make(name, None, defaults)

    @property
    def format(self) -> StreamFormat | None:
        """Return the format of its stream, None for plain text."""
        if not self.stream:
            return None
        from garrison.agents.program_stream import FORMATS  # most agents print no stream

        return FORMATS[self.stream]

    @property
    def reporter(self) -> str:  # type: ignore[override]
        return self.format.reporter if self.format is not None else ""

    @property
    def reporting(self) -> Reporting:
        if self.success == "result_file":
            return Reporting.RESULT_FILE
        return Reporting.LAST_MESSAGE if self.stream else Reporting.EXIT_CODE

    @property
    def variables(self) -> Mapping[str, str]:
        return self.set

    def programs(self, command: str | None) -> list[str]:
        """Return its program, or the words of the node's own command that may be programs."""
        if "{command}" not in self.argv:
            return [self.program] if self.argv and "{" not in self.program else []
        words = (word.strip("\"'") for word in _SEPARATORS.split(command or ""))
        return list(dict.fromkeys(word for word in words
                                  if re.fullmatch(r"/?[\w.+-]+", word) and not word.startswith("-")))

    def scripts(self) -> list[str]:
        return [word for word in named_programs(shlex.join(self.argv)) if word.startswith("/") and Path(word).is_file()]

    def check_words(self, env: Mapping[str, str]) -> None:
        for word in (*self.argv, *self.resume_argv):
            fill_variables(word, {**env, **self.set}, self.name)

    def log_in(self, home: Path, env: Mapping[str, str], environ: Mapping[str, str]) -> OutsideKey | None:
        return find_outside_key(self, env, environ)


SHELL = CommandProfile("command", ("/bin/sh", "-c", "{command}"))
"""Runs the node's own `command` in a shell."""
