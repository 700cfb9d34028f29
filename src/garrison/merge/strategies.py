"""How a branch becomes commits of its target, without a checkout: merge, squash, rebase, ff-only.

The rules of this room: the same entry on the same base with the same trailers gives the same commits, byte for byte;
authors and their dates are kept, garrison is the committer; the tree that `Built` names is the one that is tested and
the one that lands. The last commit bears the queue's trailers, except with ff-only, which makes no commit.
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


class Built(NamedTuple):
    """A candidate; without a `commit` there is none, and `files` and `reason` say why.

    A `commit` that is the base says that the branch brings nothing the base does not have.
    """

    tree: str
    commit: str | None
    files: tuple[str, ...] = ()
    reason: str = ""


def build(git: Git, entry: MergeEntry, base: str, trailers: Trailers, tree: str = "") -> Built:
    """The commit that `entry` would put on top of `base`, by its strategy. Writes objects, moves nothing.

    `tree`: what a merge of the two is known to give, so that it is not merged again.
    """
    if tree and entry.strategy == "merge":
        return _merge(git, entry, base, trailers, MergeResult(tree, []))
    return _STRATEGIES[entry.strategy](git, entry, base, trailers)


def _merge(git: Git, entry: MergeEntry, base: str, trailers: Trailers, merged: MergeResult | None = None) -> Built:
    merged = merged or git.merge_tree(base, entry.oid)
    if merged.tree is None:
        return _refused(merged)
    message = f"Merge {entry.branch} into {entry.target}"
    message = append_trailers(message, trailers(merged.tree))
    return Built(merged.tree, git.commit_tree(merged.tree, [base, entry.oid], message, date=_date(entry)))


def _squash(git: Git, entry: MergeEntry, base: str, trailers: Trailers) -> Built:
    merged = git.merge_tree(base, entry.oid)
    if merged.tree is None:
        return _refused(merged)
    if merged.tree == git.tree_of(base):
        return Built(merged.tree, base)
    work = [commit for commit in git.commits(base, entry.oid) if len(commit.parents) < 2]
    message, others = squash_message(entry.branch, work)
    lines = [*(f"Co-authored-by: {who}" for who in others), *trailers(merged.tree)]
    return Built(merged.tree, git.commit_tree(merged.tree, [base], append_trailers(message, lines), date=_date(entry),
                                              author=work[0].author if work else None))


def _rebase(git: Git, entry: MergeEntry, base: str, trailers: Trailers) -> Built:
    work = git.commits(base, entry.oid)
    odd = next((commit for commit in work if len(commit.parents) != 1), None)
    if odd:
        what = "is a merge" if odd.parents else "has no parent"
        return Built("", None, (), f"commit {odd.oid[:10]} of {entry.branch} {what}, which cannot be rebased; make its "
                                   "history straight, or enqueue it with another strategy")
    picked, tree = [], git.tree_of(base)
    for commit in work:
        result = _picked(git, commit, tree)
        if result.tree is None:
            return Built("", None, tuple(result.conflicts), f"{result.reason} while {commit.oid[:10]} was rebased")
        if result.tree != tree:
            picked.append((commit, result.tree))
            tree = result.tree
    top = base
    for left, (commit, after) in zip(reversed(range(len(picked))), picked, strict=True):
        if left and commit.parents == [top]:
            top = commit.oid  # it already stands where it would be put
        else:
            message = append_trailers(commit.message, () if left else trailers(after))
            top = git.commit_tree(after, [top], message, date=_date(entry), author=commit.author)
    return Built(tree, top)


def _picked(git: Git, commit: Commit, tree: str) -> MergeResult:
    """What `commit` changed, on top of `tree`: a merge whose base is its parent."""
    return git.merge_tree(git.commit_tree(tree, commit.parents, "base of a rebase\n", date=0), commit.oid)


def _ff_only(git: Git, entry: MergeEntry, base: str, trailers: Trailers) -> Built:
    if not git.is_ancestor(base, entry.oid):
        return Built("", None, (), f"{entry.target} at {base[:10]} is not contained in {entry.branch}, so it cannot be "
                                   "moved forward to it; bring the branch up to date and enqueue it again")
    return Built(git.tree_of(entry.oid), entry.oid)


_STRATEGIES: dict[str, Callable[[Git, MergeEntry, str, Trailers], Built]] = {
    "merge": _merge, "squash": _squash, "rebase": _rebase, "ff-only": _ff_only}


def _date(entry: MergeEntry) -> int:
    return int(from_iso(entry.enqueued_at))


def _refused(merged: MergeResult) -> Built:
    return Built("", None, tuple(merged.conflicts), merged.reason)


# ------------------------------------------------------------------------------------------------------------- pure


def squash_message(branch: str, work: Sequence[Commit]) -> tuple[str, list[str]]:
    """The message for all of `work` in one commit, and who wrote it beside the first's author (`Name <mail>`)."""
    people = list(dict.fromkeys(f"{commit.author.name} <{commit.author.email}>" for commit in work))
    if len(work) == 1:
        return work[0].message, []
    listed = "".join(f"* {commit.message.strip().partition(chr(10))[0]}\n" for commit in work)
    return f"Squash {branch}\n\n{listed}" if listed else f"Squash {branch}", people[1:]


def append_trailers(message: str, trailers: Sequence[str]) -> str:
    """`message` with trailers at its end, joined to those that it has."""
    text = message.strip("\n")
    if not trailers:
        return f"{text}\n"
    paragraph = text.rpartition("\n\n")[2] if "\n\n" in text else ""
    joined = bool(paragraph) and all(_TRAILER.match(line) for line in paragraph.split("\n"))
    return text + ("\n" if joined else "\n\n") + "\n".join(trailers) + "\n"
