"""Fenced blocks of a Markdown page, for the tests that run the commands of the documentation.

```sh          commands: run with `bash -e`, in the order of the page
```dot FILE    saved as FILE; toml, ini, python likewise
<!-- not run: REASON --> on the line before a block: a reader can run it, a test cannot
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>[^\n]+?) -->\n\Z")


@dataclass(frozen=True)
class Block:
    """One fenced block; `file` is where it is saved, `not_run` the reason why tests skip it."""

    page: str
    line: int
    language: str
    file: str
    text: str
    not_run: str = ""


def blocks(page: Path) -> list[Block]:
    """Return all blocks of a page, in order."""
    whole = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(whole):
        language, _, rest = match["info"].strip().partition(" ")
        reason = _NOT_RUN.search(whole[: match.start()])
        found.append(Block(page.name, whole.count("\n", 0, match.start()) + 1, language, rest.strip(), match["text"],
                           reason["reason"] if reason else ""))
    return found
