"""Landable trees: refuse a tree that git itself would refuse, before it lands and affects other work.

A commit can contain what no checkout can: git creates it from any tree, and fails on it later, in every worktree and
merge of its branch. Names are checked by rules that accept all usual ones; git checks the few others, and a
`.gitmodules`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from garrison.system.git.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from garrison.system.git.commits import ChangedPath, Commits

MAX_NAME = 255
"""Longest file name in bytes that a file system supports."""
MAX_PATH = 3584
"""Longest path in bytes in a worktree; the system's limit of 4096 includes the worktree's folder."""
MAX_DEPTH = 500
"""Deepest nesting of folders."""
MAX_MODULES = 16 << 20
"""Bytes of a `.gitmodules`."""
MODULES = ".gitmodules"
_USUAL = frozenset({MODULES, ".gitignore", ".gitattributes", ".gitkeep", ".github", ".gitlab", ".gitlab-ci.yml",
                    ".gitea", ".gitleaks.toml"})
"""Names that start like git's own and are allowed."""
_SHOWN = 120
"""Characters of a name or message that are quoted."""
_REGULAR = frozenset({"100644", "100755"})
_LINK, _FOLDER = "160000", "040000"
_EVERYWHERE = ("-c", "core.protectNTFS=true", "-c", "core.protectHFS=true")
"""Settings with which git also refuses names that another file system treats as `.git`."""


def explain_refusal(git: Commits, before: str, tree: str, *, foreign: bool = False, missing: bool = False) -> str:
    """Return why the tree cannot land on the tree `before`, '' if it can.

    GitError if git cannot even read it.

    Args:
        foreign: the tree was not written by our git, so a listing of its paths does not prove its names.
        missing: also check for missing files, since nothing checks the tree out before it lands.
    """
    added = [change for change in git.changes(before, tree) if change.status != "D"]
    if why := next(filter(None, (explain_name(change.name) for change in added)), ""):
        return why
    if foreign and (why := _explain_names(git, before, tree)):
        return why
    if any(needs_judgement(change) for change in added) and (why := _explain_paths(git, tree)):
        return why
    modules = next((change for change in added if change.name == MODULES and change.mode in _REGULAR), None)
    if modules is not None and (why := explain_modules(git, modules.blob)):
        return why
    return _explain_missing(git, {change.blob for change in added if change.mode != _LINK}) if missing else ""


def explain_name(name: str) -> str:
    """Return why the file system cannot have such a path in a checkout. Pure."""
    parts = name.split("/")
    if len(parts) > MAX_DEPTH:
        return f"a file in it is {len(parts) - 1} folders deep, more than {MAX_DEPTH}: {_shorten(name)}"
    if any(len(part.encode()) > MAX_NAME for part in parts) or len(name.encode()) > MAX_PATH:
        return f"a file in it has a name that is too long for a file system: {_shorten(name)}"
    return ""


def needs_judgement(change: ChangedPath) -> bool:
    """Return whether git must check a path: a part of it might be mistaken for one of git's own names. Pure."""
    return any(_is_odd(part, change.mode) for part in change.name.split("/"))


def _is_odd(part: str, mode: str) -> bool:
    if part in _USUAL:
        return part == MODULES and mode not in _REGULAR
    return part in ("", ".", "..") or not part.isascii() or any(letter in part for letter in "\\~:") or \
        part.lower().startswith(".git")


def _explain_paths(git: Commits, tree: str) -> str:
    with git.open_scratch() as folder:
        answer = git.run(*_EVERYWHERE, "read-tree", tree, check=False, extra={"GIT_INDEX_FILE": f"{folder}/index"})
    return f"git refuses its tree: {_message(answer.err)}" if answer.code else ""


def _explain_names(git: Commits, before: str, tree: str) -> str:
    """Return which new folder contains a name that makes git's merges abort: an empty one, or one with a slash."""
    listed = git.run("diff-tree", "-r", "-t", "-z", "--no-renames", before, tree).out.split("\0")[::2]
    folders = [tree, *(meta.split(" ")[3] for meta in listed if meta.split(" ")[1:2] == [_FOLDER])]
    for folder in dict.fromkeys(folders):
        data = git.run("cat-file", "tree", folder, exact=True).out.encode(errors="surrogateescape")
        if any(not name or b"/" in name for name in names_in_tree(data, len(tree) // 2)):
            return "git refuses its tree: a name in it is empty or contains a slash"
    return ""


def names_in_tree(data: bytes, oid_bytes: int) -> Iterator[bytes]:
    """Yield the names in a tree object; ValueError if it is not one. Pure."""
    at = 0
    while at < len(data):
        end = data.index(b"\0", at)
        yield data[at:end].partition(b" ")[2]
        at = end + 1 + oid_bytes


def explain_modules(git: Commits, blob: str) -> str:
    """Return git's objection to a `.gitmodules`, from its object check and a command that reads the file."""
    size = int(git.run("cat-file", "-s", blob).out)
    if size > MAX_MODULES:
        return f"its {MODULES} has {size} bytes, more than {MAX_MODULES}"
    with git.open_scratch() as folder:
        path = Path(folder)
        kind = "sha256" if len(blob) == 64 else "sha1"
        trial = Repository(path, git.environment)
        trial.pinned = {"GIT_DIR": str(path / ".git"), "GIT_WORK_TREE": str(path)}  # it is in another repository
        trial.run("init", "--quiet", f"--object-format={kind}", ".")
        content = git.run("cat-file", "blob", blob, exact=True).out.encode(errors="surrogateescape")
        (path / MODULES).write_bytes(content)
        trial.run("add", "--force", MODULES)
        trial.run("update-index", "--add", "--cacheinfo", f"{_LINK},{blob},submodule")
        trial.run("write-tree")
        for check in (("fsck", "--no-progress"), ("diff-files",)):
            answer = trial.run(*check, check=False)
            if answer.code:
                return f"git refuses its {MODULES}: {_message(answer.err, path)}"
    return ""


def _explain_missing(git: Commits, blobs: Iterable[str]) -> str:
    """Return which of these files the repository lacks."""
    text = "".join(f"{blob}\n" for blob in sorted(blobs))
    for line in git.run("cat-file", "--batch-check=%(objectname) %(objecttype)", text=text).out.splitlines():
        name, _, kind = line.partition(" ")
        if kind != "blob":
            return f"the repository lacks a file of its tree: object {name[:10]} is {kind}"
    return ""


def _message(stderr: str, folder: Path | None = None) -> str:
    """Return git's own reason, without the folder of the check."""
    lines = [line.strip() for line in stderr.splitlines() if line.startswith(("error", "fatal"))]
    text = lines[0].partition(": ")[2] if lines else stderr.strip() or "no message"
    return _shorten(text.replace(f"{folder}/", "") if folder else text)


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
