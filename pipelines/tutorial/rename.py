"""Rename OLD to NEW in FILES: names, and strings that are exactly the name. Usage: rename.py OLD NEW FILE..."""

import sys
import tokenize
from pathlib import Path


def renamed(path: Path, old: str, new: str) -> str:
    """Return the text of `path` with `old` renamed to `new`; comments and prose stay as they are."""
    with tokenize.open(path) as file:
        lines = file.readlines()
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    for token in reversed(tokens):  # from the end: positions before a replacement stay valid
        if token.string in (old, f"'{old}'", f'"{old}"'):
            row, column = token.start
            line = lines[row - 1]
            lines[row - 1] = line[:column] + line[column:].replace(old, new, 1)
    return "".join(lines)


old, new, *files = sys.argv[1:]
for name in files:
    Path(name).write_text(renamed(Path(name), old, new), encoding="utf-8")
