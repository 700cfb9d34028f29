"""Textual union: keep the lines of both sides where both only added lines at the same place of a changelog.

Two branches that each add a line to CHANGELOG.md conflict for git although both lines are wanted. In files known to
grow in this way (`is_grown_by_name`, or `merge=union` in the target's `.gitattributes`) such a conflict is resolved:
the target's lines first, then the branch's. It remains a conflict

- where a side changed or removed a line: a union would bring back what it removed;
- where a line is numbered (`1.`, `2)`, `b.`): both sides of an ordered list would have the same next number;
- where the two sides differ in more than the text: a rename, a mode, a link, a file against a folder.

The result is a candidate like any other: its tree lands only if it passes the gate. The branch's own `.gitattributes`
count once they have landed.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from garrison.system.git.commits import MergeResult

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from garrison.system.git import Git

MAX_BYTES = 4_000_000
"""Maximum size in bytes of a united file."""
_NAME = re.compile(r"(change[-_ ]?log|changes|news|history|release[-_ ]?notes|releases|whats[-_ ]?new)"
                   r"([-_. ][^/]*)?", re.IGNORECASE)
_TEXTS = frozenset({"", ".md", ".markdown", ".rst", ".txt", ".adoc", ".asciidoc", ".org", ".textile", ".rdoc"})
_REGULAR = frozenset({"100644", "100755"})
_ORDERED = re.compile(r"[\s>]*(?:[-*+]\s+)?\(?(?:\d+|[A-Za-z]|[ivxlcIVXLC]+|#)[.)](?:\s|$)")
"""Item of an ordered list: its number would appear twice."""
_MARKER = 61
"""Length of temporary conflict markers: no text has such lines (`_merge_texts` checks)."""


def is_grown_by_name(path: str) -> bool:
    """Return whether files of this name only grow: CHANGELOG.md, docs/NEWS, HISTORY-2024.rst."""
    name = PurePosixPath(path).name
    suffix = PurePosixPath(name).suffix.lower()
    return _NAME.fullmatch(name) is not None and (suffix in _TEXTS or suffix.strip(".").isdigit())


# ----------------------------------------------------------------------------------------------------- the text (pure)


def unite_lines(ours: Sequence[str], theirs: Sequence[str]) -> list[str] | None:
    """Return the lines that both sides added at one place, without repeating a common start or end; None if
    numbered."""
    if any(_ORDERED.match(line) for line in (*ours, *theirs)):
        return None
    most = min(len(ours), len(theirs))
    head = next((index for index in range(most) if ours[index] != theirs[index]), most)
    most -= head
    tail = next((index for index in range(most) if ours[-1 - index] != theirs[-1 - index]), most)
    return [*ours[:len(ours) - tail], *theirs[head:]]


def unite_text(merged: str, size: int = _MARKER) -> str | None:
    """Return a text from `git merge-file --diff3` with every conflict united; None if one cannot be.

    Args:
        size: length of the markers.
    """
    result: list[str] = []
    parts: list[list[str]] | None = None
    for line in merged.splitlines(keepends=True) if merged else []:
        mark = line[0] if len(line.rstrip("\r\n")) >= size and line[:size] == line[0] * size else ""
        if mark == "<" and parts is None:
            parts = [[]]
        elif (mark == "|" and parts is not None and len(parts) == 1) or (
                mark == "=" and parts is not None and len(parts) == 2):
            parts.append([])
        elif mark == ">" and parts is not None and len(parts) == 3:
            ours, base, theirs = parts
            united = None if base else unite_lines(ours, theirs)
            if united is None:
                return None
            result += united
            parts = None
        else:
            (result if parts is None else parts[-1]).append(line)
    return None if parts is not None else "".join(result)


# ----------------------------------------------------------------------------------------------------------- with git


class Stages(NamedTuple):
    """Versions of a file in conflict: (mode, blob) of the merge base, ours and theirs; None where it is absent."""

    base: tuple[str, str] | None
    ours: tuple[str, str] | None
    theirs: tuple[str, str] | None

    @property
    def mode(self) -> str:
        return self.ours[0] if self.ours is not None else ""

    @property
    def is_textual(self) -> bool:
        return self.ours is not None and self.theirs is not None and self.ours[0] == self.theirs[0] in _REGULAR and (
            self.base is None or self.base[0] in _REGULAR)


def merge(git: Git, ours: str, theirs: str, target: str) -> MergeResult:
    """Merge two commits without a checkout, using unions if they resolve all conflicts (`united` names the files).

    Args:
        target: the commit whose `.gitattributes` allow unions.
    """
    result = git.merge_tree(ours, theirs)
    if result.tree is not None or not result.conflicts:
        return result
    united = unite_files(git, ours, theirs, target, result.conflicts)
    if set(united) != set(result.conflicts):
        return result
    return MergeResult(_replace(git, git.merge_stages(ours, theirs)[0], united), [], united=tuple(sorted(united)))


def is_united(git: Git, ours: str, theirs: str, target: str, conflicts: Collection[str]) -> bool:
    return bool(conflicts) and set(unite_files(git, ours, theirs, target, conflicts)) == set(conflicts)


def unite_files(git: Git, ours: str, theirs: str, target: str, conflicts: Iterable[str],
                ) -> dict[str, tuple[str, str]]:
    """Return mode and blob of the union for each conflicting file that has one, and write the blobs."""
    names = find_grown(git, target, conflicts)
    if not names:
        return {}
    _, stages = git.merge_stages(ours, theirs)
    found = {}
    for name in sorted(names):
        versions = Stages(*(stages.get((name, stage)) for stage in (1, 2, 3)))
        if versions.is_textual and (text := _unite(git, versions)) is not None:
            blob = git.run("hash-object", "-w", "--stdin", text=text, durable=True).out.strip()
            found[name] = (versions.mode, blob)
    return found


def find_grown(git: Git, target: str, paths: Iterable[str]) -> list[str]:
    """Return which of these files may be united: the target's `.gitattributes` decide, else their names."""
    names = list(paths)
    rules = _read_attributes(git, target, names)
    return [name for name in names
            if (is_grown_by_name(name) if (rule := rules.get(name, "")) in ("", "unspecified", "set")
                else rule == "union")]


def _read_attributes(git: Git, target: str, names: Sequence[str]) -> dict[str, str]:
    """Return the attribute `merge` of these files from the target's `.gitattributes`, without a checkout."""
    places = {str(folder / ".gitattributes") for name in names for folder in PurePosixPath(name).parents}
    listed = git.run("ls-tree", "-z", "--full-tree", target, "--", *sorted(places), exact=True).out.split("\0")
    files = [line for line in listed if line.partition(" ")[0] in _REGULAR]
    if not files:
        return {}
    # use an index: `check-attr --source` reads a commit's files directly, but needs git 2.40
    with _open_index(git) as where:
        git.run("update-index", "-z", "--index-info", text="".join(f"{line}\0" for line in files), extra=where)
        answer = git.run("check-attr", "--cached", "-z", "--stdin", "merge", extra=where, exact=True,
                         text="".join(f"{name}\0" for name in names)).out.split("\0")
    return dict(zip(answer[::3], answer[2::3], strict=False))


@contextmanager
def _open_index(git: Git) -> Iterator[Mapping[str, str]]:
    """Yield the environment variables for a separate index."""
    with git.open_scratch() as folder:
        yield {"GIT_INDEX_FILE": str(Path(folder) / "index")}


def _unite(git: Git, versions: Stages) -> str | None:
    """Return the union of a file's versions; None if impossible."""
    blobs = [version[1] for version in (versions.base, versions.ours, versions.theirs) if version is not None]
    sizes = git.run("cat-file", "--batch-check=%(objectsize)", text="".join(f"{blob}\n" for blob in blobs)).out.split()
    if len(sizes) != len(blobs) or any(not size.isdigit() or int(size) > MAX_BYTES for size in sizes):
        return None
    texts = [git.run("cat-file", "blob", version[1], exact=True).out if version is not None else ""
             for version in (versions.base, versions.ours, versions.theirs)]
    return _merge_texts(git, *texts)


def _merge_texts(git: Git, base: str, ours: str, theirs: str) -> str | None:
    if "\0" in base + ours + theirs or any(mark * _MARKER in base + ours + theirs for mark in "<|=>"):
        return None
    is_open = bool(ours and theirs) and not ours.endswith("\n") and not theirs.endswith("\n")
    with git.open_scratch() as folder:
        paths = []
        for name, text in (("ours", ours), ("base", base), ("theirs", theirs)):
            path = Path(folder) / name
            whole = text if not text or text.endswith("\n") else f"{text}\n"  # a missing final newline is no change
            path.write_bytes(whole.encode(errors="surrogateescape"))
            paths.append(str(path))
        answer = git.run("merge-file", "-p", "-q", "--diff3", f"--marker-size={_MARKER}", *paths, check=False,
                         exact=True)
    if not 0 <= answer.code <= 127:  # too many conflicts, or git failed
        return None
    united = unite_text(answer.out)
    return united.removesuffix("\n") if united is not None and is_open else united


def _replace(git: Git, tree: str, files: Mapping[str, tuple[str, str]]) -> str:
    """Return a tree with these files replaced."""
    with _open_index(git) as where:
        git.run("read-tree", tree, extra=where)
        git.run("update-index", "-z", "--index-info", extra=where,
                text="".join(f"{mode} {blob}\t{name}\0" for name, (mode, blob) in files.items()))
        return git.run("write-tree", extra=where, durable=True).out.strip()
