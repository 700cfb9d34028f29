"""Worktrees: a node's worktree and branch, from creation to removal, and worktrees that runs left behind.

A worktree in the code: the runner's action PREPARE_WORKTREE calls `AttemptWorktree.prepare` (`create_worktree`
at the target's tip; rework saves the earlier attempt's first), then the set-up job runs in it. The orchestrator's agent
works there; `Snapshotter` (snapshots.py) saves it at intervals. A confined agent commits in its own git view:
`collect_commits` brings its commits to the branch before anything else reads it. At the end `adopt_commits` brings
the agent's commits onto the branch. After the landing TIDY_UP saves the rest, removes the worktree and archives the
branch (`save_rest`, `remove`, `archive`); after a failure FAIL_NODE saves everything first (`save`). `garrison clean`
and `doctor` find and remove what killed runs left behind (`find_worktrees`, `save_and_remove`).

Only commits on the node's branch land. So commits made elsewhere that continue the branch are brought onto it; others
do not count, and the reason names their place. A worktree is reset or removed only when all of it is on some ref, or
was just saved under a rescue ref; if saving fails it stays, and the error tells why. A landed branch is archived, not
deleted. Only worktrees in the run's own folder are touched.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.ends import Refusal, RefusalKind
from garrison.errors import GarrisonError
from garrison.merge import slots, union
from garrison.node.places import VALIDATOR_SUFFIX, remove_sandbox_folder
from garrison.records import atomic
from garrison.records.run import CONTINUE
from garrison.sandbox import setups
from garrison.sandbox.collect import collect, collect_side_work, enter
from garrison.sandbox.git_view import GitView, give_back
from garrison.sandbox.network import connect_for
from garrison.system import machine, untrusted
from garrison.system.git import Git, GitError
from garrison.system.git.repository import split
from garrison.system.git.rescues import ARCHIVE, LIVE, rescue_message, rescue_stem
from garrison.system.worktree_files import complete_worktree, hide_setup_output, setup_key
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from garrison.records.run import Launch, Task


CONFLICTS, MERGED = "conflicts.txt", "merged.txt"
"""Files of an attempt: the names of the files that had conflict markers at its start, and the commit that was merged
to start it, with the name in the markers."""
BEGUN = "begun.txt"
"""File of an attempt: the last commit of the target that its branch had when it started; the branch keeps it."""


def read_lines(path: Path) -> list[str]:
    """Return the lines of such a file, none without it."""
    return (atomic.read(path) or b"").decode(errors="replace").splitlines()


def read_first(path: Path) -> str:
    """Return the first word of its first line, a commit; '' if there is none."""
    return "".join(read_lines(path)[:1]).partition(" ")[0]


# ---- collect ---------------------------------------------------------------------------------------------------------


def collect_commits(git: Git, worktree: Path, run: str, node: str, attempt: int) -> str:
    """Bring a confined agent's commits from its git view to the branch; return '', or why they cannot continue it.

    Commits that cannot be on the branch are saved under a rescue ref. GarrisonError if git refuses the view's content.
    """
    untrusted.mend_folder(worktree)
    found = collect(GitView(git, worktree))
    if not found.commit:
        return ""
    ref = git.save_commit(found.commit, rescue_stem(run, node, attempt, "branch"))
    return f"{found.objection}; that is saved as {ref}"


def restore_committed_output(git: Git, worktree: Path) -> None:
    """Write files of the set-up's layer that the agent has committed into the worktree itself, where garrison's git
    looks: unchanged, they are only in the layer, and would be taken for removed. Only after the agent has ended."""
    layer = setups.layer_of(worktree)
    if layer is None or not layer.made:
        return
    made = {name.rstrip("/") for name in layer.made}
    gone = [name for name in split(git.run("ls-files", "-z", cwd=worktree, exact=True, check=False).out)
            if any(part in made for part in (name, *map(str, Path(name).parents)))
            and not os.path.lexists(worktree / name)]
    if gone:
        git.run("checkout-index", "--quiet", "-z", "--stdin", cwd=worktree, check=False,
                text="".join(f"{name}\0" for name in gone))


def is_hindered(git: Git, worktree: Path, error: GarrisonError) -> bool:
    """Return whether an error of saving or landing is transient, not caused by the agent's changes to its git view."""
    return machine.passes(error) and str(GitView(git, worktree).common) not in str(error)


def collect_what_can_be(git: Git, worktree: Path, run: str, node: str, attempt: int) -> str:
    """Collect as `collect_commits` does, before the worktree is saved or changed; return what could not be collected.

    If git refuses the commits, everything else is still saved; at a transient error (a full disk) nothing is.
    """
    try:
        return collect_commits(git, worktree, run, node, attempt)
    except GarrisonError as error:
        if is_hindered(git, worktree, error):
            raise
        return str(error)


def save_side_work(git: Git, worktree: Path, run: str, node: str, attempt: int) -> list[str]:
    """Save what a confined agent has on its other branches and in its stash, before its view is removed; return
    the refs."""
    try:
        return [git.save_commit(commit, rescue_stem(run, node, attempt, "other"))
                for commit in collect_side_work(GitView(git, worktree))]
    except GarrisonError as error:  # content that git refuses does not block the removal
        if is_hindered(git, worktree, error):
            raise
        return []


@contextmanager
def lend_worktree(git: Git, worktree: Path, run: str, node: str, attempt: int) -> Iterator[None]:
    """Lend a confined agent's worktree to the user, whose git works on the repository itself; the agent continues with
    the user's commits. The set-up's output is copied into it: the user sees no layer."""
    collect_what_can_be(git, worktree, run, node, attempt)
    setups.copy_out(worktree)
    give_back(git, worktree)
    try:
        yield
    finally:
        view = GitView(git, worktree)
        if view.exists:
            enter(view, str(attempt))


# ---- save ------------------------------------------------------------------------------------------------------------


def save_worktree(git: Git, worktree: Path, run: str, node: str, attempt: int, why: str, *, kind: str = "") -> str:
    """Save the content of a worktree under a rescue ref; return the ref. `why` completes "what NODE …"."""
    collect_what_can_be(git, worktree, run, node, attempt)
    restore_committed_output(git, worktree)
    give_back(git, worktree)
    return git.save_work(worktree, rescue_stem(run, node, attempt, kind), rescue_message(node, why))


def has_unsaved_work(git: Git, worktree: Path, tips: Sequence[str]) -> bool:
    head = git.head(worktree)
    return git.is_dirty(worktree) or (head is not None and not any(git.is_ancestor(head, tip) for tip in tips))


# ---- create and remove -----------------------------------------------------------------------------------------------


def create_worktree(git: Git, task: Task, worktree: Path, branch: str, tip: str, conflicts: Path,
                    target: str = "") -> list[str]:
    """Create the worktree on the node's branch at `tip`, or adopt a predecessor's; return notes.

    With `rework=merge`, `tip`, from the branch `target`, is merged into it, and the names of the files in conflict are
    written to `conflicts`.
    """
    worktree.parent.mkdir(parents=True, exist_ok=True)
    if task.attempt > 1 and task.rework == "fresh" and not worktree.exists():
        # The earlier attempt's work is under its rescue ref, and this one starts over. The branch may contain more: if
        # the agent checked out another branch, the rescue ref has that one.
        before = git.branch_tip(branch)
        if before is not None and not git.tips_containing(before, but=f"refs/heads/{branch}"):
            git.save_commit(before, rescue_stem(task.run_id, task.node, task.attempt - 1, "branch"))
        git.update_ref(f"refs/heads/{branch}", tip)
    if task.rework == CONTINUE and not worktree.exists():
        _continue_from_snapshot(git, task, branch)
    git.add_worktree(worktree, branch, tip)
    if task.attempt > 1 and task.rework == "merge":
        _merge_tip(git, worktree, tip, conflicts, target)
    return complete_worktree(git, worktree, connect=connect_for(git))


def _continue_from_snapshot(git: Git, task: Task, branch: str) -> None:
    """Move a branch forward to the last snapshot of its lost worktree, if that continues it."""
    snapshots = git.interval_snapshots(rescue_stem(task.run_id, task.node, task.attempt - 1, LIVE))
    before = git.branch_tip(branch)
    after = git.rev(snapshots[-1].ref) if snapshots else None
    if before and after and git.is_ancestor(before, after):
        git.update_ref(f"refs/heads/{branch}", after, before, message="garrison: continue from the last snapshot")


def _merge_tip(git: Git, worktree: Path, tip: str, conflicts: Path, target: str) -> None:
    """Merge the target's tip into the branch and leave conflict markers, once per attempt: a later runner must not
    merge under a working agent because the target moved.

    The markers name the target, unless that has moved on or its name is ambiguous in git. The merged commit
    is written alongside the `conflicts`, with the name in the markers.
    """
    if conflicts.exists():
        return
    head = git.head(worktree) or tip
    is_merging = (git.git_dir(worktree) / "MERGE_HEAD").exists()
    label = target if target and git.rev(target) == tip else tip
    merge = ("merge", "--no-commit", "--no-ff", label)
    result = None
    if not is_merging and not git.is_ancestor(tip, head):
        result = git.run(*merge, cwd=worktree, check=False, extra=git.author(worktree))
    unmerged = ("diff", "--name-only", "--diff-filter=U", "-z", "--ignore-submodules=all")
    files = split(git.run(*unmerged, cwd=worktree).out)
    if result is not None and result.code and not files:
        raise GitError(merge, result.code, result.err)  # git did not merge at all
    if result is not None and files:
        files = _unite(git, worktree, tip, head, files)
    merged = git.run("rev-parse", "--verify", "--quiet", "MERGE_HEAD", cwd=worktree, check=False).out.strip()
    if result is not None or (merged and not conflicts.with_name(MERGED).exists()):  # a killed runner merged, unnoted
        label = label if merged == tip else merged  # the target may have moved since
        atomic.write(conflicts.with_name(MERGED), f"{merged} {label}\n".encode())
    atomic.write(conflicts, "".join(f"{name}\n" for name in files).encode())


def _unite(git: Git, worktree: Path, tip: str, head: str, files: Sequence[str]) -> list[str]:
    """Resolve what a union merge can, as the merge queue would; return the files that stay in conflict."""
    united = union.unite_files(git, tip, head, tip, files)
    if united:
        # Mode 0 first: it removes the three stages of a conflict from the index, which one entry does not replace.
        git.run("update-index", "-z", "--index-info", cwd=worktree,
                text="".join(f"0 {'0' * len(blob)}\t{name}\0{mode} {blob}\t{name}\0"
                             for name, (mode, blob) in united.items()))
        git.run("checkout-index", "-f", "-z", "--stdin", cwd=worktree,
                text="".join(f"{name}\0" for name in united))
    return [name for name in files if name not in united]


def remove_worktree(git: Git, worktree: Path) -> None:
    """Remove a worktree whose content was saved, its slot number, and its parent folders if they are empty."""
    git.remove_worktree(worktree)
    _remove_rest(worktree)
    folder = worktree.parent.parent
    if folder.is_dir():
        slots.remove_void_claims(git, folder)
    for parent in (worktree.parent, folder):
        try:
            parent.rmdir()
        except OSError:
            break


def _remove_rest(worktree: Path, *, keeps_home: bool = False) -> None:
    """Remove what a killed `git worktree remove` left of a directory that git no longer knows, and the private
    folders of the worktree's processes, unless a successor needs them."""
    if not keeps_home:
        remove_sandbox_folder(worktree)
    try:
        if worktree.is_dir() and not worktree.is_symlink():
            untrusted.remove_tree(worktree)
    except OSError as error:
        raise GarrisonError(f"{worktree} cannot be removed: {error.strerror}: {error.filename}") from error


def current_setup_key(launch: Launch, task: Task, worktree: Path) -> str:
    """Return a key of the current files that the set-up depends on; '' if the task has no set-up."""
    return setup_key(task.setup, worktree, launch.lock_files) if task.setup else ""


# ---- a validator's worktree ------------------------------------------------------------------------------------------


def validator_worktree(worktree: Path) -> Path:
    return worktree.with_name(f"{worktree.name}{VALIDATOR_SUFFIX}")


def remove_validator_worktree(git: Git, worktree: Path, task: Task, *, keeps_home: bool = False) -> None:
    """Remove the validator's worktree alongside the node's, if there is one; save what was written in it.

    Args:
        keeps_home: the validation will be repeated: its session, in the home of its sandbox, is resumed.
    """
    path = validator_worktree(worktree)
    if not path.is_dir():
        _remove_rest(path, keeps_home=keeps_home)
        return
    head = git.head(path)
    if head is not None and has_unsaved_work(git, path, git.tips_containing(head)):
        save_worktree(git, path, task.run_id, task.node, task.attempt, "got from its validator", kind="validator")
    git.remove_worktree(path)
    _remove_rest(path, keeps_home=keeps_home)


# ---- one attempt's worktree ------------------------------------------------------------------------------------------


class AttemptWorktree:
    """Worktree of one attempt, as its runner uses it; `folder` is the attempt's folder in the home.

    `on_saved` is called with each rescue ref that is written.
    """

    def __init__(self, git: Git, launch: Launch, task: Task, path: Path, branch: str, folder: Path,
                 on_saved: Callable[[str], None]) -> None:
        self.git, self.launch, self.task = git, launch, task
        self.path, self.branch, self.folder, self._on_saved = path, branch, folder, on_saved
        self.ready = False
        """True if this incarnation of the runner has prepared it."""
        self._removing = folder / "removing"
        """File that exists once all content is saved for the removal: anything found later is a killed git's leftover.
        It contains the rescue ref, if one was needed."""
        self._saved_ref = ""

    def prepare(self, target: str, *, is_new_attempt: bool, agent_alive: bool, is_first: bool = False) -> list[str]:
        """Create the worktree on the node's branch, starting at the commit `target` of the target, or at the work of
        the candidate that is to land, or take over a predecessor's; returns notes.

        `is_new_attempt`: an existing worktree is an earlier attempt's; `agent_alive`: an agent works in it; `is_first`:
        nothing of this home has worked on the node, so anything there is foreign.
        """
        tip = self.task.work or target
        notes = self._set_aside_foreign(tip) if is_first and not (self.folder / BEGUN).exists() else []
        if is_new_attempt and self.task.rework in ("fresh", CONTINUE) and self.path.is_dir() and not agent_alive:
            self._save("left by a failed attempt", self.task.attempt - 1)
            remove_worktree(self.git, self.path)
        self._removing.unlink(missing_ok=True)
        if not agent_alive:
            notes += filter(None, [self._collect(self.task.attempt - is_new_attempt)])
            if is_new_attempt:
                self._save_side_work(self.task.attempt - 1)
            self.git.clear_branch_lock(self.branch)  # left by a git that was killed before there was a worktree
        notes += create_worktree(self.git, self.task, self.path, self.branch, tip, self.folder / CONFLICTS,
                                 self.launch.onto)
        self._record_beginning(target)
        if not agent_alive:
            self.clear_locks()
        self.ready = True
        return notes

    def beginning(self) -> str:
        """Return the branch's commit before an attempt of the run worked on it, '' if there is no branch."""
        tip, target = self.git.branch_tip(self.branch), self.git.branch_tip(self.launch.onto)
        return (self.git.merge_base(target, tip) if self.task.work and target and tip else tip) or ""

    def count_lines(self) -> int:
        """Return how many lines the branch adds to its target and removes; a binary file counts as one."""
        tip, target = self.git.branch_tip(self.branch), self.git.branch_tip(self.launch.onto)
        base = self.git.merge_base(target, tip) if target and tip else None
        if base is None or tip is None:
            return 0
        out = self.git.run("diff-tree", "-r", "-z", "--no-renames", "--numstat", base, tip).out
        counts = [line.split("\t")[:2] for line in split(out)]
        return sum(int(number) if number.isdigit() else 1 for pair in counts for number in pair)

    def keep(self, commit: str) -> None:
        """Save the work of a candidate under a rescue ref, and delete its branch."""
        tip, target = self.git.branch_tip(self.branch), self.git.branch_tip(self.launch.onto)
        if tip is not None:
            if target is None or not self.git.is_ancestor(tip, target):
                self._on_saved(self.git.save_commit(commit or tip, rescue_stem(
                    self.task.run_id, self.task.node, self.task.attempt, "candidate")))
            self.git.delete_refs([f"refs/heads/{self.branch}"])
        self._delete_snapshots()

    def _set_aside_foreign(self, tip: str) -> list[str]:
        """Make room for a first attempt: it starts at its base, and a branch or worktree of its name that another home,
        a removed run or the user made is not part of it. Return where their content was saved."""
        saved = []
        if self.path.is_dir():
            saved.append(self._save("had found in its place when it began", 0))
            remove_worktree(self.git, self.path)
        before = self.git.branch_tip(self.branch)
        if before is None:
            return [f"the content of {self.path} was not of this run; saved as {ref}" for ref in saved]
        other = next((tree.path for tree in self.git.worktrees() if tree.branch == self.branch), None)
        if other is not None:
            raise GarrisonError(f"{self.branch} is checked out in {other}, and not by this run; switch that to another "
                                "branch, or remove it: `git worktree remove`")
        if not self.git.is_ancestor(before, tip):
            saved.append(self.git.save_commit(before, rescue_stem(self.task.run_id, self.task.node, 0, "found")))
        self.git.delete_refs([f"refs/heads/{self.branch}"])
        for ref in saved:
            self._on_saved(ref)
        return [f"{self.branch} was not of this run; its content is saved as {ref}" for ref in saved]

    def _record_beginning(self, tip: str) -> None:
        """Write the commit at which the attempt's branch starts, once per attempt: an agent may rewrite the branch."""
        head = self.git.branch_tip(self.branch)
        if head is None or (self.folder / BEGUN).exists():
            return
        base = tip if head == tip else self.git.merge_base(tip, head)
        if base:
            atomic.make_directory(self.folder)
            atomic.write(self.folder / BEGUN, f"{base}\n".encode())

    def clear_locks(self) -> None:
        """Remove the lock files that a dead agent's git left behind."""
        self.git.clear_locks(self.path, self.branch)

    def setup_key(self) -> str:
        return current_setup_key(self.launch, self.task, self.path)

    def hide_setup_outputs(self) -> None:
        """Hide the set-up's output from git, unless an agent may have made new folders as well."""
        if not (self.folder / "prompt.md").exists():
            hide_setup_output(self.git, self.path)

    def has_change(self) -> bool:
        """Return whether the branch's tree differs from its start: the tree of its last commit that the target has. An
        empty commit changes nothing, and neither does a commit of somebody else."""
        target, tip = self.git.branch_tip(self.launch.onto), self.git.branch_tip(self.branch)
        if target is None or tip is None:
            return True  # the merge queue reports which of them is missing
        base = self.git.merge_base(target, tip)
        return base is None or not self.git.has_same_tree(base, tip)

    def restore_branch(self, head: str, *, allow_more: bool = False) -> list[str]:
        """Reset the branch to `head`, with which the attempt ended, if it was moved since; return notes.

        The commit it was moved to is saved under a rescue ref.

        Args:
            allow_more: commits on top of `head` stay.
        """
        tip = self.git.branch_tip(self.branch)
        if tip == head or (allow_more and tip is not None and self.git.is_ancestor(head, tip)):
            return []
        saved = ""
        if tip is not None:
            saved = self.git.save_commit(tip, rescue_stem(self.task.run_id, self.task.node, self.task.attempt, "moved"))
            self._on_saved(saved)
        if not self.git.update_ref(f"refs/heads/{self.branch}", head, tip, message="garrison: back to the result"):
            raise GarrisonError(f"could not put {self.branch} back to {head[:10]}, with which its attempt ended")
        where = f"to {tip[:10]} (saved as {saved})" if tip is not None else "away"
        return [f"{self.branch} was moved {where} after its attempt ended with {head[:10]}; it was put back"]

    def save(self, why: str) -> str:
        """Save all content of the worktree, if it exists; return the ref, or ''. `why` completes "what NODE …"."""
        if (begun := self._begun_removal()) is not None:
            return begun
        if not self.path.is_dir():
            self._collect(self.task.attempt)
            return ""
        self._saved_ref = self._save(why, self.task.attempt)
        self._on_saved(self._saved_ref)
        return self._saved_ref

    def save_rest(self) -> None:
        """Save content of the worktree that is not on the branch, which has landed."""
        if self._begun_removal() is not None or not self.path.is_dir():
            return
        self._collect(self.task.attempt)
        tip = self.git.branch_tip(self.branch)
        if has_unsaved_work(self.git, self.path, [tip] if tip else []):
            self.save("had not committed when its branch landed")

    def remove(self) -> None:
        """Remove the worktree, and a validator's alongside it, after their content was saved."""
        if self._begun_removal() is None:
            self._save_side_work(self.task.attempt)
            if self.path.is_dir():
                atomic.write(self._removing, self._saved_ref.encode())
        remove_validator_worktree(self.git, self.path, self.task)
        remove_worktree(self.git, self.path)
        self._removing.unlink(missing_ok=True)

    def _begun_removal(self) -> str | None:
        """Return the rescue ref of a removal that was started, '' if it needed none; None if none was started."""
        content = atomic.read(self._removing)
        return None if content is None else content.decode(errors="replace")

    def archive(self) -> None:
        """Archive the landed branch, and delete the snapshots of all attempts."""
        self._delete_snapshots()
        tip = self.git.branch_tip(self.branch)
        if tip and not self.launch.adhoc:
            archive_landed_branch(self.git, self.task, self.branch, tip)

    def _delete_snapshots(self) -> None:
        stems = [rescue_stem(self.launch.run_id, self.task.node, attempt, LIVE)
                 for attempt in range(1, self.task.attempt + 1)]
        self.git.delete_rescues([snapshot.ref for stem in stems for snapshot in self.git.interval_snapshots(stem)])

    def _collect(self, attempt: int) -> str:
        return collect_what_can_be(self.git, self.path, self.launch.run_id, self.task.node, attempt)

    def _save_side_work(self, attempt: int) -> None:
        for ref in save_side_work(self.git, self.path, self.launch.run_id, self.task.node, attempt):
            self._on_saved(ref)

    def _save(self, why: str, attempt: int) -> str:
        return save_worktree(self.git, self.path, self.launch.run_id, self.task.node, attempt, why)


def adopt_commits(git: Git, worktree: Path, branch: str) -> tuple[str, Refusal | None]:
    """Move `branch` forward to the commit checked out in `worktree`; return '' and None, or the reason why it cannot
    be: git's, or the agent's doing."""
    head, tip = git.head(worktree), git.branch_tip(branch)
    if head is None:
        return f"git finds no commit in {worktree}: its .git is damaged or gone", None
    if head == tip:
        return "", None
    if (tip is None or git.is_ancestor(tip, head)) and git.update_ref(
            f"refs/heads/{branch}", head, tip, message="garrison: adopt commits made outside the branch"):
        return "", None
    return "", Refusal(RefusalKind.OTHER_BRANCH, branch=git.current_branch(worktree) or "", commit=head)


def undo_foreign_move(git: Git, task: Task, worktree: Path, branch: str) -> str:
    """Move a branch that was moved from outside back to the last commit of its worktree; return why, '' if it was not.

    Commits of a worktree are in the log of its own HEAD, one after another; a move of the branch from elsewhere is not.
    Commits collected from a git view are always the agent's own. The branch's former tip is saved under a rescue ref.
    """
    own, tip = git.last_own_commit(worktree, branch), git.branch_tip(branch)
    collected = view.tip if (view := GitView(git, worktree).read_state()) is not None else ""
    if own is None or tip in (None, own, collected) or git.current_branch(worktree) != branch:
        return ""
    own = collected or own  # known from a git view, whatever the agent did to its branch there
    ref = git.save_commit(tip, rescue_stem(task.run_id, task.node, task.attempt, "moved"))
    if not git.update_ref(f"refs/heads/{branch}", own, tip, message="garrison: undo a move from elsewhere"):
        return ""
    return f"its branch {branch} was moved to {tip[:10]} from outside its worktree (saved as {ref})"


def archive_landed_branch(git: Git, task: Task, branch: str, tip: str) -> None:
    """Move a landed branch to its archive ref; an earlier archived commit that is on no other ref becomes a rescue ref.

    GarrisonError if the ref cannot be written; then the branch stays.
    """
    ref = f"{ARCHIVE}/{task.run_id}/{task.node}"
    before = git.rev(ref)
    if before not in (None, tip) and not git.tips_containing(before, but=ref):
        git.save_commit(before, rescue_stem(task.run_id, task.node, task.attempt - 1, "archive"))
    if not git.make_ref(ref, tip):
        raise GarrisonError(f"could not archive {branch} as {ref}")
    git.delete_refs([f"refs/heads/{branch}"])


# ---- worktrees that runs left behind ---------------------------------------------------------------------------------

_NAME = re.compile(r"(?P<node>[A-Za-z_][A-Za-z0-9_-]{0,47})(?:\.(?P<what>validator|preview-\d+|left-\d+))?\Z")


class OrphanedWorktree(Value):
    """A worktree left by a run; `what` is tree, validator (also of a preview) or directory (no longer a worktree)."""

    path: Path
    run: str
    node: str
    what: str


def run_repository(home: Path, launch: Launch) -> Git:
    """Return the repository of a run; Refused if there is none."""
    git = Git(Path(launch.repo), home=home)
    git.common  # noqa: B018
    return git


def find_worktrees(git: Git, launch: Launch) -> list[OrphanedWorktree]:
    """Return the existing worktrees of a run, by name; not those of another repository."""
    folder = Path(launch.trees) / git.key / launch.run_id
    if not folder.is_dir():
        return []
    registered = {tree.path for tree in git.worktrees()}
    orphans = []
    for path in sorted(folder.iterdir()):
        match = _NAME.match(path.name)
        if match is None or path.is_symlink() or not path.is_dir():
            continue
        is_worktree = folder.resolve() / path.name in registered and _has_git_dir(git, path)
        is_own = (match["what"] or "left").startswith("left")
        what = "directory" if not is_worktree else "tree" if is_own else "validator"
        orphans.append(OrphanedWorktree(path, launch.run_id, match["node"], what))
    return orphans


def _has_git_dir(git: Git, path: Path) -> bool:
    try:
        return git.git_dir(path).is_relative_to(git.common)
    except GarrisonError:
        return False


def orphan_has_work(git: Git, orphan: OrphanedWorktree) -> bool:
    """Return whether the worktree contains anything that no ref contains."""
    if orphan.what == "directory":
        return any(entry.name != ".git" for entry in orphan.path.iterdir())
    head = git.head(orphan.path)
    return has_unsaved_work(git, orphan.path, git.tips_containing(head) if head else [])


def save_and_remove(git: Git, orphan: OrphanedWorktree, attempt: int) -> str:
    """Save the content of the worktree, then remove it; return the rescue ref, '' if there was nothing to save.

    GitError or OSError if it could not be saved or removed.
    """
    ref = ""
    if orphan.what == "tree":
        collect_what_can_be(git, orphan.path, orphan.run, orphan.node, attempt)
        save_side_work(git, orphan.path, orphan.run, orphan.node, attempt)
    if orphan_has_work(git, orphan):
        if orphan.what == "directory":
            tips = (git.rev(f"refs/heads/garrison/{orphan.run}/{orphan.node}"),
                    git.rev(f"{ARCHIVE}/{orphan.run}/{orphan.node}"), git.rev("HEAD"))
            ref = git.save_directory(orphan.path, next((tip for tip in tips if tip), None),
                                     rescue_stem(orphan.run, orphan.node, attempt, "left"),
                                     rescue_message(orphan.node, f"left in {orphan.path.name}"))
        else:
            ref = save_worktree(git, orphan.path, orphan.run, orphan.node, attempt, "left when its run was over",
                                kind="validator" if orphan.what == "validator" else "")
    if orphan.what == "directory":
        git.remove_worktree(orphan.path)
        if orphan.path.exists():
            untrusted.remove_tree(orphan.path)
    remove_worktree(git, orphan.path)
    return ref
