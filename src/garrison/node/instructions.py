"""Instructions of a repository for agents: its CLAUDE.md and AGENTS.md, from the commit where a branch started.

They are read from the target's commit, not from a worktree that an agent may have changed: with the files that they
import (`@path`), as Claude Code reads them, and those of folders, which reach the agent once it reads there. The
settings, such as hooks and permissions, only reach an agent whose profile accepts them (`read_settings`).

Lessons that the user keeps private (`garrison lessons`) are lines of a file in the home, and part of every prompt.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from garrison.agents import prompt
from garrison.records import atomic
from garrison.system.git import GitError
from garrison.system.terminal_text import spell_hidden
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from garrison.system.git import Git

NAMES = ("AGENTS.md", "CLAUDE.md", ".claude/CLAUDE.md")
MAX_CHARS = 40_000
"""Characters of instructions in a prompt: more the CLI itself calls large."""
MAX_FOLDER = 8000
"""Characters of the instructions of one folder."""
MAX_FOLDERS = 100
"""Folders whose instructions are read, the topmost first."""
SETTINGS = (".mcp.json", ".claude/settings.json")
SETTINGS_FOLDERS = (".claude/agents/", ".claude/commands/", ".claude/skills/")
MAX_SETTINGS = 1_000_000
"""Characters of a repository's own settings, in all."""
MAX_HOPS = 5
"""Imports that lead from one file to the next, as in Claude Code."""
_MAX_FILES = 30
"""Files that are read for one place, with those that they import."""
_MAX_LIST = 64 << 20
"""Bytes of the list of a commit's files."""
_IMPORT = re.compile(r"(?:(?<=\s)|^)@((?:[^\s\\`]|\\ )+)", re.MULTILINE)
_CODE = re.compile(r"^(`{3,}|~{3,}).*?(?:^\1|\Z)|(`+)(?!`).*?(?<!`)\2(?!`)", re.MULTILINE | re.DOTALL)
_LINK = "120000"


class Instructions(NamedTuple):
    """Instructions of a repository for agents."""

    text: str = ""
    """Part of the system prompt; '' if there is none."""
    folders: Mapping[str, str] = {}
    """Folder → instructions for an agent that reads in it."""


def read_instructions(git: Git, target: str, commit: str = "") -> Instructions:
    """Return the instructions of a commit, by default the tip of `target`."""
    try:
        tree = _CommitTree.read(git, commit or f"refs/heads/{target}")
    except GitError:
        return Instructions()
    texts = tree.collect(NAMES)
    return Instructions(_in_prompt(texts, target), {
        folder: told for folder in tree.folders() if (told := _in_folder(tree, folder))})


def read_settings(git: Git, commit: str) -> dict[str, str]:
    """Return the texts of the repository's own settings for Claude Code in a commit: path → text."""
    try:
        tree = _CommitTree.read(git, commit) if commit else None
    except GitError:
        tree = None
    texts: dict[str, str] = {}
    left = MAX_SETTINGS
    for name in sorted(tree.files) if tree is not None else ():
        if (name in SETTINGS or name.startswith(SETTINGS_FOLDERS)) and tree is not None \
                and tree.files[name][0] != _LINK:
            text = git.run("cat-file", "blob", tree.files[name][1], check=False).out
            left -= len(text)
            if "\0" not in text and left >= 0:
                texts[name] = text
    return texts


def lessons_folder(home: Path, repository: str) -> Path:
    """Return the folder of the lessons of the repository with this key (`Git.key`)."""
    return home / "lessons" / repository


def private_lessons(home: Path, repository: str) -> Path:
    """Return the file of uncommitted lessons that the user gives to all agents of a repository."""
    return lessons_folder(home, repository) / "private.md"


def read_private_lessons(home: Path, repository: str) -> str:
    """Return the section of a prompt with the user's private lessons, '' for none."""
    text = (atomic.read(private_lessons(home, repository)) or b"")[:MAX_FOLDER].decode(errors="replace").strip()
    return f"## Lessons of the person in charge for this repository\n\n{spell_hidden(text)}" if text else ""


def _in_prompt(texts: Mapping[str, str], target: str) -> str:
    shown, left = [], MAX_CHARS
    for name, text in texts.items():
        body = _without_imports(text, texts, name).strip()
        if not body or left <= 0:
            continue
        is_long = len(body) > left
        shown.append((name, body[:left] + f"\n… (cut; the rest is in {name})" if is_long else body))
        left -= len(body)
    parts = [f"### {name}\n\n{body}" for name, body in shown] if len(shown) > 1 else [body for _, body in shown]
    return prompt.instructions(" and ".join(f"`{name}`" for name, _ in shown), target, "\n\n".join(parts))


def _in_folder(tree: _CommitTree, folder: str) -> str:
    texts = tree.collect([f"{folder}/{name}" for name in NAMES])
    body = "\n\n".join(f"{name}:\n\n{_without_imports(text, texts, name).strip()}" for name, text in texts.items())
    return body if len(body) <= MAX_FOLDER else f"{body[:MAX_FOLDER]}\n… (cut)"


class _CommitTree(Value):
    """Files of a commit."""

    git: Git
    files: Mapping[str, tuple[str, str]]
    """Path → mode and blob."""
    seen: set[str] = msgspec.field(default_factory=set)
    """Blobs that were read: a second file with the same content adds nothing."""

    @classmethod
    def read(cls, git: Git, commit: str) -> _CommitTree:
        """List the files of a commit."""
        files = {}
        for line in git.run("ls-tree", "-r", "-z", "--full-tree", commit, most=_MAX_LIST).out.split("\0"):
            head, _, name = line.partition("\t")
            if name and head.split()[1] == "blob":
                files[name] = (head.split()[0], head.split()[2])
        return cls(git, files)

    def folders(self) -> list[str]:
        found = {name.removesuffix(f"/{own}") for own in NAMES for name in self.files if name.endswith(f"/{own}")}
        return sorted(found - {".claude"}, key=lambda name: (name.count("/"), name))[:MAX_FOLDERS]

    def collect(self, names: Iterable[str]) -> dict[str, str]:
        """Return the texts of files, then those of the files that they import, and so on."""
        texts: dict[str, str] = {}
        for _ in range(MAX_HOPS + 1):
            found = [name for name in map(self._follow_links, names) if name and self._read(name, texts)]
            names = [path for name in found for path in _imports(texts[name], name)]
        return texts

    def _read(self, name: str, texts: dict[str, str]) -> bool:
        """Add a file's text; return whether it has text that was not read before."""
        blob = self.files[name][1]
        if blob in self.seen or len(texts) >= _MAX_FILES:
            return False
        self.seen.add(blob)
        data = self.git.run("cat-file", "blob", blob, check=False).out
        if "\0" not in data:
            texts[name] = spell_hidden(data)
        return name in texts

    def _follow_links(self, name: str) -> str:
        """Return the path of the file to which a path leads; '' for none in the repository."""
        for _ in range(MAX_HOPS):
            mode, blob = self.files.get(name, ("", ""))
            if mode != _LINK:
                return name if mode else ""
            name = _resolve(name, self.git.run("cat-file", "blob", blob, check=False).out)
        return ""


def _resolve(name: str, path: str) -> str:
    """Resolve a path relative to a file; '' for one that leads out of the repository."""
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    return "" if path.startswith("/") or joined.startswith("../") else joined


def _imports(text: str, name: str) -> Iterator[str]:
    """Yield the paths that a file imports with `@path`, outside of code."""
    for found in _IMPORT.finditer(_CODE.sub(lambda match: " " * len(match[0]), text)):
        written = found[1].replace("\\ ", " ")
        for path in dict.fromkeys((written, written.rstrip(".,;:!?)"))):
            if not path.startswith(("~", "/")) and (resolved := _resolve(name, path)):
                yield resolved


def _without_imports(text: str, texts: Mapping[str, str], name: str) -> str:
    """Return a text without the lines that only import a file whose text is shown, as `@AGENTS.md` in CLAUDE.md."""
    return "\n".join(line for line in text.splitlines()
                     if not (line.strip().startswith("@") and " " not in line.strip()
                             and any(path in texts for path in _imports(line.strip(), name))))
