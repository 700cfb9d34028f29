"""Tests use the public door: no private name of the source is imported, read or replaced by them.

A private name is one that begins with an underscore and is defined in src/garrison, or in a module of tests. An object
may use what is its own (`self._x`, `cls._x`), and a module what it defines itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src" / "garrison"
PRIVATE = re.compile(r"(.*\.)?_[a-zA-Z]\w*")
OWN = frozenset({"self", "cls", "super()"})
PUBLIC = frozenset({"_replace", "_asdict", "_fields", "_make"})
"""Names of a NamedTuple, which begin so lest they are fields."""
REPLACERS = frozenset({"setattr", "delattr", "getattr", "object", "patch"})


def is_private(name: str) -> bool:
    return PRIVATE.fullmatch(name) is not None


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a module defines: functions, classes, constants and fields."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) \
                    | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield from [name] if is_private(name) else []


@cache
def names_of_source() -> frozenset[str]:
    return frozenset(name for path in SOURCE.rglob("*.py") for name in defined(ast.parse(path.read_bytes())))


def accesses(text: str) -> Iterator[str]:
    """Yield the lines of a test module that use a private name of another module."""
    tree = ast.parse(text)
    theirs = names_of_source() - set(defined(tree)) - PUBLIC
    foreign = {each.asname or each.name for node in ast.walk(tree) if isinstance(node, ast.Import)
               for each in node.names if not each.name.startswith("garrison")}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=names) if any(is_private(each.name) for each in names):
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Attribute(value=value, attr=name) if name in theirs and ast.unparse(value) not in OWN | foreign:
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args) if name in REPLACERS:
                yield from (f"{node.lineno}: {ast.unparse(node)}" for each in args if isinstance(each, ast.Constant)
                            and is_private(str(each.value)) and str(each.value).rpartition(".")[2] in theirs)


def test_no_test_uses_a_private_name() -> None:
    found = [f"{path.relative_to(TESTS)}:{each}" for path in sorted(TESTS.rglob("*.py"))
             for each in accesses(path.read_text(encoding="utf-8"))]
    assert found == [], "test it by the public door, or give it a public name if it is a concept of its own"


@pytest.mark.parametrize(("text", "count"), [
    ("from garrison.records.atomic import _POLL", 1), ("from forge_driver import _anything", 1),
    ("atomic._POLL", 1), ("made()._home", 1), ("self.work._home", 1), ("self._home; cls._home; super()._home", 0),
    ("import os; os._exit(1)", 0), ("app.screen._compositor", 0), ("made._replace(a=1)", 0),
    ("monkeypatch.setattr(atomic, '_POLL', 1)", 1), ("monkeypatch.setattr('garrison.records.atomic._POLL', 1)", 1),
    ("mock.patch.object(made, '_home')", 1), ("monkeypatch.setattr(atomic, 'POLL', 1)", 0),
    ("def _home(): ...\nmodule._home", 0)])
def test_an_access_to_a_private_name_is_found(text: str, count: int) -> None:
    assert len(list(accesses(text))) == count
