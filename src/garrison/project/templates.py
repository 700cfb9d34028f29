"""Pipeline templates: texts with placeholders for a goal, a gate and modules, and their purposes. Pure.

The texts are in `templates/NAME.dot`. Placeholders are `@goal@`, `@gate@`, and, in a line that is repeated for each
module, `@module@` and `@name@`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from garrison.records.names import to_name
from garrison.values import Value

FOLDER = Path(__file__).with_name("templates")
RESERVED = frozenset({"start", "exit", "digraph", "subgraph", "graph", "node", "edge", "strict"})
"""Names that a module's node must not have."""


class Template(Value):
    """Pipeline that many projects need."""

    name: str
    about: str
    goal: str
    """Default goal."""

    @property
    def text(self) -> str:
        return (FOLDER / f"{self.name}.dot").read_text(encoding="utf-8")


TEMPLATES = (
    Template("codemod", "the same change in each module, side by side; each lands by itself",
             "Replace the old call by the new one"),
    Template("fix-until-green", "an agent works until the tests pass", "Make the tests pass"),
    Template("review-and-fix", "one agent works, a second reviews, until the reviewer is content",
             "Make one change that this project needs, with its test"),
    Template("port", "survey, plan, your approval, port, test until green", "Port the code"),
    Template("upgrade-dependencies", "upgrade, test, repair until green", "Upgrade the dependencies to their latest "
             "compatible releases"),
)


def fill(template: Template, *, goal: str = "", gate: str = "", modules: Sequence[str] = ()) -> str:
    """Return a template's text with placeholders filled."""
    names = _unique_names(modules)
    lines: list[str] = []
    for line in template.text.splitlines():
        repeated = [line.replace("@module@", quoted(module)).replace("@name@", name)
                    for module, name in zip(modules, names, strict=True)] if "@name@" in line else [line]
        lines += repeated
    return ("\n".join(lines) + "\n").replace("@goal@", quoted(goal or template.goal)).replace("@gate@", quoted(gate))


def _unique_names(modules: Sequence[str]) -> list[str]:
    """Return a node's name for each module, distinct ignoring case."""
    names: list[str] = []
    for module in modules:
        stem = re.sub(r"[_-]+", "_", to_name(module.strip("./"))).strip("_")[:40] or "module"
        stem = f"module_{stem}" if stem.lower() in RESERVED or not stem[0].isalpha() else stem
        name, number = stem, 1
        while name.lower() in {taken.lower() for taken in names}:
            number += 1
            name = f"{stem}_{number}"
        names.append(name)
    return names


def quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
