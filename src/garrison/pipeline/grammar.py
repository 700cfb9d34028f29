"""Lark grammars of this package, and the messages for texts that they refuse. Pure.

Three grammars are files here: `dialect.lark` (DOT text), `condition.lark` (conditions of edges) and `stylesheet.lark`
(the model stylesheet). Each is built once per process, when the first text is parsed, so that importing the package
does not load Lark.

The grammar decides what is refused; a message only explains it, from the position where the parser stopped: the offset,
the problem, and the fix. A refusal without an explanation still gets its position and what the grammar expected there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from garrison.pipeline.graph import PlacedText

if TYPE_CHECKING:
    from lark import Lark, UnexpectedInput


_WORD = re.compile(r"[^\W\d]\w*")


def build_grammar(name: str, start: str, transformer: Any) -> Lark:
    """Return an LALR parser for `NAME.lark`; `transformer` has one method per rule and makes the parser's result."""
    from lark import Lark

    text = Path(__file__).with_name(f"{name}.lark").read_text(encoding="utf-8")
    # Without placeholders an absent optional part leaves no None among the parts: the transformers count them.
    return Lark(text, start=start, parser="lalr", lexer="contextual", transformer=transformer,
                maybe_placeholders=False)


class Stop(NamedTuple):
    """Position where a parser stopped: the text, the offset, the terminals it could have accepted, and its stack."""

    text: str
    offset: int
    expected: frozenset[str]
    stack: tuple[Any, ...]
    """Tokens and results that were read but not yet combined, the last one last."""

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
        """Return the last token or result; None at the start."""
        return self.stack[-1] if self.stack else None

    @property
    def is_at_end(self) -> bool:
        return self.offset >= len(self.text)


def stop_of(text: str, error: UnexpectedInput) -> Stop:
    """Return the position in `text` at which Lark's `error` occurred."""
    # Lark's lexer lists acceptable terminals in `allowed`, its parser in `expected`; only the parser has a token.
    token = getattr(error, "token", None)
    offset = getattr(token, "start_pos", error.pos_in_stream)
    # Lark gives the end of the text the position of the last token before it.
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


# ---- messages --------------------------------------------------------------------------------------------------------


Explanation = tuple[int, str]
"""Offset to report and the message."""


# ---- DOT text: one function an explanation, tried in order -----------------------------------------------------------


def explain_dot(text: str, error: UnexpectedInput) -> Explanation:
    stop = stop_of(text, error)
    return next(found for explain in _DOT_EXPLANATIONS if (found := explain(stop)) is not None)


_TERMINAL_NAMES = {
    "DIGRAPH": "digraph", "SUBGRAPH": "a subgraph", "GRAPH": "graph", "NODE": "node", "EDGE": "edge",
    "NAME": "a name", "DOTTED": "a dotted key", "STRING": "a quoted string", "BARE": "a word or number",
    "_ARROW": "->", "EQUAL": "=", "COMMA": ",", "SEMICOLON": ";", "PLUS": "+", "_PLUS": "+",
    "LBRACE": "{", "RBRACE": "}", "LSQB": "[", "RSQB": "]", "$END": "the end",
}


def _before_the_graph(stop: Stop) -> Explanation | None:
    if stop.expected != {"DIGRAPH"}:
        return None
    if stop.word == "strict":
        return stop.offset, "strict is not part of the dialect; remove the word"
    if stop.word == "graph":
        return stop.offset, "this is an undirected graph; write digraph, and -> between nodes"
    if stop.is_at_end:
        return stop.offset, "there is no graph in this text; write digraph NAME { ... }"
    if _is_comment(stop):
        return None
    return stop.offset, f"{_found(stop)} before the graph; start with digraph NAME {{"


def _after_the_graph(stop: Stop) -> Explanation | None:
    if stop.expected != {"$END"} or _is_comment(stop):
        return None
    if stop.word in ("digraph", "graph", "strict"):
        return stop.offset, "a second graph; put each graph in its own file"
    return stop.offset, f"{_found(stop)} after the end of the graph; remove it"


def _quote_of_an_earlier_line(stop: Stop) -> Explanation | None:
    """Explain a string that ends where the next one should start: its own closing quote is missing, lines before."""
    for match in _STRING_OR_COMMENT.finditer(stop.text, 0, stop.offset + 1):
        string = match["string"]
        if string and "\n" in string and (_OPENS_A_VALUE.search(string[:-1]) or re.compile(r"[\w$\\]").match(
                stop.text, match.end())):
            return match.start(), ('this string is not closed on its line; end it with ", and write \\" for a quote '
                                   "inside it")
    return None


_STRING_OR_COMMENT = re.compile(r'(?P<string>"[^"\\]*(?:\\.[^"\\]*)*")|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)
_OPENS_A_VALUE = re.compile(r"(?:=|\+|->|\[|\{|;)\s*$")


def _unclosed_text(stop: Stop) -> Explanation | None:
    if _is_comment(stop):
        return stop.offset, "this comment is never closed; end it with */"
    if stop.here.startswith('"') and not re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL).match(stop.text, stop.offset):
        return stop.offset, 'this string is never closed; end it with ", and write \\" for a quote inside it'
    return None


def _html(stop: Stop) -> Explanation | None:
    if stop.here.startswith("<") and "STRING" in stop.expected:
        return stop.offset, "HTML values are not part of the dialect; write the text in quotes"
    return None


def _missing_value(stop: Stop) -> Explanation | None:
    if not stop.expected or not stop.expected <= {"BARE", "STRING"}:
        return None
    if stop.is_at_end:
        return _last_offset(stop), "no value follows, and # and // start a comment; write the value in quotes"
    return stop.offset, f"{_found(stop)} is not a value; write the value in quotes"


def _list_left_open(stop: Stop) -> Explanation | None:
    """Explain a token that belongs after an attribute list: the bracket before it is missing."""
    opened = next((item for item in reversed(stop.stack) if terminal(item) in ("LSQB", "LBRACE")), None)
    if opened is None or terminal(opened) != "LSQB" or not stop.here.startswith(("[", "}", "{", "->")):
        return None
    return opened.start_pos, "this attribute list is not closed; end it with ]"


def _unclosed_block(stop: Stop) -> Explanation | None:
    if stop.is_at_end:
        what = "attribute list is never closed; end it with ]" if _inside(stop) == "LSQB" \
            else "graph is never closed; end it with }"
        return stop.offset, f"the text ends here, but the {what}"
    return None


def _unquoted_value(stop: Stop) -> Explanation | None:
    if terminal(stop.last) != "BARE" or stop.last.end_pos != stop.offset:
        return None
    match = re.compile(r"[^\s,;\]]+").match(stop.text, stop.last.start_pos)
    whole = match[0][:40] if match else "..."
    return _last_offset(stop), f'{_found(stop)} cannot be part of an unquoted value; write "{whole}"'


def _undirected_edge(stop: Stop) -> Explanation | None:
    if stop.here.startswith("--"):
        return stop.offset, "-- is an undirected edge; write ->"
    return None


def _other_arrow(stop: Stop) -> Explanation | None:
    arrow = re.compile(r"=>|-+>|>+|→|⇒").search(stop.text, max(0, stop.offset - 2), stop.offset + 4)
    if arrow is None or arrow[0] == "->" or _inside(stop) == "LSQB" or not arrow.start() <= stop.offset < arrow.end():
        return None
    return arrow.start(), f"{arrow[0]} is not an edge; write ->"


def _dashed_id(stop: Stop) -> Explanation | None:
    if not (stop.here.startswith("-") and re.match(r"\w", stop.before)) or "BARE" in stop.expected:
        return None
    start = _start_of_word(stop)
    match = re.compile(r"(?<!\w)[\w.]+(?:-[\w.-]+)*").search(stop.text, start)
    word = match[0].rstrip("-.") if match else ""
    return start, f'{word} has a - and is not quoted; write "{word}" or use _'


def _port(stop: Stop) -> Explanation | None:
    if stop.here.startswith(":") and _inside(stop) != "LSQB":
        return stop.offset, "ports are not part of the dialect; remove the : and what follows it"
    return None


def _attribute_without_value(stop: Stop) -> Explanation | None:
    if not _ends_in_key(stop) or _inside(stop) != "LSQB" or not re.match(
            r"[,;\]].|.\s", stop.here[:1] + stop.before, re.DOTALL):
        return None
    word = str(stop.last).strip('"')[:40]
    return _last_offset(stop), f"attribute {word} has no value; write {word}=true"


def _dotted_id(stop: Stop) -> Explanation | None:
    if terminal(stop.last) != "DOTTED":
        return None
    return _last_offset(stop), f'{stop.last!s:.40} is not an id unless quoted; write "{stop.last!s:.40}" or use _'


def _comma_between_statements(stop: Stop) -> Explanation | None:
    if stop.here.startswith(",") and _inside(stop) != "LSQB":
        return stop.offset, "a comma between statements; write ; or a new line"
    return None


def _numbered_id(stop: Stop) -> Explanation | None:
    match = re.compile(r"\d[\w.]*").match(stop.text, stop.offset)
    if match and "NAME" in stop.expected:
        return stop.offset, f'an id cannot start with a digit; write "{match[0]}" or start with a letter or _'
    return None


def _unexpected(stop: Stop) -> Explanation | None:
    expected = sorted(_TERMINAL_NAMES.get(name, name) for name in stop.expected)
    fix = f"write {' or '.join(expected)}" if 0 < len(expected) <= 4 else "check what comes before it, and quote texts"
    return stop.offset, f"{_found(stop)} is not expected here; {fix}"


# Tried in this order: one that considers more of the text comes before one that would explain its symptom; the last
# explains everything else.
_DOT_EXPLANATIONS: tuple[Callable[[Stop], Explanation | None], ...] = (
    _quote_of_an_earlier_line, _before_the_graph, _after_the_graph, _unclosed_text, _html, _list_left_open,
    _other_arrow, _missing_value, _unclosed_block, _unquoted_value, _undirected_edge, _dashed_id, _port,
    _attribute_without_value, _dotted_id, _comma_between_statements, _numbered_id, _unexpected,
)


def _inside(stop: Stop) -> str:
    return next((name for item in reversed(stop.stack) if (name := terminal(item)) in ("LSQB", "LBRACE")), "")


def _ends_in_key(stop: Stop) -> bool:
    named = isinstance(stop.last, PlacedText) or terminal(stop.last) in ("NAME", "DOTTED", "STRING")
    return named and (len(stop.stack) < 2 or terminal(stop.stack[-2]) != "EQUAL")


def _is_comment(stop: Stop) -> bool:
    return stop.here.startswith("/*")


def _found(stop: Stop) -> str:
    match = re.compile(r'"[^"\n]{0,30}"?|[\w.]+|->|\S').match(stop.text, stop.offset)
    return "the end of the text" if match is None else match[0][:40]


def _start_of_word(stop: Stop) -> int:
    offset = stop.offset
    while offset and re.match(r"[\w.]", stop.text[offset - 1]):
        offset -= 1
    return offset


def _last_offset(stop: Stop) -> int:
    """Return the offset of the last token or string."""
    if not isinstance(stop.last, PlacedText):
        return int(stop.last.start_pos)
    offset = 0
    for _ in range(stop.last.line - 1):
        offset = stop.text.index("\n", offset) + 1
    return offset + stop.last.column - 1


# ---- conditions ------------------------------------------------------------------------------------------------------


def explain_condition(text: str, error: UnexpectedInput, max_depth: int) -> Explanation:
    """Return the offset and the message for Lark's `error` on a condition."""
    stop = stop_of(text, error)
    open_items = _open_items(stop)
    opened = [item for item in open_items if terminal(item) == "LPAR"]
    nested = [item for item in open_items if terminal(item) in ("LPAR", "NOT")]
    if len(nested) > max_depth:
        return nested[max_depth].start_pos, f"nested deeper than {max_depth}; simplify it"
    if "KEY" in stop.expected:
        return stop.offset, "a key is missing at the end; write outcome=success or context.KEY=VALUE" \
            if stop.is_at_end else "expected a key here: outcome, preferred_label or context.KEY"
    if "STRING" in stop.expected and stop.here[:1] in ('"', "'") and not stop.is_at_end:
        return stop.offset, "this quote is never closed"
    if "STRING" in stop.expected and (stop.is_at_end or stop.here.startswith(("&&", "||", ")"))):
        return stop.offset, f'a value is missing after {stop.last}; write "" for an empty one'
    if stop.expected & {"STRING", "MORE"} and stop.here[:1] in _QUOTE_THESE and not stop.is_at_end:
        return stop.offset, (f"{stop.here[0]} in an unquoted value; write && or || between comparisons, or quote the "
                             "value")
    if opened:
        if stop.is_at_end:
            return opened[-1].start_pos, "this ( is never closed; add a )"
        return stop.offset, "&&, || or ) is missing"
    if stop.here.startswith(")"):
        return stop.offset, "this ) closes nothing; remove it"
    if _NOT_CONTAINS.search(text):
        return stop.offset, "contains is negated as !(KEY contains VALUE)"
    return stop.offset, "&& or || is missing before this; quote a value that has such characters"


_NOT_CONTAINS = re.compile(r"(?:!|\bnot)\s*contains\b")
_QUOTE_THESE = frozenset('=<>"!')


def _open_items(stop: Stop) -> list[Any]:
    """Return the stack up to the comparison being read, whose value may contain (, without a closed group."""
    operator = next((at for at, item in enumerate(stop.stack) if terminal(item) == "OPERATOR"), len(stop.stack))
    items = list(stop.stack[:operator])
    # A group that is closed but not yet combined is the last three items: ( X ).
    return items[:-3] if items and terminal(items[-1]) == "RPAR" else items


# ---- stylesheets -----------------------------------------------------------------------------------------------------


def explain_stylesheet(text: str, error: UnexpectedInput, properties: Mapping[str, str]) -> Explanation:
    """Return the offset and the message for Lark's `error` on a stylesheet; `properties` maps short names to long."""
    stop = stop_of(text, error)
    found = repr(stop.here[:20].split("\n")[0]) if not stop.is_at_end else "the end"
    last = str(stop.last)
    if _is_comment(stop):
        return stop.offset, "this comment is never closed; end it with */"
    if "SELECTOR" in stop.expected:
        return stop.offset, f"{found} is not a selector; write *, a shape, .class or #node"
    if "LBRACE" in stop.expected:
        return stop.offset, f"{found} after the selector {last}; write one selector, then {{ ... }}"
    if "NAME" in stop.expected:
        if stop.is_at_end:
            return stop.offset, "this rule is never closed; end it with }"
        return stop.offset, unknown_property(found, properties)
    if terminal(stop.last) == "NAME":
        if last not in properties:
            return stop.last.start_pos, unknown_property(last, properties)
        return stop.offset, f"a : is missing after {last}"
    if "BARE" in stop.expected:
        return stop.offset, f"{stop.stack[-2]} has no value"
    return stop.offset, "a ; or } is missing here (quote a value with spaces)"


def unknown_property(name: str, properties: Mapping[str, str]) -> str:
    return f"{name} cannot be set here; use {', '.join(dict.fromkeys(properties.values()))}"
