"""Templates of prompts: the files in prompts/*.md, filled with values. Pure but for reading the files.

A template is written as if all values were known. These parts are removed if values are missing:

- a paragraph with an empty value within a line;
- a paragraph whose values are on separate lines, if all of them are empty; else only the empty lines;
- a heading (a paragraph of one line that begins with `#`) with nothing below it.

Values are inserted literally: a placeholder in a value is not expanded.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from string import Template

FOLDER = Path(__file__).with_name("prompts")
_ALONE = re.compile(r"\s*\$\{?(\w+)\}?\s*")


def fill(name: str, folder: Path = FOLDER, /, **values: str) -> str:
    """Fill a template with its values, without the missing parts; it ends with one line feed."""
    kept: list[tuple[str, int]] = []
    for paragraph in _paragraphs(folder / name):
        text, level = _fill_paragraph(paragraph, values), _heading_level(paragraph)
        while level and kept and kept[-1][1] >= level:
            kept.pop()
        if text:
            kept.append((text, level))
    while len(kept) > 1 and kept[-1][1]:
        kept.pop()
    return "\n\n".join(text for text, _ in kept).strip("\n") + "\n"


@cache
def _paragraphs(path: Path) -> tuple[str, ...]:
    return tuple(part.strip("\n") for part in re.split(r"\n{2,}", path.read_text().strip("\n")))


def _fill_paragraph(paragraph: str, values: dict[str, str]) -> str:
    lines, alone, known = [], 0, 0
    for line in paragraph.split("\n"):
        match = _ALONE.fullmatch(line)
        if match is not None and match[1] in values:
            alone += 1
            known += bool(values[match[1]])
            lines += [values[match[1]].strip("\n")] if values[match[1]] else []
            continue
        template = Template(line)
        if any(not values.get(found, "?") for found in template.get_identifiers()):
            return ""
        lines.append(template.safe_substitute(values))
    return "" if alone and not known else "\n".join(lines)


def _heading_level(paragraph: str) -> int:
    """Return the level of a heading of the template, 0 for any other paragraph."""
    return 0 if "\n" in paragraph else len(paragraph) - len(paragraph.lstrip("#"))
