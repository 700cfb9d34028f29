"""Differences between two commits, for users: the list of changed files, and the lines of one file, both bounded.

All content was written by agents. git is called with garrison's usual options, so no program of the repository runs;
files are compared by blobs, so git gets no name as a pattern; characters that a terminal or a browser would interpret
or hide are spelled out. Files that are too large, or not text, are summarised.
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
"""Maximum number of changed files in one answer."""
LINES = 600
"""Maximum number of lines of a diff in one answer."""
LINE_CHARACTERS = 500
"""Maximum length of a line; a longer one is cut, with the number of characters that follow."""
BIG_FILE = 2 << 20
"""Size in bytes at which a file is summarised instead of compared line by line."""
BIGGEST_FILE = 32 << 20
"""Size in bytes up to which it is compared on request."""
CONTEXT = 3
"""Unchanged lines around each change."""
WHOLE_FILE = 100_000_000
"""Context that covers a whole file."""
SECONDS = 20.0
"""Time limit of a git call."""
_NUL_WITHIN = 8000
"""Characters within which git looks for a NUL to tell data from text."""
# git passes its `-c` options to child programs in GIT_CONFIG_PARAMETERS
SUMMARISE_BIG_FILES = {"GIT_CONFIG_PARAMETERS": f"'core.bigfilethreshold={BIG_FILE}'"}
"""Variable that keeps git from comparing larger files line by line."""
_RANGE = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")
_SUBMODULE, _LINK = "160000", "120000"
_STATUS = {"A": "added", "D": "deleted", "M": "modified", "R": "renamed", "C": "copied", "T": "changed its type"}


class CommitRange(Value):
    """Range of commits of one attempt: its work is the difference between `base` and `head`."""

    run: str
    node: str
    attempt: int
    base: str
    head: str
    target: str
    commit: str
    """Its last commit; differs from `head` while there are uncommitted changes."""
    landing: str = ""
    entry: str = ""
    awaits_approval: bool = False
    since: int = 0
    """Attempt at whose work `base` is, 0 if it is on the target."""

    @property
    def is_uncommitted(self) -> bool:
        return self.head != self.commit


class ShownFile(Value):
    """Changed file. `path` is from git, with `\\xNN` for what is not UTF-8."""

    path: str
    status: str
    """One of added, deleted, modified, renamed, copied, changed its type."""
    old_path: str = ""
    added: int | None = None
    """Lines added; None for data, and for files that are too large."""
    removed: int | None = None
    mode: str = ""
    """Change of its mode, such as `100644 → 100755`."""


class FileChange(ShownFile):
    """A changed file with its two blobs."""

    old_blob: str = ""
    new_blob: str = ""

    def spelled(self) -> FileChange:
        """Return a copy with its names spelled out, for users."""
        return replace(self, path=spell_name(self.path), old_path=spell_name(self.old_path))


class DiffLine(Value, array_like=True):
    """Line of a diff, a short list in JSON: `kind` is ` `, `+`, `-` or `@` (the start of a hunk)."""

    kind: str
    old: int
    """Its number in the older file, 0 for none."""
    new: int
    text: str
    more: int = 0
    """Number of characters not shown."""


class FileDiff(Value):
    """Some lines of one file's diff, its names spelled out; `next` is where they continue, None after the last."""

    file: FileChange
    lines: Sequence[DiffLine]
    note: str = ""
    """Why no lines are shown, such as `data, 12,345 bytes`."""
    next: int | None = None
    can_load: bool = False
    """True for a big file that can be compared line by line on request."""


def changed_files(git: Git, base: str, head: str) -> list[FileChange]:
    """Return the files that differ between two commits, in git's order; GitError if one is gone, or on a time-out."""
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
            # first all raw lines, then all counts in the same order; names may contain tabs and line feeds
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
    """Return the file at a position in the list; NotFound."""
    if not 0 <= number < len(files):
        raise NotFound(f"there is no changed file {number}; {len(files)} files changed")
    return files[number]


def read_diff(git: Git, file: FileChange, begin: int = 0, lines: int = LINES, *, context: int = CONTEXT,
              big: bool = False) -> FileDiff:
    """Return lines of one file's diff, starting at line `begin`.

    Args:
        context: unchanged lines around each change; `WHOLE_FILE` for all.
        big: also compare a file above `BIG_FILE` line by line, up to `BIGGEST_FILE`.
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
    """Return lines of the newer file, or of the older one for negative numbers; NotFound beyond its end."""
    blob = file.new_blob if first > 0 else file.old_blob
    lines = _split(_read(git, blob)) if max(_sizes(git, file)) <= BIGGEST_FILE else []
    if not 0 < abs(first) <= abs(last) <= len(lines):
        raise NotFound(f"{spell_name(file.path)} has no line {abs(first if abs(first) > len(lines) else last)}"
                       + (" in the version before the change" if first < 0 else ""))
    return lines[abs(first) - 1:abs(last)]


def changed_ranges(git: Git, old: str, new: str) -> list[range]:
    """Return the lines of a blob that another one lacks, with an insertion as the empty range after its preceding line;
    all lines if they cannot be compared line by line.
    """
    if old == new:
        return []
    # nothing to compare with, or too much: comments on it count as outdated rather than untouched
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
    """Return the shown part of a line, hidden characters spelled out, and the number of characters that follow."""
    return spell_hidden(text[:LINE_CHARACTERS]), max(0, len(text) - LINE_CHARACTERS)


def parse_hunks(output: str) -> Iterator[DiffLine]:
    """Yield the lines of a diff of one file. Pure."""
    old = new = 0
    for row in _split(output):
        # every line of the content starts with a sign: an apparent header behind one is content
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
        # by blobs, as text: attributes of the repository have no influence
        yield from parse_hunks(git.run("diff", "--no-color", "--text", f"-U{context}", "-O/dev/null", file.old_blob,
                                       file.new_blob, "--", timeout=SECONDS).out)


def _take(lines: Iterator[DiffLine], begin: int, many: int) -> Iterator[DiffLine]:
    for at, line in enumerate(lines):
        if at >= begin + many:
            return
        if at >= begin:
            yield line


def _split(text: str) -> list[str]:
    """Return the lines of a text; as in git, only a line feed ends one."""
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
