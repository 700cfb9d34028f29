"""Figures of the pages: taken from the programs' rows, written between markers, kept if nothing was measured."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import all_figures  # noqa: E402
from figures import BLOCKS, README, Block, replaced  # noqa: E402

OLD = ("\nMeasured last year.\n\n| | garrison | others | command |\n|---|---|---|---|\n"
       "| landing with an empty gate | 29 ms | agcoord 308 | `benchmarks/merge_queue.py` |\n")
ROWS = {"supervision": [
    {"row": "mechanism", "what": f"kill -9 of a trivial child → successor: {name}", "median_ms": median}
    for name, median in (("garrison", 7.84), ("runit", 3.5), ("pm2", 6.94), ("supervisord", 1008.4))]}


def test_figures_are_rounded_a_missing_peer_is_left_out_and_a_line_that_was_not_measured_stays() -> None:
    text, kept = README.render(ROWS, "Measured here.", OLD)
    assert ("| `kill -9` of a trivial child → its successor | 7.8 ms | runit 3.5, pm2 6.9, supervisord 1,008 "
            "| `benchmarks/supervision.py` |") in text.splitlines()
    assert text.startswith("\nMeasured here. Each row names its command;")
    assert "landing with an empty gate" in kept
    assert "| landing with an empty gate | 29 ms | agcoord 308 | `benchmarks/merge_queue.py` |" in text.splitlines()
    assert "Measured earlier: landing with an empty gate" in text
    text, kept = README.render({}, "Measured here.", OLD)
    assert text == OLD
    assert len(kept) == len(README.lines)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_every_page_has_its_block_with_all_lines(block: Block) -> None:
    seen = []

    def inner(old: str) -> str:
        seen.append(old)
        return old

    text = (ROOT / block.page).read_text()
    assert replaced(text, block.name, inner) == text
    missing = [line.label for line in block.lines
               if not any(row.startswith(f"| {line.label} |") for row in seen[0].splitlines())]
    assert not missing


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_each_cell_has_as_many_places_as_figures(block: Block) -> None:
    for line in block.lines:
        assert sum(cell.count("{}") for cell in line.cells) == len(line.figures), line.label
        assert {figure.program for figure in line.figures} <= {one.name for one in all_figures.PROGRAMS}


def test_every_program_exists_and_an_unknown_one_is_refused_in_one_line() -> None:
    assert [one.name for one in all_figures.PROGRAMS if not (ROOT / f"benchmarks/{one.name}.py").is_file()] == []
    done = subprocess.run([sys.executable, ROOT / "benchmarks/all_figures.py", "--only", "nothing"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such program: nothing; there are supervision, merge_queue," in done.stderr


@pytest.mark.parametrize(("load", "flag", "code"), [(0.1, False, True), (3.0, False, False), (3.0, True, True)])
def test_only_a_quiet_machine_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load: float, flag: bool,
                                          code: bool) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(sys, "argv", ["all", "--wait", "0", "--state", str(tmp_path), *(["--loaded"] if flag else [])])
    session = all_figures.Session(all_figures.arguments(), tmp_path)
    assert all_figures.wait_until_quiet(session) is code
    assert bool(session.notes) is flag


def test_a_program_that_fails_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["all", "--loaded", "--no-fetch", "--state", str(tmp_path)])
    session = all_figures.Session(all_figures.arguments(), tmp_path)
    broken = all_figures.Program("merge_queue", ("--rows", "none"), 30)
    all_figures.measure(session, [broken])
    assert session.rows == {}
    assert len(session.notes) == 1
    assert "merge_queue: it ended with 2: " in session.notes[0]
    assert "no such row: none" in session.notes[0]


def find_module(name: str) -> ModuleType | None:
    """Return a module that is not loaded yet; None if there is none of that name."""
    with suppress(ModuleNotFoundError):  # what is before it in the name is no package
        if importlib.util.find_spec(name):
            return importlib.import_module(name)
    return None


def test_benchmarks_name_only_existing_objects() -> None:
    """Seen: a function was removed, which only a run of the benchmark showed."""
    gone = []
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        modules = {}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "garrison":
                source = importlib.import_module(str(node.module))
                for alias in node.names:
                    found = getattr(source, alias.name, None) or find_module(f"{node.module}.{alias.name}")
                    gone += [f"{path.name}: {node.module}.{alias.name}"] if found is None else []
                    if isinstance(found, ModuleType):
                        modules[alias.asname or alias.name] = found
        gone += [f"{path.name}: {node.value.id}.{node.attr}" for node in nodes
                 if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                 and node.value.id in modules and not hasattr(modules[node.value.id], node.attr)]
    assert gone == []
