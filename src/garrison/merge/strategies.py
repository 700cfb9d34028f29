"""Strategies: how a branch becomes commits of its target without a checkout: merge, squash, rebase, ff-only.

The same entry on the same base with the same trailers gives the same commits, byte for byte; authors and their dates
are kept, garrison is the committer; the tree of a candidate is the one that is tested and the one that lands. The last
commit bears the queue's trailers, except with ff-only, which makes no commit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from garrison.system.clock import from_iso
from garrison.system.git.objects import MergeResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from garrison.merge.entry import MergeEntry
    from garrison.system.git import Git
    from garrison.system.git.history import Commit

    Trailers = Callable[[str], Sequence[str]]
    """Tree → the lines that end a commit's message."""

_TRAILER = re.compile(r"[A-Za-z0-9-]+: \S")


class Candidate(NamedTuple):
    """Commit that would land; without a `commit` there is none, and `files` and `reason` say why.

    A `commit` that is the base says that the branch brings nothing that the base does not have.
    """

    tree: str
    commit: str | None
    files: tuple[str, ...] = ()
    reason: str = ""


def build_candidate(git: Git, entry: MergeEntry, base: str, trailers: Trailers, tree: str = "") -> Candidate:
    """Build the commit that `entry` would put on top of `base`, by its strategy. Writes objects, moves nothing.

    `tree`: what a merge of the two is known to give, so that it is not merged again.
    """
    if tree and entry.strategy == "merge":
        return _merge(git, entry, base, trailers, MergeResult(tree, []))
    return _STRATEGIES[entry.strategy](git, entry, base, trailers)


def _merge(git: Git, entry: MergeEntry, base: str, trailers: Trailers, merged: MergeResult | None = None) -> Candidate:
    merged = merged or git.merge_tree(base, entry.oid)
    if merged.tree is None:
        return _conflict(merged)
    message = append_trailers(f"Merge {entry.branch} into {entry.target}", trailers(merged.tree))
    return Candidate(merged.tree, git.commit_tree(merged.tree, [base, entry.oid], message, date=_date(entry)))


def _squash(git: Git, entry: MergeEntry, base: str, trailers: Trailers) -> Candidate:
    merged = git.merge_tree(base, entry.oid)
    if merged.tree is None:
        return _conflict(merged)
    if merged.tree == git.tree_of(base):
        return Candidate(merged.tree, base)
    work = [commit for commit in git.commits(base, entry.oid) if len(commit.parents) < 2]
    message, coauthors = squash_message(entry.branch, work)
    lines = [*(f"Co-authored-by: {name}" for name in coauthors), *trailers(merged.tree)]
    return Candidate(merged.tree, git.commit_tree(merged.tree, [base], append_trailers(message, lines),
                                                  date=_date(entry), author=work[0].author if work else None))


def _rebase(git: Git, entry: MergeEntry, base: str, trailers: Trailers) -> Candidate:
    work = git.commits(base, entry.oid)
    odd = next((commit for commit in work if len(commit.parents) != 1), None)
    if odd:
        what = "is a merge" if odd.parents else "has no parent"
        return Candidate("", None, (), f"commit {odd.oid[:10]} of {entry.branch} {what}, which cannot be rebased; make "
                                       "its history straight, or enqueue it with another strategy")
    picked, tree = [], git.tree_of(base)
    for commit in work:
        result = _cherry_pick(git, commit, tree)
        if result.tree is None:
            return Candidate("", None, tuple(result.conflicts), f"{result.reason} while {commit.oid[:10]} was rebased")
        if result.tree != tree:
            picked.append((commit, result.tree))
            tree = result.tree
    top = base
    for left, (commit, after) in zip(reversed(range(len(picked))), picked, strict=True):
        if left and commit.parents == [top]:
            top = commit.oid  # it is already where it would be put
        else:
            message = append_trailers(commit.message, () if left else trailers(after))
            top = git.commit_tree(after, [top], message, date=_date(entry), author=commit.author)
    return Candidate(tree, top)


def _cherry_pick(git: Git, commit: Commit, tree: str) -> MergeResult:
    """Apply what `commit` changed on top of `tree`: a merge whose base is its parent."""
    return git.merge_tree(git.commit_tree(tree, commit.parents, "base of a rebase\n", date=0), commit.oid)


def _ff_only(git: Git, entry: MergeEntry, base: str, trailers: Trailers) -> Candidate:
    if not git.is_ancestor(base, entry.oid):
        return Candidate("", None, (), f"{entry.target} at {base[:10]} is not contained in {entry.branch}, so it "
                                       "cannot be moved forward to it; bring the branch up to date and enqueue it "
                                       "again")
    return Candidate(git.tree_of(entry.oid), entry.oid)


_STRATEGIES: dict[str, Callable[[Git, MergeEntry, str, Trailers], Candidate]] = {
    "merge": _merge, "squash": _squash, "rebase": _rebase, "ff-only": _ff_only}


def _date(entry: MergeEntry) -> int:
    return int(from_iso(entry.enqueued_at))


def _conflict(merged: MergeResult) -> Candidate:
    return Candidate("", None, tuple(merged.conflicts), merged.reason)


# ------------------------------------------------------------------------------------------------------------- messages


def squash_message(branch: str, work: Sequence[Commit]) -> tuple[str, list[str]]:
    """Return the message for all of `work` in one commit, and its authors beside the first's (`Name <mail>`)."""
    authors = list(dict.fromkeys(f"{commit.author.name} <{commit.author.email}>" for commit in work))
    if len(work) == 1:
        return work[0].message, []
    subjects = "".join(f"* {commit.message.strip().partition(chr(10))[0]}\n" for commit in work)
    return f"Squash {branch}\n\n{subjects}" if subjects else f"Squash {branch}", authors[1:]


def append_trailers(message: str, trailers: Sequence[str]) -> str:
    """Return `message` with trailers at its end, joined to those that it has."""
    text = message.strip("\n")
    if not trailers:
        return f"{text}\n"
    paragraph = text.rpartition("\n\n")[2] if "\n\n" in text else ""
    has_trailers = bool(paragraph) and all(_TRAILER.match(line) for line in paragraph.split("\n"))
    return text + ("\n" if has_trailers else "\n\n") + "\n".join(trailers) + "\n"
