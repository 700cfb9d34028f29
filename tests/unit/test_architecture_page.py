"""docs/architecture.md is true: every module and function it names exists; docs/generated/states.md is as the code.

The pages name code as `room/module.py` (below src/garrison, or from the checkout's root), then the functions of that
module as `function()`, `Class.method()` or `Class` in the same paragraph or list item.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE, STATES = ROOT / "docs/architecture.md", ROOT / "docs/generated/states.md"
SOURCE = ROOT / "src/garrison"
_CODE = re.compile(r"`(?P<path>[\w./-]+\.py)`|`(?P<function>[\w.]+)\(\)`|`(?P<class>[A-Z][a-z]\w*)`")


def paragraphs(text: str) -> list[str]:
    """Split a page into paragraphs, list items and rows of tables."""
    return re.split(r"\n\s*\n|\n(?=\s*(?:\d+\.|[-*|]) ?)", text)


def find_missing(text: str) -> list[str]:
    """Return what a text names and the checkout does not have."""
    missing = []
    for paragraph in paragraphs(text):
        path: Path | None = None
        for match in _CODE.finditer(paragraph):
            if match["path"]:
                path = next((root / match["path"] for root in (SOURCE, ROOT) if (root / match["path"]).is_file()), None)
                if path is None:
                    missing.append(match["path"])
            elif path is None and match["function"]:
                missing.append(f"{match['function']}(): no module is named before it in its paragraph")
            elif path is not None and (match["function"] or match["class"]) not in definitions(path):
                missing.append(f"{match[0].strip('`')} in {path.relative_to(ROOT)}")
    return missing


def definitions(path: Path) -> set[str]:
    """Return the functions, classes and methods of a module, as `function`, `Class` and `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body
                      if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return names


@pytest.mark.parametrize("page", [PAGE, STATES], ids=lambda page: page.name)
def test_every_module_and_function_on_the_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert find_missing(text) == []


@pytest.mark.parametrize(("text", "missing"), [
    ("`supervise/restart.py`: `apply_policy()`", []),
    ("`records/hook.py` `Hook.key()` and `scripts/cli.py`", []),
    ("`supervise/no_such.py`", ["supervise/no_such.py"]),
    ("`supervise/restart.py`: `no_such()`", ["no_such() in src/garrison/supervise/restart.py"]),
    ("`supervise/restart.py`\n\n`apply_policy()`", ["apply_policy(): no module is named before it in its paragraph"]),
    ("1. `supervise/restart.py`\n2. `judge()`", ["judge(): no module is named before it in its paragraph"]),
    ("`records/hook.py`: `Hook.no_such()`", ["Hook.no_such() in src/garrison/records/hook.py"]),
    ("`records/hook.py`: `Hook`, `NoSuch`", ["NoSuch in src/garrison/records/hook.py"]),
])
def test_names_that_do_not_exist_are_found(text: str, missing: list[str]) -> None:
    assert find_missing(text) == missing


def test_the_table_of_rooms_has_every_room() -> None:
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    table = PAGE.read_text(encoding="utf-8").partition("## Rooms")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)/`", table, re.MULTILINE)) == rooms


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/reference.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts/reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reference", module)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_code(generator: ModuleType) -> None:
    text = STATES.read_text(encoding="utf-8")
    assert generator.states(text) == text, "run scripts/reference.py"
    assert set(re.findall(r"<!-- table: (.+?) -->", text)) == set(generator.TABLES)


def test_a_table_that_differs_is_written_again(generator: ModuleType) -> None:
    text = STATES.read_text(encoding="utf-8")
    assert generator.states(text.replace("| `planning` | `executing` |", "| `planning` | `merged` |")) == text
    assert "`planning` | `merged`" not in text
