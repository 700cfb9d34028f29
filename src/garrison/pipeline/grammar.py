"""Lark grammars of this package: build one, and read where its parser stopped.

Three grammars are files here: `dialect.lark` (DOT text), `condition.lark` (conditions of edges) and `stylesheet.lark`
(the model stylesheet). Each is built once per process, when the first text is parsed, so that importing the package
does not load Lark. `parse_errors` words the refusals.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lark import Lark, UnexpectedInput

_WORD = re.compile(r"[^\W\d]\w*")


def build_grammar(name: str, start: str, transformer: Any) -> Lark:
    """Return an LALR parser for `NAME.lark`; `transformer` has one method per rule and makes the parser's result."""
    from lark import Lark

    text = Path(__file__).with_name(f"{name}.lark").read_text(encoding="utf-8")
    return Lark(text, start=start, parser="lalr", lexer="contextual", transformer=transformer,
                maybe_placeholders=False)


class Stop(NamedTuple):
    """Position where a parser stopped: the text, the offset, the terminals it could have accepted, and its stack."""

    text: str
    offset: int
    expected: frozenset[str]
    stack: tuple[Any, ...]
    """Tokens and results that were read and not yet combined, the last one last."""

    @property
    def here(self) -> str:
        return self.text[self.offset:self.offset + 80]

    @property
    def word(self) -> str:
        """Return the word at the stop in lower case; empty if there is none."""
        match = _WORD.match(self.text, self.offset)
        return match[0].lower() if match else ""

    @property
    def before(self) -> str:
        return self.text[self.offset - 1:self.offset]

    @property
    def last(self) -> Any:
        """Return the last token or result; None at the beginning."""
        return self.stack[-1] if self.stack else None

    @property
    def is_at_end(self) -> bool:
        return self.offset >= len(self.text)


def stop_of(text: str, error: UnexpectedInput) -> Stop:
    """Return where Lark's `error` stopped on `text`."""
    token = getattr(error, "token", None)
    offset = getattr(token, "start_pos", error.pos_in_stream)
    if terminal(token) == "$END":
        offset = len(text)
    expected = getattr(error, "allowed", None) or getattr(error, "expected", None) or ()
    stack = getattr(getattr(error, "state", None), "value_stack", None) or ()
    return Stop(text, offset or 0, frozenset(expected), tuple(stack))


def terminal(item: Any) -> str:
    """Return the terminal of a token on the stack; empty for the result of a rule."""
    return getattr(item, "type", "")


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Return line and column of `offset`, both from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
