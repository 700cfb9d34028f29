"""Repositories inside a worktree: which of them garrison's git may work in, and what is read of all others.

An agent in the worktree chooses where they lead and what their configuration names: a `.git` file, a link or a
`commondir` that names the user's repository would have garrison move the user's branches, a link inside would have it
write anywhere, and a filter would run. So git works only in git directories that garrison made. Of a repository that
lies in the worktree itself, files are read as `untrusted.py` does: the commit of its HEAD, and objects that are copied
into a mirror of garrison's own.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.system import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_LINK = 1 << 16
"""Bytes of a `.git` file."""
_MAX_REFS = 64 << 20
_MAX_BYTES, _MAX_FILES = 256 << 20, 100_000
"""Objects that are copied of one repository."""
_SYMBOLIC = 5
"""Symbolic refs that may follow each other, as in git."""
_OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
_FOLDER, _LOOSE = re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{38}(?:[0-9a-f]{24})?")
_PACK = re.compile(r"pack-[0-9a-f]{40}(?:[0-9a-f]{24})?\.pack")
_REMOTE = re.compile(rb"^\s*\[\s*remote\b", re.IGNORECASE | re.MULTILINE)


def is_safe_name(name: str) -> bool:
    """Return whether a submodule's name, which .gitmodules chooses, stays below the folder that it names a part of."""
    return bool(name) and not name.startswith("/") and ".." not in name.replace("\\", "/").split("/")


def leads_to(worktree: Path, name: str, git_dir: Path) -> bool:
    """Return whether the repository `name` in a worktree is that of the git directory `git_dir`, by its `.git` file."""
    try:
        link = untrusted.read(worktree, f"{name}/.git", _MAX_LINK) or b""
    except (untrusted.UnsafeFile, OSError):
        return False
    target = os.fsdecode(link.removeprefix(b"gitdir: ").rstrip(b"\n"))
    return bool(link) and os.path.realpath(worktree / name / target) == os.path.realpath(git_dir)


def is_embedded(worktree: Path, name: str) -> bool:
    """Return whether the repository `name` lies in the worktree as a whole: its `.git` is a folder of its own."""
    try:
        with untrusted.open_directory(worktree, f"{name}/.git") as directory:
            return directory is not None
    except (untrusted.UnsafeFile, OSError):
        return False


def has_remote(worktree: Path, name: str) -> bool:
    """Return whether an embedded repository names another one, or cannot be read."""
    try:
        return _REMOTE.search(untrusted.read(worktree, f"{name}/.git/config") or b"") is not None
    except (untrusted.UnsafeFile, OSError):
        return True


def read_head(worktree: Path, name: str) -> str | None:
    """Return the commit that an embedded repository has checked out, from its files; None if they do not say so."""
    if not is_embedded(worktree, name):
        return None
    with suppress(untrusted.UnsafeFile, OSError):
        return _resolve(worktree, f"{name}/.git", "HEAD")
    return None


def _resolve(worktree: Path, git_dir: str, ref: str) -> str | None:
    for _ in range(_SYMBOLIC):
        text = (untrusted.read(worktree, f"{git_dir}/{ref}", _MAX_LINK) or b"").decode(errors="replace").strip()
        if _OID.fullmatch(text):
            return text
        if not text.startswith("ref:"):
            break
        ref = text.removeprefix("ref:").strip()
        if not _REF.fullmatch(ref) or ".." in ref or "//" in ref:
            return None
    packed = (untrusted.read(worktree, f"{git_dir}/packed-refs", _MAX_REFS) or b"").decode(errors="replace")
    return next((line[:-len(ref) - 1] for line in packed.splitlines()
                 if line.endswith(f" {ref}") and _OID.fullmatch(line[:-len(ref) - 1])), None)


def refresh_mirror(worktree: Path, name: str, mirror: Path) -> list[Path]:
    """Make, or bring up to date, garrison's own git directory of an embedded repository: its HEAD and its objects.

    It has no configuration, hook, ref or alternate of that repository. Objects of it may be damaged or missing. Return
    the packs that came to it, which have no index yet: that of the repository is not trusted.
    """
    for folder in ("objects/info", "objects/pack", "refs", "info"):
        (mirror / folder).mkdir(parents=True, exist_ok=True)
    head = read_head(worktree, name)
    extension = "[extensions]\n\tobjectFormat = sha256\n" if head and len(head) == 64 else ""
    (mirror / "config").write_text(f"[core]\n\trepositoryformatversion = {int(bool(extension))}\n{extension}")
    (mirror / "HEAD").write_text(f"{head}\n" if head else "ref: refs/heads/none\n")
    (mirror / "info" / "exclude").write_text(untrusted.read_text(worktree, f"{name}/.git/info/exclude"))
    packs: list[Path] = []
    with suppress(untrusted.UnsafeFile, OSError):
        packs += _copy_objects(worktree, f"{name}/.git/objects", mirror / "objects")
    return packs


def _copy_objects(worktree: Path, objects: str, target: Path) -> Iterator[Path]:
    room, left = _MAX_BYTES, _MAX_FILES
    for folder in untrusted.list_names(worktree, objects):
        pattern = _PACK if folder == "pack" else _LOOSE if _FOLDER.fullmatch(folder) else None
        if pattern is None:
            continue
        names = untrusted.list_names(worktree, f"{objects}/{folder}", left)
        left -= len(names)
        (target / folder).mkdir(exist_ok=True)
        for name in names:
            if left < 0 or not pattern.fullmatch(name) or (target / folder / name).exists():
                continue
            # Copied, not linked: the file itself could be changed later.
            data = untrusted.read(worktree, f"{objects}/{folder}/{name}", room) or b""
            room -= len(data)
            (target / folder / name).write_bytes(data)
            if folder == "pack":
                yield target / folder / name


def remove_pipes_within(git_dir: Path) -> None:
    """Remove the named pipes in a git directory that lies in a worktree: git opens what is called HEAD or a ref."""
    for folder, folders, files in os.walk(git_dir):
        if "objects" in folders:
            folders.remove("objects")
        for name in files:
            path = Path(folder, name)
            with suppress(OSError):
                if stat.S_ISFIFO(path.lstat().st_mode):
                    path.unlink()
