"""Random texts for the parser, and what must be true of each: a graph, or one DialectError with its place.

    .venv/bin/python tests/dialect_fuzzer.py [--seconds 300] [--seed N]

Texts are soups of fragments, damaged graphs, and fragments repeated ten thousand times. The same text is read with the
short way for plain texts and by the grammar alone, and both must say the same.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
import sys
import time

from garrison.errors import GarrisonError
from garrison.pipeline import parser
from garrison.pipeline.flow.program import compile_graph
from garrison.pipeline.graph import DialectError, Graph, position
from garrison.pipeline.lint import errors, lint
from garrison.pipeline.parser import build
from garrison.pipeline.transforms import prepare

FRAGMENTS = (
    "digraph", "strict", "graph", "subgraph", "node", "edge", "{", "}", "[", "]", "=", ",", ";", "->", "--", "+", ":",
    "a", "b", "start", "exit", "x.y", "my-id", "Größe", '"q"', '"a b"', '"\\""', '"\\n"', '"', "'", "<", ">", "0",
    "1.5", "-3", "900s", "label", "shape=box", "shape=Mdiamond", "shape=Msquare", "shape=component", "shape=diamond",
    'condition="outcome=success"', 'condition="context.n<3"', 'condition="("', "weight=2", "timeout=5", "flow=dag",
    'x="y"', 'x = "y" ,', "x=y;", 'x="a" + "b"', 'model_stylesheet="* { llm_model: m }"', "prompt=$goal", " ", "  ",
    "\n", "\t", "\r\n", "// c\n", "# c\n", "/* c */", "/*", "*/", "\\", "\0", "\u2028", "�", "$", "@", "a -> b",
    "a [label=A]", "b [type=tool]", "start -> a -> exit", "node [shape=hexagon]", 'subgraph { label="L"', "{a b}",
)
GRAPH = """digraph g {
    graph [goal="Make it", flow=walk]; rankdir=LR
    node [shape=box, timeout=15m] // all
    start [shape=Mdiamond]; exit [shape=Msquare] /* the end */
    plan [label="Plan", prompt="Plan $goal", class="fast"]
    "two-words" [shape=diamond label=Check];
    subgraph cluster_a { label = "Loop A"; work [max_retries=3, x.y="1" + "2"] }
    start -> plan -> work -> "two-words"
    "two-words" -> exit [condition="outcome=success && context.n >= 3", weight=10]
    "two-words" -> work [condition="outcome!=success"]
}
"""
LONG = ("a ", "a;", "a -> ", "{", "[", '"x" + ', "/* c */ ", "// c\n", " \n", "x=1 ", "[x=1]", '[x="y", z=w]',
        "a [x=1] ", "-", ".", "\\", '"', '\\"', "a-", "subgraph {", "x=", "=", "(", "#", "/*", "é", "a.b ", '"a" = ')
"""Fragments to repeat; none may cost more than in proportion to its length."""


def plainly(text: str) -> Graph | tuple[int, int, str]:
    """Return what the grammar alone, without the short way for plain texts, makes of a text."""
    try:
        return build(*parser.read_by_grammar(text.removeprefix("\ufeff"), "<graph>"), "<graph>")
    except DialectError as error:
        return error.line, error.column, error.message


def places(graph: Graph) -> list[tuple[int, int]]:
    """Return the place of each attribute's value."""
    owners = [graph.attrs, *(node.attrs for node in graph.nodes.values()), *(edge.attrs for edge in graph.edges)]
    return [position(value) for attrs in owners for value in attrs.values()]


def check(text: str) -> bool:
    """Return whether `text` is a graph; AssertionError for any error that parser, lint or compiler must not raise."""
    try:
        graph = parser.parse(text)
    except DialectError as error:
        lines = text.count("\n") + 1
        assert 1 <= error.line <= lines, (error, text)
        assert 1 <= error.column <= max(map(len, text.split("\n"))) + 2, (error, text)
        assert str(error).startswith(f"<graph>:{error.line}:{error.column}: "), (error, text)
        assert "\n" not in str(error), (error, text)
        said = plainly(text)
        assert isinstance(said, tuple), (error, text)
        assert said[:2] == (error.line, error.column), (said, error, text)
        return False
    plain = plainly(text)
    assert isinstance(plain, Graph), (plain, text)
    assert plain == graph, text
    assert places(plain) == places(graph), text
    found = lint(graph)
    assert all(one.message and "\n" not in str(one) for one in found), (found, text)
    try:
        compile_graph(prepare(graph))
    except GarrisonError as error:
        assert errors(found), (error, text)
    return True


def soup(random_: random.Random) -> str:
    """Return fragments in any order, mostly within a graph."""
    body = random_.choice(("", " ")).join(random_.choices(FRAGMENTS, k=random_.randrange(1, 25)))
    return random_.choice(("{}", "digraph {{ {} }}", "digraph {{ {} }}", "digraph g {{ a [{}] }}")).format(body)


def damaged(random_: random.Random) -> str:
    """Return a valid graph with some characters or fragments inserted, removed or doubled."""
    text = GRAPH
    for _ in range(random_.randrange(1, 5)):
        at = random_.randrange(len(text))
        to = min(len(text), at + random_.randrange(0, 12))
        put = random_.choice(("", random_.choice(FRAGMENTS), text[at:to] * 2))
        text = text[:at] + put + text[to:]
    return text


def cost(fragment: str, count: int) -> float:
    """Return the CPU seconds for a graph whose body is `count` of a fragment, without garbage collection."""
    text = "digraph { " + fragment * count + " }"
    gc.disable()
    try:
        began = time.process_time()
        with contextlib.suppress(DialectError):
            parser.parse(text)
        return time.process_time() - began
    finally:
        gc.enable()


def fuzz(seconds: float, seed: int) -> tuple[int, int]:
    """Check texts for that long; return how many there were, and how many of them were graphs."""
    random_ = random.Random(seed)
    end = time.monotonic() + seconds
    texts = graphs = 0
    while time.monotonic() < end:
        graphs += check(random_.choice((soup, damaged))(random_))
        texts += 1
    return texts, graphs


def main() -> None:
    """Fuzz and print the result."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seconds", type=float, default=300)
    options.add_argument("--seed", type=int, default=None)
    given = options.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    sys.stdout.write(f"seed {seed}\n")
    for fragment in LONG:
        one, ten = max(cost(fragment, 2_000), 0.002), cost(fragment, 20_000)
        sys.stdout.write(f"{fragment!r:16} x 20,000: {ten:6.3f} s, {ten / one:5.1f} times that of 2,000\n")
    texts, graphs = fuzz(given.seconds, seed)
    sys.stdout.write(f"{texts} texts in {given.seconds:g} s, {graphs} of them graphs; nothing but DialectError\n")


if __name__ == "__main__":
    main()
