"""Fault table of docs/proof.md: `python -m tests.proof_table [--check | --see-red [--only TEST]]`.

Without options it writes the table between its markers in docs/proof.md, from `proof_cells.toml`; `--check` fails if
that would change it. `--see-red` breaks the source in a scratch copy as each cell says, runs its test there, and writes
the commit into the cell if the test fails. Exit code 1 if a test that should fail does not.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.planting import Misplanted, Planting, plant_all

ROOT = Path(__file__).resolve().parents[1]
CELLS, PAGE = ROOT / "tests/proof_cells.toml", ROOT / "docs/proof.md"
BEGIN, END = "<!-- fault table: python -m tests.proof_table -->", "<!-- end of the fault table -->"
FAULTS = ("kill", "stop", "signals", "torn and missing files", "ENOSPC", "EIO", "EMFILE", "EAGAIN at fork", "OOM",
          "pid reuse", "clock steps", "reboot", "network cut", "git gc", "foreign pushes", "hostile agent")
COMPONENTS = ("launcher", "guardian", "runner", "orchestrator", "merge processor", "gate", "set-up", "acceptance",
              "tmux server", "sandbox", "proxy", "host")
NOT_SEEN = "not seen red"
SECONDS = 400
"""Seconds for one test, on a loaded machine."""


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    fault: str
    component: str
    promise: str
    test: str
    defect: str = ""
    bugs: tuple[Planting, ...] = ()
    red: str = ""

    @property
    def path(self) -> str:
        """Return the file of its test."""
        return self.test.partition("::")[0]

    @property
    def components(self) -> list[str]:
        """Return the components that one bug and one test hold."""
        return self.component.split(", ")

    @property
    def function(self) -> str:
        """Return the name of its test function."""
        return self.test.rpartition("::")[2].partition("[")[0]


def read_cells(path: Path = CELLS) -> list[Cell]:
    """Return all cells; TypeError if one has another field, KeyError if it lacks one."""
    bodies = tomllib.loads(path.read_text(encoding="utf-8")).get("cell", [])
    return [Cell(**{**body, "bugs": tuple(Planting(**bug) for bug in body.get("bugs", ()))}) for body in bodies]


def render(cells: Sequence[Cell]) -> str:
    """Return the table and the list of its cells in Markdown."""
    numbered: dict[tuple[str, str], list[int]] = {}
    for number, cell in enumerate(cells, 1):
        for component in cell.components:
            numbered.setdefault((cell.fault, component), []).append(number)
    lines = ["| fault | " + " | ".join(COMPONENTS) + " |", "|---" * (len(COMPONENTS) + 1) + "|"]
    for fault in FAULTS:
        row = [", ".join(f"{number}" if cells[number - 1].red else f"{number}?"
                         for number in numbered.get((fault, component), ())) for component in COMPONENTS]
        lines.append(f"| {fault} | " + " | ".join(row) + " |")
    filled, red = len(numbered), sum(bool(cell.red) for cell in cells)
    lines += ["", f"{filled} of {len(FAULTS) * len(COMPONENTS)} cells name a test; {red} of the {len(cells)} tests "
              "were seen to fail. A number with a question mark was not seen red; an empty cell has no test that it "
              "names.",
              "", "| | fault × component | promise | test | seen red |", "|---|---|---|---|---|"]
    for number, cell in enumerate(cells, 1):
        seen = f"`{cell.red}`: {cell.defect}" if cell.red else NOT_SEEN
        lines.append(f"| {number} | {cell.fault} × {cell.component} | {cell.promise} | "
                     f"[`{cell.function}`](../{cell.path}) | {seen} |")
    return "\n".join(lines)


def insert(page: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the page with what stands between the markers replaced; ValueError without the markers."""
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page lacks {begin} or {end}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


# ---- seeing a test fail ----------------------------------------------------------------------------------------------


def copy_tree(target: Path) -> Path:
    """Copy what tests need, with an environment that imports garrison from the copy; return its Python."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    ours = ROOT / ".venv"
    (target / ".venv/bin").mkdir(parents=True)
    shutil.copy2(ours / "pyvenv.cfg", target / ".venv/pyvenv.cfg")
    for program in (ours / "bin").iterdir():
        (target / ".venv/bin" / program.name).symlink_to(program.readlink() if program.is_symlink() else program)
    packages = next((ours / "lib").glob("python3*/site-packages"))
    inside = target / ".venv/lib" / packages.parent.name / "site-packages"
    inside.mkdir(parents=True)
    for entry in packages.iterdir():
        if entry.name != "_garrison.pth":
            (inside / entry.name).symlink_to(entry)
    (inside / "_garrison.pth").write_text(f"{target / 'src'}\n")
    return target / ".venv/bin/python"


def run_test(python: Path, root: Path, test: str) -> tuple[bool, str]:
    """Run one test in a copy; return whether it passed, and the last line of the output."""
    command = [str(python), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", str(SECONDS - 50), test]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=2 * SECONDS,
                          start_new_session=True,
                          env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"})
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return done.returncode == 0, f"exit {done.returncode}: {(lines or [done.stderr[-200:]])[-1]}"


def see_red(cell: Cell, python: Path, root: Path) -> tuple[bool, str]:
    """Return whether the test of a cell fails with its defect in a copy, and what was seen; the copy is mended."""
    before: dict[Path, str] = {}
    try:
        before = plant_all(cell.bugs, root)
        has_passed, said = run_test(python, root, cell.test)
    except Misplanted as error:
        return False, str(error)
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")
    return not has_passed and said.startswith("exit 1:") and " failed" in said, said


def note_red(test: str, component: str, fault: str, commit: str) -> None:
    """Write a commit into a cell of the file."""
    text = CELLS.read_text(encoding="utf-8")
    parts = text.split("[[cell]]\n")
    for index, part in enumerate(parts):
        if f'test = "{test}"' in part and f'component = "{component}"' in part and f'fault = "{fault}"' in part:
            parts[index] = f'{re.sub(r"red = .*", "", part).rstrip()}\nred = "{commit}"\n\n'
    CELLS.write_text("[[cell]]\n".join(parts).rstrip() + "\n", encoding="utf-8")


def see_all(cells: Sequence[Cell]) -> int:
    """See each of these tests fail; return how many did not."""
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.strip()
    green = 0
    with tempfile.TemporaryDirectory(prefix="red-") as folder:
        root = Path(folder).resolve() / "copy"
        python = copy_tree(root)
        for cell in cells:
            is_red, said = see_red(cell, python, root)
            print(f"{'red' if is_red else 'NOT RED':8} {cell.fault} × {cell.component}: {said[:150]}", flush=True)
            green += not is_red
            if is_red:
                note_red(cell.test, cell.component, cell.fault, commit)
    return green


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the table, or see tests fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof_table", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    parser.add_argument("--see-red", action="store_true", help="see each test fail that has a defect and no commit")
    parser.add_argument("--only", metavar="TEXT", help="with --see-red: cells whose fault, component or test has TEXT")
    options = parser.parse_args(arguments)
    cells = read_cells()
    if options.see_red:
        chosen = [cell for cell in cells if cell.bugs and (
            options.only in f"{cell.fault} × {cell.component} {cell.test}" if options.only else not cell.red)]
        return 1 if see_all(chosen) else 0
    page = PAGE.read_text(encoding="utf-8")
    new = insert(page, render(cells))
    if options.check:
        return 0 if new == page else 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
