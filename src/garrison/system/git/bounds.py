"""Bounds: limits on the history that is accepted from an agent, far beyond any honest one.

A few objects can expand to ten million files, or a message of gigabytes. So a history is measured before git or
garrison lists or merges its content: by a git with limits of memory, time and output, in a separate git directory
without the repository's configuration, refs and replacements. It is measured on import into the repository
(`sandbox.collect`), and before an agent's branch or a branch of the merge queue is read: an agent without a sandbox
writes directly to the repository.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from garrison.errors import GarrisonError
from garrison.system.git.repository import MAX_MEMORY, MAX_SECONDS, GitError, environment, find_git, in_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from garrison.system.git.commits import Commits

MAX_BYTES = 2 << 30
"""Bytes of new objects in one collection."""
MAX_FILES, MAX_CHECKOUT, MAX_LEVELS = 500_000, 8 << 30, 200
"""Limits for the files that commits change, the bytes of their contents in a checkout, and the folders above a file: 70
objects can be ten million files."""
MAX_OBJECT = {"commit": 1 << 20, "tag": 1 << 20, "tree": 64 << 20}
"""Bytes of an object that git reads as a whole."""
FIRST_MEMORY, FIRST_OUTPUT = 256 << 20, 64 << 20
"""Bytes of memory and output of a first comparison, enough for all but the largest: only where it fails are files
counted, which takes as long as the repository is large."""
MAX_KEPT = 2000
"""Changed files that are cached for callers that ask what a commit changes."""
# core.bigFileThreshold: larger blobs are streamed, not held in memory. core.fsync: a ref will point to what is written
# here.
_LIMITS = tuple(part for setting in (
    "pack.threads=1", "core.bigFileThreshold=32m", "gc.auto=0", "core.fsync=committed,loose-object,reference",
    "core.fsmonitor=false", f"core.hooksPath={os.devnull}") for part in ("-c", setting))


class Excess(GarrisonError):
    """A history exceeds the bounds; `what` says which."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the commits are too large to be accepted: {what}")
        self.what = what


def explain_excess(git: Commits, base: str, commit: str) -> str:
    """Return which bound the history of `commit` that `base` lacks exceeds; '' if none.

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
            lines = check_bounds(folder, base, [commit])[0]
        except Excess as error:
            return error.what
    if len(lines) <= MAX_KEPT:  # the next reader of the commit asks what it changes
        git.note_changes(base, commit, [(about.decode(), name.decode(errors="backslashreplace"))
                                        for about, name in lines])
    return ""


def make_git_directory(folder: Path, borrowed: Sequence[Path], *, is_sha256: bool, settings: str = "") -> None:
    """Create a git directory without refs that borrows objects."""
    for name in ("refs", "objects/info", "objects/pack"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/none\n")
    extension = "[extensions]\n\tobjectFormat = sha256\n" if is_sha256 else ""
    core = f"[core]\n\trepositoryformatversion = {int(is_sha256)}\n{settings}"
    (folder / "config").write_text(core + extension)
    (folder / "objects" / "info" / "alternates").write_text("".join(f"{quote_in_list(path)}\n" for path in borrowed))


def quote_in_list(path: Path) -> str:
    """Return a path as git reads it in a list of alternates: quoted if it has a line break, for example."""
    text = str(path)
    if "\n" not in text and not text.startswith(('"', "#")):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def check_bounds(folder: Path, base: str, commits: Sequence[str],
                 objects: Sequence[str] | None = None) -> list[list[tuple[bytes, bytes]]]:
    """Refuse objects larger than git should load as a whole, and commits whose checkout has more files, levels or
    content than a repository may gain at once.

    `objects`: those to measure; None for all that the commits have and `base` lacks. Return git's raw lines on the
    files that each commit changes, each with its path. Excess, or GitError.
    """
    known = ["--not", base] if base else []
    base = base or run_git(folder, "mktree").decode().strip()
    compare = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", base)
    with ExitStack() as stack:
        listing = None if objects is not None else stack.enter_context(_Call(
            folder, "rev-list", "--objects", "--no-object-names", "--filter=blob:none", *commits, *known))
        # while git lists, but one after the other: an agent may leave as many commits as it likes
        found = [_read_changes(folder, *compare, commit) for commit in commits]
        names = list(objects or ()) if listing is None else listing.finish().decode().split()
    blobs = list(dict.fromkeys(blob for lines in found for blob in _list_blobs(lines or ())))
    sizes = _sizes_of(folder, [*names, *blobs])
    for name, (kind, size) in zip(names, sizes, strict=False):
        if size > MAX_OBJECT.get(kind, size):
            raise Excess(f"the {kind} {name[:10]} has {size / (1 << 20):.1f} MiB, more than "
                         f"{MAX_OBJECT[kind] >> 20} MiB")
    content = {name: size for name, (_, size) in zip(blobs, sizes[len(names):], strict=True)}
    for index, commit in enumerate(commits):
        if (lines := found[index]) is None:
            # It failed for its size: counted before git compares it whole, which holds all differences in memory.
            _count_files(folder, base, commit)
            lines = found[index] = _split_lines(run_git(folder, *compare, commit))
            more = list(dict.fromkeys(_list_blobs(lines)).keys() - content.keys())
            content |= {name: size for name, (_, size) in zip(more, _sizes_of(folder, more), strict=True)}
        if sum(content[blob] for blob in _list_blobs(lines)) >> 20 > MAX_CHECKOUT >> 20:
            raise Excess(f"{commit[:10]} has more than {MAX_CHECKOUT >> 20:,} MiB of new content")
    return [lines or [] for lines in found]


def _read_changes(folder: Path, *compare: str) -> list[tuple[bytes, bytes]] | None:
    """Return the raw lines of a comparison; None if there are so many, or it failed, that files have to be counted."""
    try:
        with _Call(folder, *compare, max_memory=FIRST_MEMORY, max_output=FIRST_OUTPUT) as call:
            lines = _split_lines(call.finish())
    except (Excess, GitError):
        return None
    is_usual = len(lines) <= MAX_FILES and all(name.count(b"/") <= MAX_LEVELS for _, name in lines)
    return lines if is_usual else None


def _split_lines(output: bytes) -> list[tuple[bytes, bytes]]:
    """Return raw lines, each with its path. Pure."""
    fields = output.split(b"\0")
    return list(zip(fields[:-1:2], fields[1::2], strict=True))


def _list_blobs(lines: Iterable[tuple[bytes, bytes]]) -> Iterator[str]:
    """Yield the blob of each file that is added or changed. Pure."""
    return (about.split(b" ")[3].decode() for about, _ in lines if not about.endswith(b" D"))


def _count_files(folder: Path, base: str, commit: str) -> None:
    """Refuse a commit with too many files or levels before git compares it, which keeps all differences in memory."""
    tree = _Tally(MAX_FILES)
    try:
        run_git(folder, "ls-tree", "-r", "-z", "--name-only", commit, output=tree)
    except _TooManyFiles:
        before = _Tally(1 << 62)
        with suppress(_TooManyFiles):
            run_git(folder, "ls-tree", "-r", "-z", "--name-only", base, output=before)
        tree = _Tally(before.files + MAX_FILES)
        with suppress(_TooManyFiles):
            run_git(folder, "ls-tree", "-r", "-z", "--name-only", commit, output=tree)
    for what, found, most in (("files", tree.files, tree.most), ("levels of folders", tree.levels, MAX_LEVELS)):
        if found > most:
            raise Excess(f"{commit[:10]} has more than {most:,} {what}")


def _sizes_of(folder: Path, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return kind and size of these objects; 0 for a missing one, such as a submodule's commit."""
    listing = run_git(folder, "cat-file", "--batch-check=%(objecttype) %(objectsize)",
                      text="".join(f"{name}\n" for name in names).encode()) if names else b""
    fields = (line.partition(" ") for line in listing.decode().splitlines())
    return [(kind, int(size) if size.isdigit() else 0) for kind, _, size in fields]


class _TooManyFiles(Exception):
    """A tree has more files than the limit."""


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
            output: IO[bytes] | _Tally | None = None, extra: Mapping[str, str] | None = None,
            seconds: float = MAX_SECONDS) -> bytes:
    """Run git in a git directory of garrison, with only its own configuration, within the limits.

    GitError if it fails, Excess if it takes too long or writes too much.
    """
    with _Call(folder, *arguments, text=text, source=source, extra=extra, seconds=seconds) as call:
        return call.finish(output)


class _Call:
    """A git that runs within the limits: a context, at whose end it has ended."""

    def __init__(self, folder: Path, *arguments: str, text: bytes | None = None, source: IO[bytes] | None = None,
                 extra: Mapping[str, str] | None = None, max_memory: int = MAX_MEMORY,
                 max_output: int = MAX_BYTES, seconds: float = MAX_SECONDS) -> None:
        self._arguments, self._max_output, self._excess = arguments, max_output, ""
        env = {**environment(), "GIT_DIR": str(folder), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
               "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", **(extra or {})}
        with ExitStack() as stack:
            self._errors = stack.enter_context(in_memory())
            if text is not None:
                source = stack.enter_context(in_memory(text))
            self._child = stack.enter_context(subprocess.Popen(
                ["git", *_LIMITS, *arguments], env=env, cwd=folder, stderr=self._errors, stdout=subprocess.PIPE,
                stdin=source or subprocess.DEVNULL, executable=find_git(env.get("PATH", ""))))
            stack.callback(self._kill)
            with suppress(ProcessLookupError, PermissionError):
                # the files it maps do not count
                resource.prlimit(self._child.pid, resource.RLIMIT_DATA, (max_memory, max_memory))
            self._seconds, self._deadline = seconds, time.monotonic() + seconds
            self._stack = stack.pop_all()

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _kill(self) -> None:
        if self._child.returncode is None:
            self._child.kill()

    def _end(self, why: str) -> None:
        self._excess = why
        self._child.kill()

    def finish(self, output: IO[bytes] | _Tally | None = None) -> bytes:
        """Read all that it writes, into `output` or else returned, until it has ended.

        GitError if it fails, Excess if it takes too long or writes too much.
        """
        size, chunks = 0, []
        while chunk := self._read():
            size += len(chunk)
            if size > self._max_output:
                self._end(f"more than {self._max_output >> 20} MiB of new objects")
                break
            if output is None:
                chunks.append(chunk)
            else:
                output.write(chunk)
        code = self._wait()
        if self._excess:
            raise Excess(f"git {self._arguments[0]} takes {self._excess}")
        if code:
            self._errors.seek(0)
            raise GitError(self._arguments, code, self._errors.read(1 << 16).decode(errors="replace"))
        return b"".join(chunks)

    def _read(self) -> bytes:
        """Return more of its output, nothing at its end, or if its time is over."""
        assert self._child.stdout is not None
        waiting = select.poll()
        waiting.register(self._child.stdout, select.POLLIN)
        if waiting.poll(max(0.0, self._deadline - time.monotonic()) * 1000):
            return os.read(self._child.stdout.fileno(), 1 << 16)
        self._end(f"more than {self._seconds:g} s")
        return b""

    def _wait(self) -> int:
        try:
            return self._child.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._end(f"more than {self._seconds:g} s")
            return self._child.wait()
