"""Registrations of worktrees, `.git/worktrees/NAME`: what in one is damaged, and how it is mended.

A power cut or a disk leaves files of zeros, halves and flipped bits. What a file must hold follows from where the entry
lies (`commondir`), from the worktree that names it (`gitdir`), from its log or its branch (`HEAD`), or from the commit
that is checked out (`index`). Files of the worktree are never touched. An entry that a git is making is left alone.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAD = re.compile(rb"(ref: refs/[^\0\n]+|[0-9a-f]{40}|[0-9a-f]{64})\n?\Z")
_INDEX = re.compile("index file|bad signature|bad index|unable to read [0-9a-f]{40}")
_MOVE = re.compile(rb"[0-9a-f]+ ([0-9a-f]{40,64}) ")


def find_damage(common: Path) -> Iterator[tuple[Path, str]]:
    """Yield each entry of a repository with the name of a file in it that is damaged."""
    for entry in sorted((common / "worktrees").glob("*")):
        if entry.is_dir() and b"initializing" not in _read(entry / "locked"):
            if _common_of(entry) != common:
                yield entry, "commondir"
            if not _read(entry / "gitdir").rstrip(b"\n").endswith(b"/.git") or b"\0" in _read(entry / "gitdir"):
                yield entry, "gitdir"
            if not _names_something(common, _read(entry / "HEAD")):
                yield entry, "HEAD"
            if (entry / "index").exists() and _read(entry / "index", 4) != b"DIRC":
                yield entry, "index"


def _names_something(common: Path, head: bytes) -> bool:
    """Return whether a HEAD is whole: a half of one may name a branch that does not exist."""
    found = _HEAD.match(head)
    ref = os.fsdecode(head.removeprefix(b"ref: ").rstrip(b"\n"))
    return found is not None and (not head.startswith(b"ref: refs/heads/garrison") or (common / ref).exists()
                                  or f" {ref}\n".encode() in _read(common / "packed-refs", 1 << 26))


def mend(common: Path, path: Path | None, told: str = "") -> list[str]:
    """Mend what is damaged in the entry of the worktree `path`, and `commondir` in every entry, for git stops at one
    that it cannot read; return what was mended. `told`: by git. The caller reads the index anew if it is gone."""
    own, mended = _entry_of(common, path), list[str]()
    if own is not None and _INDEX.search(told):
        (own / "index").unlink(missing_ok=True)
        mended.append(f"{own.name}/index")
    damage = list(find_damage(common))
    link = None if path is None else path.parent.resolve() / path.name / ".git"
    if own is not None and link is not None and not is_record_of(own, link):
        damage.append((own, "gitdir"))
    for entry, name in damage:
        content = b"../..\n" if name == "commondir" else b""
        if entry == own and link is not None and name == "gitdir":
            content = os.fsencode(link) + b"\n"
        elif entry == own and path is not None and name == "HEAD":
            content = _head_of(common, entry, path)
        if content:
            _replace(entry / name, content)
        elif entry == own and name == "index":
            (entry / name).unlink(missing_ok=True)
        else:
            continue
        mended.append(f"{entry.name}/{name}")
    return mended


def _entry_of(common: Path, path: Path | None) -> Path | None:
    """Return the entry that the `.git` file of a worktree names; None if it names none of this repository."""
    if path is None:
        return None
    name = os.fsdecode(_read(path / ".git").removeprefix(b"gitdir: ").rstrip(b"\n"))
    entry = common / "worktrees" / os.path.basename(name)  # noqa: PTH119
    return entry if name and "\0" not in name and entry.is_dir() else None


def _head_of(common: Path, entry: Path, path: Path) -> bytes:
    """Return what HEAD must hold: garrison's branch of that worktree, else the commit that its log names last."""
    branch = f"refs/heads/garrison/{path.parent.name}/{path.name}"
    if _names_something(common, os.fsencode(f"ref: {branch}\n")):
        return os.fsencode(f"ref: {branch}\n")
    moves = _MOVE.findall(_read(entry / "logs/HEAD", 1 << 20))
    return moves[-1] + b"\n" if moves else b""


def is_record_of(entry: Path, link: Path) -> bool:
    """Return whether an entry is that of the worktree with the `.git` file `link`, by what git recorded."""
    with suppress(OSError, ValueError):
        recorded = entry / os.fsdecode(_read(entry / "gitdir")).strip()
        return recorded == link or recorded.parent.parent.resolve() / recorded.parent.name / ".git" == link
    return False


def _common_of(entry: Path) -> Path | None:
    with suppress(OSError, ValueError):
        return (entry / os.fsdecode(_read(entry / "commondir").rstrip(b"\n"))).resolve()
    return None


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{threading.get_native_id()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def _read(path: Path, size: int = 1 << 16) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except (OSError, ValueError):
        return b""
