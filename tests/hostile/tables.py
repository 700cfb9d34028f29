"""Tables of docs/security.md, from the data of the cases: `python -m tests.hostile --tables` writes them.

`tests/unit/test_docs_pages.py` fails when page and data differ; the cases themselves verify the data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hostile.aftermath import TRAPS, Trap
from hostile.cases import CASES, Case, Gap, Group

PAGE = Path(__file__).parents[2] / "docs/security.md"
_TABLE = re.compile(r"(<!-- table: (?P<name>[^\n]+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def attacks() -> Iterator[str]:
    """Yield the lines of the table of attacks: how many succeed in each mode."""
    yield "| attacks on | tried | none | Landlock | bubblewrap |"
    yield "|---|---|---|---|---|"
    rows: list[tuple[str, Sequence[Case | Trap]]] = [
        (group.value, [case for case in CASES if case.group is group]) for group in Group]
    rows.append(("traps for those who come after the agent", TRAPS))
    for name, cases in rows:
        unconfined = sum(not case.refused_by for case in cases)
        landlock = sum(isinstance(case, Case) and case.landlock_gap is not None for case in cases)
        yield f"| {name} | {len(cases)} | {unconfined} | {landlock} | 0 |"


def gaps() -> Iterator[str]:
    """Yield the lines of the table of what Landlock does not prevent."""
    yield "| gap | attacks | such as |"
    yield "|---|---|---|"
    for gap in Gap:
        found = [case.name for case in CASES if case.landlock_gap is gap]
        if found:
            yield f"| {gap.value} | {len(found)} | {found[0]} |"


TABLES = {"attacks": attacks, "gaps": gaps}


def fill(text: str) -> str:
    """Return a page with its tables as the data says."""
    def table(found: re.Match[str]) -> str:
        lines = "\n".join(TABLES[found["name"]]())
        return f"{found[1]}\n{lines}\n\n{found[3]}"

    return _TABLE.sub(table, text)
