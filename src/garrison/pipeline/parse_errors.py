"""The words for what the grammar refuses: where it stands, what is wrong, what to do. Pure.

The rule of this room: the grammar decides what is refused, this only explains it, from the text around the place where
the grammar stopped. A refusal that nothing here knows still gets its place and what could have stood there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from garrison.pipeline.graph import Value

if TYPE_CHECKING:
    from lark import UnexpectedInput

_NAMES = {
    "DIGRAPH": "digraph", "SUBGRAPH": "a subgraph", "GRAPH": "graph", "NODE": "node", "EDGE": "edge",
    "NAME": "a name", "DOTTED": "a dotted key", "STRING": "a quoted string", "BARE": "a word or number",
    "_ARROW": "->", "EQUAL": "=", "COMMA": ",", "SEMICOLON": ";", "PLUS": "+", "_PLUS": "+",
    "LBRACE": "{", "RBRACE": "}", "LSQB": "[", "RSQB": "]", "$END": "the end",
}
_WORD = re.compile(r"[^\W\d]\w*")


class _Stop(NamedTuple):
    """Where the grammar stopped: the text, the offset, what could have stood there, and what stood before."""

    text: str
    at: int
    could: frozenset[str]
    last: Any
    inside: str
    key: bool

    @property
    def here(self) -> str:
        return self.text[self.at:self.at + 80]

    @property
    def word(self) -> str:
        match = _WORD.match(self.text, self.at)
        return match[0].lower() if match else ""

    @property
    def before(self) -> str:
        return self.text[self.at - 1:self.at]

    @property
    def ended(self) -> bool:
        return self.at >= len(self.text)


_Answer = tuple[int, str] | None


def explain(text: str, error: UnexpectedInput) -> tuple[int, int, str]:
    """Line and column (from 1) and the words for Lark's `error` on `text`."""
    stop = _stop(text, error)
    at, message = next(answer for rule in _RULES if (answer := rule(stop)) is not None)
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at), message


def _stop(text: str, error: Any) -> _Stop:
    token = getattr(error, "token", None)
    at = error.pos_in_stream if token is None else len(text) if token.type == "$END" else token.start_pos
    could = getattr(error, "allowed", None) or getattr(error, "expected", None) or ()
    stack = getattr(getattr(error, "state", None), "value_stack", None) or []
    inside = next((item.type for item in reversed(stack) if getattr(item, "type", "") in ("LSQB", "LBRACE")), "")
    last, earlier = ([None, None, *stack])[:-3:-1]
    named = isinstance(last, Value) or getattr(last, "type", "") in ("NAME", "DOTTED", "STRING")
    key = named and getattr(earlier, "type", "") != "EQUAL"
    return _Stop(text, at, frozenset(could) - {"PAIR"}, last, inside, key)


# ---- one rule a refusal, tried from the first to the last --------------------------------------------------------


def _before_the_graph(stop: _Stop) -> _Answer:
    if stop.could != {"DIGRAPH"}:
        return None
    if stop.word == "strict":
        return stop.at, "strict is not part of the dialect; remove the word"
    if stop.word == "graph":
        return stop.at, "an undirected graph; write digraph, and -> between nodes"
    if stop.ended:
        return stop.at, "there is no graph in this text; write digraph NAME { ... }"
    if _is_comment(stop):
        return None
    return stop.at, f"{_found(stop)} before the graph; begin with digraph NAME {{"


def _after_the_graph(stop: _Stop) -> _Answer:
    if stop.could != {"$END"} or _is_comment(stop):
        return None
    if stop.word in ("digraph", "graph", "strict"):
        return stop.at, "a second graph; put each graph in a file of its own"
    return stop.at, f"{_found(stop)} after the end of the graph; remove it"


def _unclosed_text(stop: _Stop) -> _Answer:
    if _is_comment(stop):
        return stop.at, "this comment is never closed; end it with */"
    if stop.here.startswith('"') and not re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL).match(stop.text, stop.at):
        return stop.at, 'this string is never closed; end it with " and write \\" for a quote within'
    return None


def _unclosed(stop: _Stop) -> _Answer:
    if stop.ended:
        what = "attribute list is never closed; end it with ]" if stop.inside == "LSQB" \
            else "graph is never closed; end it with }"
        return stop.at, f"the text ends here, but the {what}"
    return None


def _html(stop: _Stop) -> _Answer:
    if stop.here.startswith("<") and "STRING" in stop.could:
        return stop.at, "HTML values are not part of the dialect; write the text in quotes"
    return None


def _undirected_edge(stop: _Stop) -> _Answer:
    if stop.here.startswith("--"):
        return stop.at, "-- is an undirected edge; write ->"
    return None


def _dashed_id(stop: _Stop) -> _Answer:
    if not (stop.here.startswith("-") and re.match(r"\w", stop.before)) or "BARE" in stop.could:
        return None
    match = re.compile(r"(?<!\w)[\w.]+(?:-[\w.-]+)*").search(stop.text, _start_of_word(stop))
    word = match[0].rstrip("-.") if match else ""
    return _start_of_word(stop), f'{word} has a - and is not quoted; write "{word}" or use _'


def _port(stop: _Stop) -> _Answer:
    if stop.here.startswith(":") and stop.inside != "LSQB":
        return stop.at, "ports are not part of the dialect; remove the : and what follows it"
    return None


def _bare_attribute(stop: _Stop) -> _Answer:
    if not stop.key or stop.inside != "LSQB" or not re.match(r"[,;\]].|.\s", stop.here[:1] + stop.before, re.DOTALL):
        return None
    word = str(stop.last).strip('"')[:40]
    return _place_of(stop), f"attribute {word} has no value; write {word}=true"


def _dotted_id(stop: _Stop) -> _Answer:
    if getattr(stop.last, "type", "") != "DOTTED":
        return None
    return _place_of(stop), f'{stop.last!s:.40} is no id without quotes; write "{stop.last!s:.40}" or use _'


def _missing_value(stop: _Stop) -> _Answer:
    if not stop.could or not stop.could <= {"BARE", "STRING"}:
        return None
    if stop.ended:
        return _place_of(stop), "no value follows, and # and // begin a comment; write the value in quotes"
    return stop.at, f"{_found(stop)} where a value should stand; write the value in quotes"


def _unquoted_value(stop: _Stop) -> _Answer:
    if getattr(stop.last, "type", "") != "BARE" or stop.last.end_pos != stop.at:
        return None
    match = re.compile(r"[^\s,;\]]+").match(stop.text, stop.last.start_pos)
    whole = match[0][:40] if match else "..."
    return _place_of(stop), f'{_found(stop)} cannot stand in a value without quotes; write "{whole}"'


def _comma_between_statements(stop: _Stop) -> _Answer:
    if stop.here.startswith(",") and stop.inside != "LSQB":
        return stop.at, "a comma between statements; write ; or a new line"
    return None


def _numbered_id(stop: _Stop) -> _Answer:
    match = re.compile(r"\d[\w.]*").match(stop.text, stop.at)
    if match and "NAME" in stop.could:
        return stop.at, f'an id cannot start with a digit; write "{match[0]}" or begin with a letter or _'
    return None


def _anything(stop: _Stop) -> _Answer:
    could = sorted(_NAMES.get(name, name) for name in stop.could)
    hint = f"write {' or '.join(could)} here" if 0 < len(could) <= 4 else "see what stands before it, and quote texts"
    return stop.at, f"{_found(stop)} does not fit here; {hint}"


_RULES: tuple[Callable[[_Stop], _Answer], ...] = (
    _before_the_graph, _after_the_graph, _unclosed_text, _html, _missing_value, _unclosed, _unquoted_value,
    _undirected_edge, _dashed_id, _port, _bare_attribute, _dotted_id, _comma_between_statements, _numbered_id,
    _anything,
)


def _is_comment(stop: _Stop) -> bool:
    return stop.here.startswith("/*")


def _found(stop: _Stop) -> str:
    """What stands at the stop, short enough for one line."""
    match = re.compile(r'"[^"\n]{0,30}"?|[\w.]+|->|\S').match(stop.text, stop.at)
    return "the end of the text" if match is None else match[0][:40]


def _start_of_word(stop: _Stop) -> int:
    at = stop.at
    while at and re.match(r"[\w.]", stop.text[at - 1]):
        at -= 1
    return at


def _place_of(stop: _Stop) -> int:
    """The offset of the last token or string that was read."""
    if not isinstance(stop.last, Value):
        return int(stop.last.start_pos)
    at = 0
    for _ in range(stop.last.line - 1):
        at = stop.text.index("\n", at) + 1
    return at + stop.last.column - 1
