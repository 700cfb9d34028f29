"""Add the return types that the syntax tree gives away: None, bool, str and int, in every module of the project.

Usage: annotate_returns.py [--check]   (--check only lists what is left, exit code 1 if there is something)
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from steps import Rewrite, Step, run

Function = ast.FunctionDef | ast.AsyncFunctionDef
CALLS = {"any": "bool", "all": "bool", "isinstance": "bool", "bool": "bool", "str": "str", "repr": "str", "len": "int"}


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """All nodes of a function's body but those of functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def type_of(value: ast.expr) -> str | None:
    """The type of an expression if its shape alone tells it."""
    match value:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return "bool"
        case ast.JoinedStr() | ast.Call(func=ast.Attribute(value=ast.Constant(value=str()), attr="join" | "format")):
            return "str"
        case ast.Call(func=ast.Name(id=name)):
            return CALLS.get(name)
        case ast.Constant(value=constant) if type(constant) in (bool, str, int):
            return type(constant).__name__
        case ast.BoolOp(values=parts):
            return common([type_of(part) for part in parts])
        case ast.IfExp(body=one, orelse=other):
            return common([type_of(one), type_of(other)])
    return None


def common(types: list[str | None]) -> str | None:
    """The one type of all, if there is one."""
    return types[0] if len(set(types)) == 1 else None


def return_type(function: Function) -> str | None:
    """What to annotate a function with, or None if the tree does not tell or it is annotated."""
    nodes = list(own_nodes(function))
    if function.returns is not None or any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes):
        return None
    values = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    last = function.body[-1]
    if not values:
        return None if isinstance(last, ast.Raise) else "None"
    if not isinstance(last, ast.Return):
        return None
    return common([type_of(value) for value in values])


def open_functions(text: str) -> dict[tuple[int, int], tuple[str, str]]:
    """Functions that can be annotated: (line, column) → (name, type)."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function) and (kind := return_type(node)):
            found[node.lineno, node.col_offset] = (node.name, kind)
    return found


def annotate(text: str) -> str:
    """The module with annotations added; nothing else changes, not even white space."""
    lines = text.splitlines(keepends=True)
    wanted = open_functions(text)
    kind, depth = None, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.start in wanted:
            _, kind = wanted[token.start]
            depth = 0
        elif kind and token.string in "([{" and token.type == tokenize.OP:
            depth += 1
        elif kind and token.string in ")]}" and token.type == tokenize.OP:
            depth -= 1
        elif kind and token.string == ":" and depth == 0:
            row, column = token.start
            line = lines[row - 1]
            lines[row - 1] = f"{line[:column]} -> {kind}{line[column:]}"
            kind = None
    return "".join(lines)


def modules() -> list[Path]:
    """Every module of the project, in a fixed order."""
    return sorted([*Path("ledger").glob("*.py"), *Path("tests").glob("*.py")])


def main(arguments: list[str]) -> int:
    """Check or change all modules."""
    left = {str(path): open_functions(path.read_text(encoding="utf-8")) for path in modules()}
    if arguments == ["--check"]:
        for path, functions in left.items():
            for (line, _), (name, kind) in sorted(functions.items()):
                print(f"{path}:{line}: {name} returns {kind} but does not say so")
        return 1 if any(left.values()) else 0
    steps = [Step(f"Annotate return types in {path}", [Rewrite(path, annotate)]) for path in left]
    return run("annotate_returns", steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
