"""The rule on context keys: a condition asks for a key that somebody writes.

A key is known when a handler of this graph writes it. It may be known when the graph or a node declares it (`inputs`,
`vars`, `output_key`, ...), when a text of the graph names it, so that an agent was told of it, when a prompt stands in
another file (`@FILE`), and when a handler is not the dialect's own: then only a slip is reported for which the right
key is at hand, the same one under its prefix, by our name, or spelled nearly so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import lru_cache

from garrison.pipeline.condition import ConditionSyntax, keys_of
from garrison.pipeline.context_keys import ANYTHING, ENGINE, KNOWN_AS, SESSION_STATE, WRITTEN
from garrison.pipeline.graph import known_handler, place
from garrison.pipeline.lint.finding import WARNING, Found, Rules, View, condition_of

_WORD = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*", re.ASCII)
_NOT_TEXT = frozenset({"label", "shape", "style", "class", "color", "fillcolor", "condition"})


def context_key_unknown(view: View) -> Iterator[Found]:
    """A condition's keys are written by somebody."""
    asked = [edge for edge in view.graph.edges if condition_of(edge)]
    if not asked:
        return
    known = _known(view)
    mentioned = _mentioned(view)
    agents = not ANYTHING.isdisjoint(view.handler.values())
    silent = _may_be_told(view)
    for edge in asked:
        condition = view.conditions[condition_of(edge)]
        if isinstance(condition, ConditionSyntax):
            continue
        for key in keys_of(condition):
            bare = key.removeprefix("context.")
            if key in ("outcome", "preferred_label") or _is_known(bare, known):
                continue
            right = _probably(bare, known)
            told = silent or bare in mentioned or (agents and bare.rpartition(".")[2] in mentioned)
            if right is None and told:
                continue
            yield Found(f"{edge}: nothing in this graph writes {key}" + (" or speaks of it" if agents else ""),
                        _fix(view, key, right, agents), edge, *place(edge.attrs["condition"]))


def _fix(view: View, key: str, right: str | None, agents: bool) -> str:
    if right is not None:
        return f"write context.{right}"
    writer = next((handler for handler, keys in WRITTEN.items() if _is_known(key.removeprefix("context."), keys)), None)
    if writer is not None and writer not in view.handler.values():
        return f"a {writer} node would write it; add one, or ask for another key"
    told = "tell the agent of a node before to set it, " if agents else ""
    return f"{told}name it in inputs= if the run begins with it, or correct the key"


def _may_be_told(view: View) -> bool:
    """Whether somebody may write keys whom this text says nothing of."""
    return any(not known_handler(handler) for handler in set(view.handler.values())) or any(
        node.attrs.get("prompt", "").startswith("@") for node in view.graph.nodes.values())


def _known(view: View) -> frozenset[str]:
    """The keys (and beginnings of keys) that somebody writes in a run of this graph."""
    handlers = set(view.handler.values())
    known = {key for writer in (ENGINE, *handlers) for key in WRITTEN.get(writer, ())}
    if any(handler.startswith("session.") for handler in handlers):
        known.update(SESSION_STATE)
    return frozenset(known)


def _is_known(key: str, known: Iterable[str]) -> bool:
    return any(key == one or (one.endswith(".") and key.startswith(one)) or key.startswith(f"{one}.") for one in known)


def _mentioned(view: View) -> frozenset[str]:
    """Every word, and every key with dots, that stands in a text of the graph that is not a condition or a drawing."""
    words: set[str] = set()
    for attrs in (view.graph.attrs, *(node.attrs for node in view.graph.nodes.values())):
        for key, value in attrs.items():
            if key not in _NOT_TEXT:
                words.update(_WORD.findall(value))
    words.update(word.removeprefix("context.") for word in list(words))
    words.update(part for word in list(words) for part in word.split("."))
    return frozenset(words)


@lru_cache(maxsize=256)
def _probably(key: str, known: frozenset[str]) -> str | None:
    """The known key that was probably meant: under its prefix, by another engine's name, or spelled nearly so."""
    if (ours := KNOWN_AS.get(key)) in known or ours == "outcome":
        return ours
    exact = sorted(one for one in known if one.endswith(f".{key}"))
    if exact:
        return exact[0]
    near = get_close_matches(key, [one for one in known if not one.endswith(".")], 1, 0.85)
    return near[0] if near else None


RULES: Rules = {"context_key_unknown": (WARNING, context_key_unknown)}
