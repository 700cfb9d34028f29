"""Unfinished work: reasons why the work of an agent that reported success cannot land as it is.

Two inspections, by the orchestrator at the end of an attempt: before it commits what the agent left uncommitted (an
open merge, files in conflict, unwanted files), and after that, of the branch (rewritten history, conflict markers, or
nothing at all, while the work is in a stash, on another branch or in files that git ignores). Both return a typed
refusal or None; `describe` puts it into one sentence for the user and for the next attempt's agent.

A merge with which an attempt started on purpose (`rework=merge`) is the exception: if its conflicts are resolved,
garrison concludes it.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from garrison.ends import Refusal, RefusalKind
from garrison.errors import GarrisonError, UsageError
from garrison.merge.diff_guard import HEAD_BYTES, ChangedFile, classify, count_conflicts, describe_finding, matches
from garrison.node.worktree import BEGUN, CONFLICTS, MERGED, read_first, read_lines
from garrison.run.request import read_guard
from garrison.sandbox.collect import find_side_work, read_open_work
from garrison.sandbox.git_view import GitView
from garrison.system import untrusted
from garrison.system.git import bounds
from garrison.system.git.rescues import rescue_stem
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from garrison.config import GuardConfig
    from garrison.records.run import Launch, Task
    from garrison.system.git import Git
    from garrison.system.git.worktrees import Uncommitted

SHOWN = 5
"""Files that a refusal names."""
_MAX_MARKED = 16 << 20
"""Bytes of a file that are searched for conflict markers."""
_MAX_MARKED_FILES = 200
_MAX_READ = 3000
"""Uncommitted files up to which each is read; more are refused by their number, or are tracked."""
_IGNORED_SHOWN = 1000


class WorkInspector:
    """Inspects the work that one attempt left."""

    def __init__(self, git: Git, home: Path, launch: Launch, task: Task, worktree: Path, branch: str,
                 folder: Path) -> None:
        """Prepare the inspection; `folder` is the attempt's folder in the home."""
        self.git, self.launch, self.task = git, launch, task
        self.home, self.worktree, self.branch, self.folder = home, worktree, branch, folder
        self.seen: Uncommitted | None = None
        """Uncommitted files that `inspect_worktree` found; None before."""

    # ---- before garrison commits the rest

    def inspect_worktree(self) -> Refusal | None:
        """Return why garrison cannot commit, or inspect, what the agent left uncommitted."""
        if not GitView(self.git, self.worktree).exists and (excess := self._excess()):  # else it was when collected
            return _refuse(RefusalKind.EXCESS, [excess])
        begun_with = read_lines(self.folder / CONFLICTS)
        if marked := [name for name in begun_with if b"\n<<<<<<< " in b"\n" + self._content(name)]:
            return _refuse(RefusalKind.MARKERS, marked)
        self.seen = self.git.uncommitted(self.worktree)
        return self.open_operation(begun_with) or self._uncommitted(self.seen.files)

    def _excess(self) -> str:
        begun = read_first(self.folder / BEGUN)
        head = self.git.head(self.worktree)
        return bounds.explain_excess(self.git, begun if self.git.has_object(begun) else "", head) if head else ""

    def open_operation(self, begun_with: Sequence[str]) -> Refusal | None:
        """Return the refusal for an operation of git that was left open."""
        try:
            found = read_open_work(self.git, self.worktree, self.seen)
        except untrusted.UnsafeFile:
            return None  # no evidence; what lands was collected before, or refused
        operation, unmerged = found.operation, found.unmerged
        merged = read_first(self.folder / MERGED)
        if operation == "merge" and merged and found.joins == merged:
            operation, unmerged = "", tuple(name for name in unmerged if name not in begun_with)
        if operation:
            return _refuse(RefusalKind.OPERATION, unmerged, operation=operation)
        return _refuse(RefusalKind.UNMERGED, unmerged) if unmerged else None

    def _uncommitted(self, names: Mapping[str, bool]) -> Refusal | None:
        limits = self._limits()
        if limits.max_file is None or limits.max_file > bounds.MAX_CHECKOUT:
            limits = replace(limits, max_file=bounds.MAX_CHECKOUT)  # never committed, even if allowed
        findings = classify(self._describe_files(names, limits), limits)
        if findings:
            return _refuse(RefusalKind.GUARD, [describe_finding(finding, limits) for finding in findings])
        marked = [name for name, is_new in names.items() if len(names) <= _MAX_READ
                  and not matches(name, limits.allow) and self._is_marked(name, is_new=is_new)]
        return _refuse(RefusalKind.MARKERS, marked) if marked else None

    def _limits(self) -> GuardConfig:
        from pathlib import Path

        from garrison.config import GuardConfig

        try:
            return read_guard(self.home, Path(self.launch.repo))
        except (UsageError, untrusted.UnsafeFile):  # it was valid at the launch
            return GuardConfig()

    def _describe_files(self, names: Mapping[str, bool], limits: GuardConfig) -> Iterable[ChangedFile]:
        for name, is_new in names.items():
            try:
                found = os.lstat(self.worktree / name)
            except OSError:
                continue
            is_regular = stat.S_ISREG(found.st_mode)
            size = found.st_size if is_regular else 0
            if limits.max_file is not None and size > limits.max_file and not is_new:
                size = size if self._committed_size(name) <= limits.max_file else 0
            is_read = is_regular and is_new and len(names) <= _MAX_READ
            yield ChangedFile(name, size, is_new, self._head(name) if is_read else b"")

    def _committed_size(self, name: str) -> int:
        answer = self.git.run("cat-file", "-s", f"HEAD:{name}", cwd=self.worktree, check=False).out.strip()
        return int(answer) if answer.isdecimal() else 0

    def _head(self, name: str) -> bytes:
        return untrusted.read_begin(self.worktree, name, HEAD_BYTES)

    def _content(self, name: str) -> bytes:
        """Return the content of a file; empty if an agent put something else, or too much, in its place."""
        try:
            return untrusted.read(self.worktree, name, _MAX_MARKED) or b""
        except (untrusted.UnsafeFile, OSError):
            return b""

    def _is_marked(self, name: str, *, is_new: bool) -> bool:
        """Return whether a file has more conflicts in the worktree than in the last commit."""
        count = count_conflicts(self._content(name))
        return count > 0 and (is_new or count > self._committed_conflicts("HEAD", name))

    def _committed_conflicts(self, commit: str, name: str) -> int:
        answer = self.git.run("cat-file", "blob", f"{commit}:{name}", cwd=self.worktree, check=False)
        return count_conflicts(answer.out.encode(errors="replace")) if answer.code == 0 else 0

    # ---- after everything is on the branch

    def inspect_branch(self) -> Refusal | None:
        """Return why the branch cannot land, or where the work is if the branch contains none."""
        tip = self.git.branch_tip(self.branch)
        target = self.git.branch_tip(self.launch.onto) or self.launch.base_oid
        if tip is None or not target:
            return None  # the runner reports which of them is missing
        begun = read_first(self.folder / BEGUN)
        if begun and self.git.has_object(begun) and not self.git.is_ancestor(begun, tip):
            return _refuse(RefusalKind.REWRITTEN, commit=begun)
        base = self.git.merge_base(target, tip)
        if base is None:
            return None  # the merge queue reports it
        if not self.git.has_same_tree(base, tip):
            return self._committed_markers(base, tip)
        return self._side_work(tip) or (None if self.task.allow_empty else self._ignored())

    def _committed_markers(self, base: str, tip: str) -> Refusal | None:
        # git itself searches for added or removed lines (`-G`), so that few files of a large change are read here.
        changed = self.git.run("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv",
                               "--diff-filter=AM", "-G^<<<<<<< ", base, tip, "--", exact=True).out.split("\0")
        allowed = self._limits().allow
        marked = [name for name in changed[:_MAX_MARKED_FILES] if name and not matches(name, allowed)
                  and self._committed_conflicts(tip, name) > self._committed_conflicts(base, name)]
        return _refuse(RefusalKind.MARKERS, marked) if marked else None

    def _side_work(self, tip: str) -> Refusal | None:
        """Return where work is that is not on the branch, after it was saved: its git view may be removed."""
        try:
            found = find_side_work(self.git, self.worktree, self.branch)
        except GarrisonError:
            return None  # made by the agent, and never landed
        for each in found:
            if not self.git.is_ancestor(each.commit, tip):
                ref = self.git.save_commit(each.commit, rescue_stem(self.task.run_id, self.task.node,
                                                                    self.task.attempt, "other"))
                is_stash = each.ref == "refs/stash"
                return _refuse(RefusalKind.STASH if is_stash else RefusalKind.OTHER_BRANCH, commit=each.commit,
                               branch="" if is_stash else each.ref.removeprefix("refs/heads/"), ref=ref)
        return None

    def _ignored(self) -> Refusal | None:
        """Return the ignored files that were written since the attempt's prompt, if there are any."""
        try:
            since = (self.folder / "prompt.md").stat().st_mtime
        except OSError:
            return None
        names = [name for name in self.git.ignored(self.worktree)[:_IGNORED_SHOWN]
                 if _changed_at(self.worktree / name) > since]
        return _refuse(RefusalKind.IGNORED, names) if names else None


def _refuse(kind: RefusalKind, files: Sequence[str] = (), *, operation: str = "", branch: str = "",
            commit: str = "", ref: str = "") -> Refusal:
    return Refusal(kind, tuple(files[:SHOWN]), len(files), operation, branch, commit, ref)


def _changed_at(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


# ---- words -----------------------------------------------------------------------------------------------------------


def describe(refusal: Refusal, branch: str) -> str:
    """Return one sentence: what happened, and the command that helps."""
    return _WORDS[refusal.kind](refusal, branch)


def _operation(refusal: Refusal, _branch: str) -> str:
    command = f"git {refusal.operation}"
    files = f" with conflicts in {_names(refusal)}" if refusal.files else ""
    left = f"it left {_article(refusal.operation)} {refusal.operation} open{files}"
    if refusal.operation == "bisect":
        return f"{left}: end it with `{command} reset`, and commit on the branch"
    finish = f"resolve them, `git add` them and run `{command} --continue`" if refusal.files else \
        f"conclude it with `{command} --continue`"
    return f"{left}: {finish}, or drop it with `{command} --abort`"


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _unmerged_words(refusal: Refusal, _branch: str) -> str:
    return f"it left conflicts in {_names(refusal)}: resolve them, `git add` the files and commit"


def _markers(refusal: Refusal, _branch: str) -> str:
    return (f"conflict markers are left in {_names(refusal)}: resolve the conflicts and commit (for a file that is "
            "meant to contain them: `[guard] allow`)")


def _stash(refusal: Refusal, _branch: str) -> str:
    return f"its work is in a stash, not on its branch: `git stash apply {refusal.ref}`, and commit"


def _other_branch(refusal: Refusal, branch: str) -> str:
    where = f"the branch {refusal.branch}" if refusal.branch else refusal.commit[:10]
    if not refusal.ref:
        return f"it left its branch {branch}: its work is at {where}, which does not continue that branch"
    return f"its work is on {where}, not on its own branch: `git merge {refusal.ref}`"


def _rewritten(refusal: Refusal, _branch: str) -> str:
    short = refusal.commit[:10]
    return (f"it rewrote {short}, where its branch started (by amend, rebase or reset): "
            f"`git reset --soft {short}`, then commit on top of that")


def _ignored_words(refusal: Refusal, _branch: str) -> str:
    return (f"it changed only files that git ignores, which never land: {_names(refusal)}; remove them from "
            ".gitignore, or commit them with `git add -f`")


def _guard(refusal: Refusal, _branch: str) -> str:
    return f"it left files that it must remove or add to .gitignore: {_names(refusal)}"


def _hook(refusal: Refusal, _branch: str) -> str:
    name = f"{refusal.operation} hook" if refusal.operation else "commit hook"
    last = refusal.files[-1] if refusal.files else "it printed nothing"
    more = "".join(f"\n{line}" for line in refusal.files) if len(refusal.files) > 1 else ""
    return f"the repository's own {name} refuses what it left uncommitted: {last}{more}"


def _excess_words(refusal: Refusal, _branch: str) -> str:
    return f"its commits are too large: {_names(refusal)}; commit less, in a history without that"


def _names(refusal: Refusal) -> str:
    more = refusal.count - len(refusal.files)
    return ", ".join(refusal.files) + (f" and {more:,} more" if more > 0 else "")


_WORDS = {RefusalKind.OPERATION: _operation, RefusalKind.UNMERGED: _unmerged_words, RefusalKind.MARKERS: _markers,
          RefusalKind.STASH: _stash, RefusalKind.OTHER_BRANCH: _other_branch, RefusalKind.REWRITTEN: _rewritten,
          RefusalKind.IGNORED: _ignored_words, RefusalKind.GUARD: _guard, RefusalKind.HOOK: _hook,
          RefusalKind.EXCESS: _excess_words}
