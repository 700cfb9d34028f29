"""Readers of text from agents, models and forges take time in proportion to its length, whatever it contains.

The list has each reader that applies a pattern to what an agent, a model or a forge may have written. A pattern that
tries every position, and from each searches the rest, took 135 s of CPU on 250 KiB of U+009D.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from garrison.agents.conversation.questions import plain_question
from garrison.agents.quotation import mention, quote
from garrison.agents.success_rule import last_object
from garrison.agents.trouble import find_witness, read_reset, read_told
from garrison.delegation.prompts import entities
from garrison.ends import End
from garrison.errors import GarrisonError
from garrison.forge.transport import NEXT_LINK
from garrison.merge.failing_tests import find_failures, parse_report
from garrison.merge.suspects import suspect
from garrison.merge.union import unite_lines
from garrison.pipeline.parser import parse
from garrison.pipeline.questions import accelerator
from garrison.sandbox.place import Rights
from garrison.sandbox.probe import explain_missing_file
from garrison.system.machine import reports_no_space, reports_shortage
from garrison.system.terminal_text import OutputFilter, clean, clean_lines, spell_hidden, wrap

BOUND = 64 * 1024
"""The most characters of a line that a reader gets."""
LIMIT, FACTOR = 0.1, 20.0
"""Seconds of CPU for a line at the bound; and how many times as long ten times the text may take: ten in proportion,
fifteen where it outgrows the caches, a hundred with backtracking; the rest is for a busy machine."""
OF_LINES = 0.2
"""Seconds for as much text in short lines."""


def _parse(text: str) -> object:
    try:
        return parse(text)
    except GarrisonError:
        return None


READERS: dict[str, Callable[[str], object]] = {
    "clean": clean, "clean_lines": clean_lines, "spell_hidden": spell_hidden,
    "a long word": lambda text: wrap("".join(text.split()), 80),
    "a terminal's output": lambda text: OutputFilter().filter(text.encode()), "a quotation": quote, "a name": mention,
    "failing tests": lambda text: suspect(find_failures(text), {"entry": ["src/a.py"]}), "a report": lambda text:
        parse_report(f"<a>{text}</a>".encode()),
    "a question": plain_question, "a JSON object": last_object, "an option": accelerator,
    "a program's last words": find_witness, "an API's error": lambda text: read_told(429, "", text),
    "the end of a limit": lambda text: read_reset(text, 0.0),
    "a missing file": lambda text: explain_missing_file(Rights(), "sandbox.gate", End(127), text, "/bin"),
    "no space": reports_no_space, "no room": reports_shortage, "a list": lambda text: unite_lines([text], [text]),
    "a forge's links": NEXT_LINK.search, "what a message names": entities, "a pipeline": _parse,
}
UNITS = (
    "\x9d", "\x90", "\x9b", "\x1b]", "\x1b[", "\x1b[0;", "\x1b[?1 ", "\x1b ", " ", "\n", "\t", "\r",
    "a", "é", "0", ".", "a.", "a/", "/a: ", "? ", "?", "？", "[", "(a", "a)", "\"", "'", "{", "\n{", "{\"a\":",
    "<", "<a>;", "```", "`", "_", "-",
    "a-", "=", "a=", "a.b:1", "a.py", ":: ", "a::", " › ", " > ", "FAILED a", "FAILED a.py::", "ERROR: a (",
    "not ok 1 ", "test a", "1) ", "File \"", "resets ", "refresh", "resume", "at 10 ", "in 1 h", "available ",
    "429 ", "rate limit ", "exceeded ", "error: ", "//", "/*", "->", "e\u0301")


def _texts(unit: str, length: int) -> tuple[str, str]:
    """Return a line of the unit, and lines that start with it, each of about that length."""
    return unit * (length // len(unit)), f"\n{unit}a".join(["x"] * (length // (len(unit) + 3)))


def _measure(read: Callable[[str], object], text: str, enough: float = 0.0) -> float:
    """Return the CPU seconds: the least of up to eight measurements until it is `enough`, for a busy machine."""
    times: list[float] = []
    while len(times) < 8 and not (times and min(times) <= enough):
        began = time.process_time()
        read(text)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("name", READERS)
def test_hostile_text_is_read_in_proportion_to_its_length(name: str) -> None:
    read = READERS[name]
    read("warm")
    tried = sorted(((_measure(read, _texts(unit, BOUND // 16)[kind], LIMIT), unit, kind)
                    for unit in UNITS for kind in (0, 1)), reverse=True)
    assert tried[0][0] < LIMIT, tried[0]
    took = []
    for _, unit, kind in tried[:3]:
        took.append(_measure(read, _texts(unit, BOUND)[kind], LIMIT))
        assert took[-1] < (LIMIT, OF_LINES)[kind], (unit, kind)
    _, unit, kind = tried[0]
    once = max(0.004, took[0])  # of a first reading: a second one finds memory that a longer text never finds
    assert _measure(read, _texts(unit, 10 * BOUND)[kind], FACTOR * once) < FACTOR * once, (unit, kind)
