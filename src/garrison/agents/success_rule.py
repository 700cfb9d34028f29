"""Success rule: what a program has to leave for its work to count, beyond its exit code.

    success = {exit = [0, 2], stdout_not = "^FATAL", json = "is_error == false"}

The output is an agent's, and counts as hostile: only its end is searched, in its own process that has two seconds,
since a regular expression may take for ever on a text made for it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping

from garrison.errors import UsageError
from garrison.system.command import run
from garrison.system.terminal_text import clean
from garrison.tables import setting
from garrison.values import Value

MAX_SEARCHED = 256 << 10
"""Characters at the end of the output that are searched."""
SEARCH_SECONDS = 2.0
_MAX_CANDIDATES = 50
"""Lines at the end of the output that are tried as the begin of an object."""
_MAX_QUOTED = 120
_SEARCH = """\
import re, sys
pattern, text = sys.argv[1], sys.stdin.buffer.read().decode(errors="replace")
found = re.search(pattern, text, re.MULTILINE)
if found:
    sys.stdout.buffer.write(("x" + found[0][:1000]).encode(errors="replace"))
"""
"""Prints what the pattern finds, after an `x`."""


def _exit_codes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or any(type(code) is not int or not 0 <= code <= 255 for code in value):
        raise ValueError("a list of exit codes, from 0 to 255")
    return tuple(value)


def _pattern(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a regular expression")  # noqa: TRY004  # as every reader of a setting
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"a regular expression, and is none: {error}") from error
    return value


def _condition(value: object) -> str:
    from garrison.pipeline.condition import keys_of, parse_condition  # 30 ms that few profiles need

    if not isinstance(value, str):
        raise ValueError("a condition")  # noqa: TRY004  # as every reader of a setting
    try:
        keys = keys_of(parse_condition(value)) if value else ()
    except UsageError as error:
        raise ValueError(f"a condition: {error}") from error
    if "outcome" in keys:  # so is `ok` alone: a word for a status
        raise ValueError("a condition on a key of the object, as in ok == true or context.outcome == done; it asks for "
                         "the outcome of a node")
    return value


class SuccessRule(Value):
    """What a program's end and output must be; the default is exit code 0."""

    exit: tuple[int, ...] = setting((0,), _exit_codes)
    """Exit codes of success."""
    stdout_not: str = setting("", _pattern)
    """Regular expression that nothing it prints may match, '' for none."""
    json: str = setting("", _condition)
    """Condition on the last JSON object that it prints, '' for none; its grammar is that of an edge's condition."""

    def objection(self, output: str, result: Mapping[str, object] | None = None) -> str:
        """Return which rule refuses what a program printed, and why; '' if none does.

        Args:
            result: the object that ended its stream, if it has one.
        """
        if self.stdout_not and (why := _search(self.stdout_not, output[-MAX_SEARCHED:])):
            return why
        if self.json:
            found = last_object(output) if result is None else result
            if found is None:
                return f"it printed no JSON object, and success.json asks for {self.json}"
            return _judge(self.json, found)
        return ""


EXIT_ZERO = SuccessRule()


def last_object(output: str) -> dict[str, object] | None:
    """Return the JSON object with which an output ends, alone or over several lines; None if there is none."""
    for text in _candidates(output[-MAX_SEARCHED:]):
        try:
            found, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None


def _candidates(output: str) -> Iterator[str]:
    """Yield the ends of an output that begin, at the start of a line, like an object; the shortest first."""
    end = len(output)
    for _ in range(_MAX_CANDIDATES):
        start = output.rfind("\n{", 0, end)
        if start < 0:
            break
        yield output[start + 1:]
        end = start + 1
    if output.startswith("{"):
        yield output


def _search(pattern: str, text: str) -> str:
    """Return what speaks against a text in which the pattern may not occur."""
    # In another process: a search that backtracks holds the GIL, and with it this process's heartbeats.
    done = run([sys.executable, "-I", "-S", "-c", _SEARCH, pattern], SEARCH_SECONDS, text=text.encode(errors="replace"))
    if done.timed_out:
        return f"success.stdout_not = {pattern!r} took longer than {SEARCH_SECONDS:.0f} s on its output; simplify it"
    if not done.ok:
        return f"success.stdout_not = {pattern!r} could not be searched: {clean(done.why or done.err)[-_MAX_QUOTED:]}"
    found = done.out
    return f"it printed {clean(found[1:])[:_MAX_QUOTED]!r}, which success.stdout_not forbids" if found else ""


def _judge(text: str, found: Mapping[str, object]) -> str:
    from garrison.pipeline.condition import holds, keys_of, look_up, parse_condition, to_text
    from garrison.pipeline.outcome import SUCCESS, Outcome

    condition, neutral = parse_condition(text), Outcome(SUCCESS)
    if holds(condition, neutral, found):
        return ""
    values = ", ".join(f"{key} is {clean(to_text(look_up(key, neutral, found)))[:_MAX_QUOTED] or 'absent'}"
                       for key in keys_of(condition))
    return f"success.json asks for {text}, but {values}"
