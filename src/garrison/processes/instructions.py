"""Instructions of a repository for agents: its CLAUDE.md and AGENTS.md, as the target branch has them.

They are read from the target's commit, not from a worktree that an agent may have changed. Only their text counts:
hooks, permissions and settings of a repository are never read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from garrison.agents import prompt
from garrison.system.terminal_text import spell_hidden

if TYPE_CHECKING:
    from garrison.system.git import Git

NAMES = ("AGENTS.md", "CLAUDE.md", ".claude/CLAUDE.md")
MAX_CHARS = 40_000
"""Characters of instructions that a prompt holds: what the CLI itself calls large."""
_IMPORT = re.compile(r"^\s*@(?:\./)?(\S+)\s*$")
_LINK = "120000"


def read_instructions(git: Git, target: str) -> str:
    """Return the instructions as part of a system prompt; '' if the target has none."""
    texts = _read_files(git, target)
    shown, left = [], MAX_CHARS
    for name, text in texts.items():
        body = "\n".join(line for line in text.splitlines() if not _imports_another(line, texts)).strip()
        if not body or left <= 0:
            continue
        is_long = len(body) > left
        shown.append((name, body[:left] + f"\n… (cut; the rest is in {name})" if is_long else body))
        left -= len(body)
    parts = [f"### {name}\n\n{body}" for name, body in shown] if len(shown) > 1 else [body for _, body in shown]
    return prompt.instructions(" and ".join(f"`{name}`" for name, _ in shown), target, "\n\n".join(parts))


def _read_files(git: Git, target: str) -> dict[str, str]:
    """Return the text of each of the files that the target has; of several with the same content the first."""
    listed = git.run("ls-tree", "-z", f"refs/heads/{target}", "--", *NAMES, check=False).out.split("\0")
    texts, seen = {}, set()
    for line in sorted(filter(None, listed), key=lambda line: NAMES.index(line.partition("\t")[2])):
        (mode, kind, blob), name = line.partition("\t")[0].split(), line.partition("\t")[2]
        if kind == "blob" and mode != _LINK and blob not in seen:
            seen.add(blob)
            texts[name] = spell_hidden(git.run("cat-file", "blob", blob).out)
    return texts


def _imports_another(line: str, texts: dict[str, str]) -> bool:
    """Return whether a line only includes one of the other files, as `@AGENTS.md` in CLAUDE.md does."""
    found = _IMPORT.match(line)
    return found is not None and found[1] in texts
