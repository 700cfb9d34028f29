"""docs/architecture.md is true: every module and function it names exists; docs/generated/states.md matches the code.

So are the names in comments and docstrings of the source: a reader follows `room.module.function` and `room/module.py`
from one file to the next, and a rename would leave them behind.

The pages name code as `room/module.py` (below src/garrison, or from the checkout's root), then the functions of that
module as `function()`, `Class.method()` or `Class` in the same paragraph or list item.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
PAGE, STATES = ROOT / "docs/architecture.md", ROOT / "docs/generated/states.md"
SOURCE = ROOT / "src/garrison"
_CODE = re.compile(r"`(?P<path>[\w./-]+\.py)`|`(?P<function>[\w.]+)\(\)`|`(?P<class>[A-Z][a-z]\w*)`")

_PATH = re.compile(r"(?<![\w./~-])([a-z_]+(?:/[a-z_]+)+\.py)\b")
_DOTTED = re.compile(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)+)(?:\(\))?`")
_ELSEWHERE = frozenset({"path/to/file.py", "wheels/unpack.py"})
"""Paths in texts that are not our modules: an example, and a file on a host."""
_SUFFIXES = frozenset({"css", "dot", "html", "ini", "js", "json", "jsonl", "lark", "lock", "md", "py", "sh", "toml",
                       "txt"})


def paragraphs(text: str) -> list[str]:
    """Split a page into paragraphs, list items and rows of tables."""
    return re.split(r"\n\s*\n|\n(?=\s*(?:\d+\.|[-*|]) ?)", text)


def find_missing(text: str) -> list[str]:
    """Return the names in a text that the checkout does not have."""
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
    assert find_missing(page.read_text(encoding="utf-8")) == []


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


def test_the_tables_match_the_code_and_one_that_differs_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts/reference.py")
    assert spec and spec.loader
    generator = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reference", generator)
    spec.loader.exec_module(generator)
    text = STATES.read_text(encoding="utf-8")
    assert generator.states(text) == text, "run scripts/reference.py"
    assert set(re.findall(r"<!-- table: (.+?) -->", text)) == set(generator.TABLES)
    assert generator.states(text.replace("| `planning` | `executing` |", "| `planning` | `merged` |")) == text
    assert "`planning` | `merged`" not in text


# ---- code named in the source -------------------------------------------------------------------------------------


@cache
def words_of(path: Path) -> frozenset[str]:
    """Return every name that a module defines or uses."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", path.read_text()))


def find_module(parts: Sequence[str], folder: Path) -> tuple[Path, Sequence[str]] | None:
    """Return the module at the start of a dotted name, below a folder, and the rest of the name."""
    for end in range(len(parts), 0, -1):
        path = folder.joinpath(*parts[:end])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py"), parts[end:]
        if (path / "__init__.py").is_file():
            return path / "__init__.py", parts[end:]
    return None


def find_unknown(text: str, file: Path) -> list[str]:
    """Return the names in a text of a file that the checkout does not have.

    A dotted name counts as ours if its first part is a room or has an underscore, which keys of contexts and names of
    files rarely have. It may be relative to any folder above the file.
    """
    folders = [folder for folder in file.parents if folder.is_relative_to(SOURCE)] or [SOURCE]
    missing = [path for path in _PATH.findall(text) if path not in _ELSEWHERE
               and not any((folder / path).is_file() for folder in (*folders, ROOT, ROOT / "src"))]
    for name in _DOTTED.findall(text):
        parts = name.removeprefix("garrison.").split(".")
        is_room = (SOURCE / parts[0] / "__init__.py").is_file() and parts[0] not in ("session", "pipeline")
        if len(parts) == 1 or parts[-1] in _SUFFIXES or not (is_room or ("_" in parts[0] and parts[0].islower())):
            continue
        places = [place for folder in folders if (place := find_module(parts, folder)) is not None]
        if not any(all(word in words_of(path) for word in rest) for path, rest in places):
            missing.append(name)
    return missing


@pytest.mark.parametrize("text, missing", [
    ("see `merge.queue.MergeQueue` and merge/queue.py", []),
    ("see `merge.queue.NoSuchClass`", ["merge.queue.NoSuchClass"]),
    ("see merge/no_such.py", ["merge/no_such.py"]),
    ("see `flow_policy.no_such`", ["flow_policy.no_such"]),
    ("in `under_way.json`, as `context.tests` says", [])])
def test_unknown_code_is_found(text: str, missing: list[str]) -> None:
    assert find_unknown(text, SOURCE / "run/guardian.py") == missing


def test_code_that_comments_and_docstrings_name_exists() -> None:
    missing = {f"{path.relative_to(ROOT)}:{line}": names for path in sorted(SOURCE.rglob("*.py"))
               for line, text in enumerate(path.read_text().splitlines(), start=1)
               if ("`" in text or ".py" in text) and (names := find_unknown(text, path))}
    assert missing == {}
