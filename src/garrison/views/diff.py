"""Differences between two commits, for people: the list of changed files, and the lines of one file, both bounded.

Everything here was written by agents. git is called as garrison calls it everywhere, so no program of the repository
runs; files are compared by their blobs, so no name is given to git as a pattern; characters that a terminal or a
browser would act upon or hide are spelled out. A file that is too large, or not text, is summarised.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from garrison.errors import NotFound
from garrison.system.git import GitError
from garrison.system.terminal_text import spell_hidden, spell_name
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from garrison.system.git import Git

FILES = 200
"""Changed files in one answer."""
LINES = 600
"""Lines of a diff in one answer."""
LINE_CHARACTERS = 500
"""Longest line that is shown whole; of a longer one the beginning, and how much follows."""
BIG_FILE = 2 << 20
"""Bytes from which a file is summarised, not compared line by line."""
BIGGEST_FILE = 32 << 20
"""Bytes up to which it is compared where somebody asks for it."""
CONTEXT = 3
"""Unchanged lines around each change."""
WHOLE_FILE = 100_000_000
"""Context that is all of a file."""
SECONDS = 20.0
"""Time limit of a call of git."""
_NUL_WITHIN = 8000
"""Characters within which git looks for a NUL to tell data from text."""
# GIT_CONFIG_PARAMETERS is how git hands its `-c` options down to the programs that it starts.
SUMMARISE_BIG_FILES = {"GIT_CONFIG_PARAMETERS": f"'core.bigfilethreshold={BIG_FILE}'"}
"""Variable by which git compares no larger file line by line."""
_RANGE = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")
_SUBMODULE, _LINK = "160000", "120000"
_STATUS = {"A": "added", "D": "deleted", "M": "modified", "R": "renamed", "C": "copied", "T": "changed its type"}


class CommitRange(Value):
    """Range of commits of one attempt: what differs between `base` and `head` is its work."""

    run: str
    node: str
    attempt: int
    base: str
    head: str
    target: str
    commit: str
    """Its last commit; `head` is another one while there is work that was not committed."""
    landing: str = ""
    entry: str = ""
    awaits_approval: bool = False
    since: int = 0
    """The attempt whose work `base` is, 0 where it is of the target."""

    @property
    def is_uncommitted(self) -> bool:
        return self.head != self.commit


class ShownFile(Value):
    """One changed file. `path` is as git has it, with `\\xNN` for what is not UTF-8."""

    path: str
    status: str
    """One of added, deleted, modified, renamed, copied, changed its type."""
    old_path: str = ""
    added: int | None = None
    """Lines added; None for data, and for a file that is too large."""
    removed: int | None = None
    mode: str = ""
    """Its new mode where that changed, as `100644 → 100755`."""


class FileChange(ShownFile):
    """A changed file with its two blobs."""

    old_blob: str = ""
    new_blob: str = ""

    def spelled(self) -> FileChange:
        """Return it with its names spelled out, for people."""
        return replace(self, path=spell_name(self.path), old_path=spell_name(self.old_path))


class DiffLine(Value, array_like=True):
    """One line of a diff, as JSON a short list: `kind` is ` `, `+`, `-` or `@` (the beginning of a hunk)."""

    kind: str
    old: int
    """Its number in the older file, 0 for none."""
    new: int
    text: str
    more: int = 0
    """Characters of it that are not shown."""


class FileDiff(Value):
    """Some lines of one file's diff, its names spelled out; `next` is where more begin, None after the last."""

    file: FileChange
    lines: Sequence[DiffLine]
    note: str = ""
    """Reason why no lines are shown, such as `data, 12,345 bytes`."""
    next: int | None = None
    can_load: bool = False
    """True for a big file that can be compared line by line if it is asked for."""


def changed_files(git: Git, base: str, head: str) -> list[FileChange]:
    """Return what differs between two commits, in git's order; GitError if one is gone, or it takes too long."""
    out = git.run("diff-tree", "-r", "-z", "-M", "--raw", "--numstat", "--no-abbrev", "--end-of-options", base, head,
                  "--", timeout=SECONDS, extra=SUMMARISE_BIG_FILES).out
    return parse_changes(out)


def parse_changes(output: str) -> list[FileChange]:
    """Return the files that `git diff-tree -r -z -M --raw --numstat` lists. Pure."""
    parts = iter(output.split("\0"))
    raw: list[FileChange] = []
    counts: list[tuple[int | None, int | None]] = []
    for part in parts:
        if part.startswith(":"):
            raw.append(_parse_raw(part, parts))
        elif part:
            # First all raw lines, then all counts, in one order; a name may have tabs and line feeds.
            added, removed, name = part.split("\t", 2)
            if not name:  # a rename: both names follow
                next(parts, ""), next(parts, "")
            counts.append((_number(added), _number(removed)))
    counts += [(None, None)] * (len(raw) - len(counts))
    return [replace(file, added=added, removed=removed)
            for file, (added, removed) in zip(raw, counts, strict=False)]


def _parse_raw(part: str, rest: Iterator[str]) -> FileChange:
    old_mode, mode, old_blob, new_blob, status = part[1:].split(" ")
    name = next(rest, "")
    old_name = name if status[0] in "RC" else ""
    if old_name:
        name = next(rest, "")
    changed = f"{old_mode} → {mode}" if old_mode != mode and status[0] not in "AD" else ""
    special = changed or next((mode for mode in (old_mode, mode) if mode in (_SUBMODULE, _LINK)), "")
    return FileChange(name, _STATUS.get(status[0], status), old_name, None, None, special, old_blob, new_blob)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def totals(files: Iterable[FileChange]) -> tuple[int, int]:
    files = list(files)
    return sum(file.added or 0 for file in files), sum(file.removed or 0 for file in files)


def file_at(files: Sequence[FileChange], number: int) -> FileChange:
    """Return the file of a place in the list; NotFound."""
    if not 0 <= number < len(files):
        raise NotFound(f"there is no changed file {number}; {len(files)} files changed")
    return files[number]


def read_diff(git: Git, file: FileChange, begin: int = 0, lines: int = LINES, *, context: int = CONTEXT,
              big: bool = False) -> FileDiff:
    """Return lines of one file's diff, from line `begin` of it on.

    Args:
        context: unchanged lines around each change; `WHOLE_FILE` for all.
        big: compare a file above `BIG_FILE` line by line too, up to `BIGGEST_FILE`.
    """
    shown = file.spelled()
    if _SUBMODULE in file.mode or _is_submodule(git, file):
        return FileDiff(shown, (), f"a submodule: {_short(file.old_blob)} → {_short(file.new_blob)}")
    sizes = _sizes(git, file)
    if max(sizes) > (BIGGEST_FILE if big else BIG_FILE):
        can_load = max(sizes) <= BIGGEST_FILE
        note = f"{'a big file' if can_load else 'too large to show'}: {_describe_sizes(*sizes)}"
        return FileDiff(shown, (), note, can_load=can_load)
    texts = [_read(git, blob) for blob in (file.old_blob, file.new_blob)]
    if any("\0" in text[:_NUL_WITHIN] for text in texts):
        return FileDiff(shown, (), f"data, not text: {_describe_sizes(*sizes)}")
    found = list(_take(_all_lines(git, file, context, *texts), begin, lines + 1))
    note = "" if found or begin else "no line of it changed" if sizes[0] or sizes[1] else "empty"
    return FileDiff(shown, found[:lines], note, begin + lines if len(found) > lines else None)


def read_lines(git: Git, file: FileChange, first: int, last: int) -> list[str]:
    """Return lines of the newer file, or with negative numbers of the older one; NotFound if it has not so many."""
    blob = file.new_blob if first > 0 else file.old_blob
    lines = _split(_read(git, blob)) if max(_sizes(git, file)) <= BIGGEST_FILE else []
    if not 0 < abs(first) <= abs(last) <= len(lines):
        raise NotFound(f"{spell_name(file.path)} has no line {abs(first if abs(first) > len(lines) else last)}"
                       + (" in the version before the change" if first < 0 else ""))
    return lines[abs(first) - 1:abs(last)]


def changed_ranges(git: Git, old: str, new: str) -> list[range]:
    """Return the lines of one blob that another one does not have, an insertion as the empty range at the line that
    it follows; all lines, if there is nothing to compare line by line.
    """
    if old == new:
        return []
    # Nothing to compare with, or too much: every comment on it counts as outdated rather than as untouched.
    if is_absent(new) or max(_size(git, old), _size(git, new)) > BIGGEST_FILE:
        return [range(1, sys.maxsize)]
    output = git.run("diff", "--no-color", "--text", "-U0", "-O/dev/null", old, new, "--", timeout=SECONDS).out
    return parse_ranges(output)


def parse_ranges(output: str) -> list[range]:
    """Return the changed lines of the older file, of a diff without context. Pure."""
    found = []
    left = 0
    for row in _split(output):
        if left and row[:1] in ("-", "+"):
            left -= 1
        elif not left and (hunk := _RANGE.match(row)) is not None:
            first, count, added = int(hunk[1]), int(hunk[2] or 1), int(hunk[3] or 1)
            left = count + added
            found.append(range(first, first + count))
    return found


def show_line(text: str) -> tuple[str, int]:
    """Return the part of a line that is shown, its hidden characters spelled out, and how many characters follow."""
    return spell_hidden(text[:LINE_CHARACTERS]), max(0, len(text) - LINE_CHARACTERS)


def parse_hunks(output: str) -> Iterator[DiffLine]:
    """Yield the lines of a diff of one file. Pure."""
    old = new = 0
    for row in _split(output):
        # Every line of the content begins with a sign: what looks like a header behind one is content.
        if (hunk := _HUNK.fullmatch(row)) is not None and not (old and row[:1] in " +-"):
            old, new = int(hunk[1]), int(hunk[2])
            yield _line("@", 0, 0, row)
        elif not (old or new) or row.startswith("\\"):  # before the first hunk; `\ No newline at end of file`
            continue
        elif row.startswith("+"):
            yield _line("+", 0, new, row[1:])
            new += 1
        elif row.startswith("-"):
            yield _line("-", old, 0, row[1:])
            old += 1
        else:
            yield _line(" ", old, new, row[1:])
            old, new = old + 1, new + 1


def _line(kind: str, old: int, new: int, text: str) -> DiffLine:
    shown, more = show_line(text)
    return DiffLine(kind, old, new, shown, more)


def _all_lines(git: Git, file: FileChange, context: int, old: str, new: str) -> Iterator[DiffLine]:
    if is_absent(file.old_blob):
        yield from (_line("+", 0, at, text) for at, text in enumerate(_split(new), 1))
    elif is_absent(file.new_blob):
        yield from (_line("-", at, 0, text) for at, text in enumerate(_split(old), 1))
    elif file.old_blob == file.new_blob and context >= WHOLE_FILE:
        yield from (_line(" ", at, at, text) for at, text in enumerate(_split(new), 1))
    elif file.old_blob != file.new_blob:
        # by blobs, as text: attributes of the repository decide neither what is compared nor whether it is shown
        yield from parse_hunks(git.run("diff", "--no-color", "--text", f"-U{context}", "-O/dev/null", file.old_blob,
                                       file.new_blob, "--", timeout=SECONDS).out)


def _take(lines: Iterator[DiffLine], begin: int, many: int) -> Iterator[DiffLine]:
    for at, line in enumerate(lines):
        if at >= begin + many:
            return
        if at >= begin:
            yield line


def _split(text: str) -> list[str]:
    """Return the lines of a text; only a line feed ends one, as for git."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def is_absent(blob: str) -> bool:
    return not blob.strip("0")


def _is_submodule(git: Git, file: FileChange) -> bool:
    blob = file.old_blob if is_absent(file.new_blob) else file.new_blob
    return git.run("cat-file", "-t", blob, check=False).out.strip() != "blob"


def _sizes(git: Git, file: FileChange) -> tuple[int, int]:
    return _size(git, file.old_blob), _size(git, file.new_blob)


def _size(git: Git, blob: str) -> int:
    if is_absent(blob):
        return 0
    answer = git.run("cat-file", "-s", blob, check=False)
    if answer.code:
        raise GitError(("cat-file", "-s", blob), answer.code, answer.err)
    return int(answer.out)


def _read(git: Git, blob: str) -> str:
    return "" if is_absent(blob) else git.run("cat-file", "blob", blob, timeout=SECONDS).out


def _short(blob: str) -> str:
    return "none" if is_absent(blob) else blob[:10]


def _describe_sizes(old: int, new: int) -> str:
    return f"{new:,} bytes" if not old else f"{old:,} → {new:,} bytes"
