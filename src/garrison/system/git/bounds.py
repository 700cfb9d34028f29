"""Bounds: what of a history that an agent made is taken over, by numbers that no honest one comes near.

A few objects can be ten million files, or a message of gigabytes. So a history is measured before git, or garrison,
lists or merges what is in it: by a git with limits of memory, time and output, in a git directory of garrison's own,
which has no configuration, ref or replacement of the repository's. It is measured where it comes into the repository
(`sandbox.collect`), and before an agent's branch or a branch of the merge queue is looked into: whoever has no sandbox
writes straight into the repository.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.system.git.repository import MAX_MEMORY, MAX_SECONDS, GitError, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from garrison.system.git.commits import Commits

MAX_BYTES = 2 << 30
"""Bytes of new objects in one collection."""
MAX_FILES, MAX_CHECKOUT, MAX_LEVELS = 500_000, 8 << 30, 200
"""Files that commits may change, bytes of their contents in a checkout, and folders above one: 70 objects can be ten
million files."""
MAX_OBJECT = {"commit": 1 << 20, "tag": 1 << 20, "tree": 64 << 20}
"""Bytes of an object that git reads as a whole, wherever it looks at it."""
MAX_KEPT = 2000
"""Changed files that are kept for those who ask what a commit changes."""
# core.bigFileThreshold: larger blobs are streamed, not held in memory. core.fsync: a ref points to what is written here
# right afterwards.
_LIMITS = tuple(part for setting in (
    "pack.threads=1", "core.bigFileThreshold=32m", "gc.auto=0", "core.fsync=committed,loose-object,reference",
    "core.fsmonitor=false", f"core.hooksPath={os.devnull}") for part in ("-c", setting))


class Excess(GarrisonError):
    """A history is beyond the bounds; `what` says in what."""

    def __init__(self, what: str) -> None:
        super().__init__(f"what was committed is too large to be taken over: {what}")
        self.what = what


def explain_excess(git: Commits, base: str, commit: str) -> str:
    """Return in what the history of `commit` is beyond the bounds, as far as `base` lacks it; '' if in nothing.

    It is measured once; GitError if it cannot be read.
    """
    if commit not in git.excesses:
        git.excesses[commit] = _measure(git, base, commit)
    return git.excesses[commit]


def _measure(git: Commits, base: str, commit: str) -> str:
    with git.reuse_scratch() as scratch:
        folder = scratch / "measured"
        if not folder.is_dir():
            new = folder.with_name("new")
            shutil.rmtree(new, ignore_errors=True)
            make_git_directory(new, [git.common / "objects"], is_sha256=len(commit) == 64)
            new.rename(folder)
        try:
            objects = run_git(folder, "rev-list", "--objects", "--no-object-names", "--filter=blob:none", commit,
                              *(["--not", base] if base else [])).decode().split()
            check_objects(folder, objects)
            lines = check_checkout(folder, base, commit)
        except Excess as error:
            return error.what
    if len(lines) <= MAX_KEPT:  # who looks at the commit next asks what it changes
        git.note_changes(base, commit, [(about.decode(), name.decode(errors="backslashreplace"))
                                        for about, name in lines])
    return ""


def make_git_directory(folder: Path, borrowed: Sequence[Path], *, is_sha256: bool, settings: str = "") -> None:
    """Make a git directory without a ref, which borrows objects."""
    for name in ("refs", "objects/info", "objects/pack"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/none\n")
    extension = "[extensions]\n\tobjectFormat = sha256\n" if is_sha256 else ""
    core = f"[core]\n\trepositoryformatversion = {int(is_sha256)}\n{settings}"
    (folder / "config").write_text(core + extension)
    (folder / "objects" / "info" / "alternates").write_text("".join(f"{quote_in_list(path)}\n" for path in borrowed))


def quote_in_list(path: Path) -> str:
    """Return a path as git reads it in a list of alternates: quoted if it has more than one line, say."""
    text = str(path)
    if "\n" not in text and not text.startswith(('"', "#")):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def check_objects(folder: Path, names: Sequence[str]) -> None:
    """Refuse an object of which git makes more in memory than any honest one needs."""
    for name, (kind, size) in zip(names, _sizes_of(folder, names), strict=True):
        if size > MAX_OBJECT.get(kind, size):
            raise Excess(f"the {kind} {name[:10]} has {size / (1 << 20):.1f} MiB, more than "
                         f"{MAX_OBJECT[kind] >> 20} MiB")


def check_checkout(folder: Path, base: str, commit: str) -> list[tuple[bytes, bytes]]:
    """Refuse a commit whose checkout has more files, levels or content than a repository may gain at once; return git's
    raw lines on the files that it changes, each with its path."""
    _count_files(folder, base, commit)
    lines = _compare(folder, base, commit)
    blobs = _count_blobs(lines)
    content = sum(size * times for (_, size), times in zip(_sizes_of(folder, list(blobs)), blobs.values(), strict=True))
    if content >> 20 > MAX_CHECKOUT >> 20:
        raise Excess(f"{commit[:10]} has more than {MAX_CHECKOUT >> 20:,} MiB of new content")
    return lines


def _count_files(folder: Path, base: str, commit: str) -> None:
    """Refuse a commit with too many files, or levels: before git compares it, which holds all differences in memory."""
    tree = _Tally(MAX_FILES)
    try:
        run_git(folder, "ls-tree", "-r", "-z", "--name-only", commit, output=tree)
    except _TooManyFiles:
        before = _Tally(1 << 62)
        if base:
            with suppress(_TooManyFiles):
                run_git(folder, "ls-tree", "-r", "-z", "--name-only", base, output=before)
        tree = _Tally(before.files + MAX_FILES)
        with suppress(_TooManyFiles):
            run_git(folder, "ls-tree", "-r", "-z", "--name-only", commit, output=tree)
    for what, found, most in (("files", tree.files, tree.most), ("levels of folders", tree.levels, MAX_LEVELS)):
        if found > most:
            raise Excess(f"{commit[:10]} has more than {most:,} {what}")


def _compare(folder: Path, base: str, commit: str) -> list[tuple[bytes, bytes]]:
    """Return git's raw lines on the files that a commit changes, each with its path."""
    base = base or run_git(folder, "mktree").decode().strip()
    fields = run_git(folder, "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", base, commit).split(b"\0")
    return list(zip(fields[:-1:2], fields[1::2], strict=True))


def _count_blobs(lines: Sequence[tuple[bytes, bytes]]) -> dict[str, int]:
    """Return the blobs of the files that are added or changed, each with how often it is checked out. Pure."""
    blobs = Counter(about.split(b" ")[3] for about, _ in lines if not about.endswith(b" D"))
    return {blob.decode(): times for blob, times in blobs.items()}


def _sizes_of(folder: Path, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return kind and bytes of these objects; 0 of one that is not there, as a submodule's commit."""
    listing = run_git(folder, "cat-file", "--batch-check=%(objecttype) %(objectsize)",
                      text="".join(f"{name}\n" for name in names).encode()) if names else b""
    fields = (line.partition(" ") for line in listing.decode().splitlines())
    return [(kind, int(size) if size.isdigit() else 0) for kind, _, size in fields]


class _TooManyFiles(Exception):
    """A tree has more files than are counted."""


class _Tally:
    """Counts the names that git lists, and the levels of their folders; _TooManyFiles beyond `most`."""

    def __init__(self, most: int) -> None:
        self.files, self.levels, self.most, self._rest = 0, 0, most, b""

    def write(self, chunk: bytes) -> None:
        *names, self._rest = (self._rest + chunk).split(b"\0")
        self.files += len(names)
        self.levels = max(self.levels, max((name.count(b"/") for name in names), default=0), self._rest.count(b"/"))
        if self.files > self.most or self.levels > MAX_LEVELS:
            raise _TooManyFiles


def run_git(folder: Path, *arguments: str, text: bytes | None = None, source: IO[bytes] | None = None,
         output: IO[bytes] | _Tally | None = None, extra: Mapping[str, str] | None = None) -> bytes:
    """Run git in a git directory of garrison's own, without any configuration but its own, within the limits.

    GitError if it fails, Excess if it takes too long or writes too much.
    """
    import tempfile

    env = {**environment(), "GIT_DIR": str(folder), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
           "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", **(extra or {})}
    excess: list[str] = []
    with tempfile.TemporaryFile() as error_file, subprocess.Popen(
            ["git", *_LIMITS, *arguments], env=env, cwd=folder, stderr=error_file, stdout=subprocess.PIPE,
            stdin=subprocess.PIPE if text is not None else source or subprocess.DEVNULL) as child:

        def end(why: str) -> None:
            excess.append(why)
            child.kill()

        with suppress(ProcessLookupError, PermissionError):
            resource.prlimit(child.pid, resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))  # the files it maps count not
        timer = threading.Timer(MAX_SECONDS, end, [f"more than {MAX_SECONDS:g} s"])
        timer.start()
        try:
            data = _exchange(child, text, output, end)
            child.wait()
        finally:
            timer.cancel()
        if excess:
            raise Excess(f"git {arguments[0]} takes {excess[0]}")
        if child.returncode:
            error_file.seek(0)
            raise GitError(arguments, child.returncode, error_file.read(1 << 16).decode(errors="replace"))
        return data


def _exchange(child: subprocess.Popen[bytes], text: bytes | None, output: IO[bytes] | _Tally | None,
              end: Callable[[str], None]) -> bytes:
    """Send the input, then read all output: into `output`, else returned. `end` is called if there is too much."""
    if child.stdin is not None:
        with suppress(BrokenPipeError):
            child.stdin.write(text or b"")
            child.stdin.close()
    assert child.stdout is not None
    size, chunks = 0, []
    while chunk := child.stdout.read(1 << 16):
        size += len(chunk)
        if size > MAX_BYTES:
            end(f"more than {MAX_BYTES >> 20} MiB of new objects")
            break
        if output is None:
            chunks.append(chunk)
        else:
            output.write(chunk)
    return b"".join(chunks)
