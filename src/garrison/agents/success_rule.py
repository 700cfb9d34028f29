"""Success rule: what a program's output must contain for success, beyond the exit code.

    success = {exit = [0, 2], stdout_not = "^FATAL", json = "is_error == false"}

The output comes from an agent and counts as hostile: only its end is searched, in a separate process with a limit of
two seconds, since a regular expression may take forever on a crafted text.
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
"""Lines at the end of the output that are tried as the start of an object."""
_MAX_QUOTED = 120
_SEARCH = """\
import re, sys
pattern, text = sys.argv[1], sys.stdin.buffer.read().decode(errors="replace")
found = re.search(pattern, text, re.MULTILINE)
if found:
    sys.stdout.buffer.write(("x" + found[0][:1000]).encode(errors="replace"))
"""
"""Prints the match of the pattern, after an `x`."""


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
        raise ValueError(f"a regular expression, but is invalid: {error}") from error
    return value


def _condition(value: object) -> str:
    from garrison.pipeline.condition import keys_of, parse_condition  # 30 ms that few profiles need

    if not isinstance(value, str):
        raise ValueError("a condition")  # noqa: TRY004  # as every reader of a setting
    try:
        keys = keys_of(parse_condition(value)) if value else ()
    except UsageError as error:
        raise ValueError(f"a condition: {error}") from error
    if "outcome" in keys:  # `ok` alone would be a status word
        raise ValueError("a condition on a key of the object, as in ok == true or context.outcome == done; it asks for "
                         "the outcome of a node")
    return value


class SuccessRule(Value):
    """Required exit code and output of a program; the default is exit code 0."""

    exit: tuple[int, ...] = setting((0,), _exit_codes)
    """Exit codes of success."""
    stdout_not: str = setting("", _pattern)
    """Regular expression that its output must not match, '' for none."""
    json: str = setting("", _condition)
    """Condition on the last JSON object that it prints, '' for none; its grammar is that of an edge's condition."""

    def objection(self, output: str, result: Mapping[str, object] | None = None) -> str:
        """Return which rule the output of a program violates, and why; '' for none.

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
    """Return the JSON object at the end of an output, on one or several lines; None if there is none."""
    for text in _candidates(output[-MAX_SEARCHED:]):
        try:
            found, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None


def _candidates(output: str) -> Iterator[str]:
    """Yield the suffixes of an output that look like an object from the start of a line, shortest first."""
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
    """Return the objection to a text that must not match the pattern."""
    # In another process: a backtracking search holds the GIL, and so blocks this process's heartbeats.
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
