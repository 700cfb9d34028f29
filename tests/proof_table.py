"""Fault table of docs/generated/faults.md: `python -m tests.proof_table [--check]`.

Without options it writes the table between its markers there, from `proof_cells.toml`; `--check` fails if that would
change it. `tests.proof` breaks the source as each cell says, and writes the commit into the cell if its test fails.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.planting import Planting
from tests.simulator.mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[1]
CELLS, PAGE = ROOT / "tests/proof_cells.toml", ROOT / "docs/generated/faults.md"
BEGIN, END = "<!-- fault table: python -m tests.proof_table -->", "<!-- end of the fault table -->"
FAULTS = ("kill", "stop", "signals", "torn and missing files", "ENOSPC", "EIO", "EMFILE", "EAGAIN at fork", "OOM",
          "pid reuse", "clock steps", "reboot", "network cut", "git gc", "foreign pushes", "hostile agent")
COMPONENTS = ("launcher", "guardian", "runner", "orchestrator", "merge processor", "gate", "set-up", "acceptance",
              "tmux server", "sandbox", "proxy", "host")
NOT_SEEN = "not seen red"


@dataclass(frozen=True)
class Cell:
    fault: str
    component: str
    promise: str
    test: str
    defect: str = ""
    bugs: tuple[Planting, ...] = ()
    mutation: str = ""
    """Bug of the simulator that stands for those of the cell: a seed finds it, as this test plays them."""
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
    planted = {bug.name: bug.plantings for bug in MUTATIONS}
    bodies = tomllib.loads(path.read_text(encoding="utf-8")).get("cell", [])
    return [Cell(**{**body, "bugs": planted[body["mutation"]] if "mutation" in body else tuple(
        Planting(**bug) for bug in body.get("bugs", ()))}) for body in bodies]


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
                     f"[`{cell.function}`](../../{cell.path}) | {seen} |")
    return "\n".join(lines)


def insert(page: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the page with what stands between the markers replaced; ValueError without the markers."""
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page lacks {begin} or {end}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def note_red(cell: Cell, commit: str) -> None:
    """Write into the file at which commit the test of a cell was seen to fail; '' for none."""
    parts = CELLS.read_text(encoding="utf-8").split("[[cell]]\n")
    for index, part in enumerate(parts):
        if f'component = "{cell.component}"' in part and f'fault = "{cell.fault}"' in part and cell.test in part:
            kept = re.sub(r"^red = .*", "", part, flags=re.MULTILINE).rstrip()
            parts[index] = f'{kept}\n' + (f'red = "{commit}"\n' if commit else "") + "\n"
    CELLS.write_text("[[cell]]\n".join(parts).rstrip() + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof_table", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    options = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    new = insert(page, render(read_cells()))
    if options.check:
        return 0 if new == page else 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
