"""Rescue refs: list saved work, inspect it, and restore it as a branch or a worktree.

Only `restore_branch` and `restore_worktree` write, and they never change what exists already. Work is saved by
`worktree.py` and `snapshots.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.records import earlier
from garrison.records import run as run_records
from garrison.records.run import Launch, RunFiles
from garrison.sandbox.network import connect_for
from garrison.system.git import ABSENT, Git, GitError
from garrison.system.git.rescues import LIVE, REASON, RESCUES, RescueName, parse_rescue
from garrison.system.worktree_files import complete_worktree
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

class RescueRepository(NamedTuple):
    """A repository that may contain rescue refs; `bases` maps each run of this home to its target branch there."""

    git: Git
    bases: Mapping[str, str]


class RescuedWork(Value):
    """Saved work under one rescue ref.

    `files` and `size` (bytes) count what the target did not have when the work started there; `landed`: the target
    has all of it now.
    """

    name: RescueName
    repo: str
    commit: str
    when: str
    why: str
    files: int
    size: int
    landed: bool
    against: str
    """The commit for comparison: where the work left the target branch."""

    def body(self) -> dict[str, object]:
        """Return the work as JSON values."""
        return {"ref": self.name.ref, "run": self.name.run, "node": self.name.node, "attempt": self.name.attempt,
                "kind": self.name.kind or "left", "when": self.when, "why": self.why, "files": self.files,
                "size": self.size, "landed": self.landed, "commit": self.commit, "base": self.against,
                "repo": self.repo}


def find_repositories(home: Path, repo: Path | None, run: str | None,
                      report: Callable[[str], None]) -> list[RescueRepository]:
    """Return `repo`, or else the repositories that the runs of the home (or only `run`) recorded.

    A repository that is gone is reported; Refused if it is the only one.
    """
    launches = [launch for recorded in run_records.list_runs(home) if run in (None, recorded)
                and (launch := _read_launch(home, recorded, report)) is not None]
    bases = {launch.run_id: launch.base for launch in launches}
    if repo is not None:
        return [RescueRepository(_open(repo, home), bases)]
    repositories: dict[Path, RescueRepository] = {}
    gone = []
    for path in dict.fromkeys(launch.repo for launch in launches):
        try:
            git = _open(Path(path), home)
            repositories.setdefault(git.common, RescueRepository(git, bases))
        except GarrisonError:
            gone.append(path)
    for path in gone:
        message = f"the repository {path} of a run is gone or damaged; if it was moved, pass --repo DIR"
        if not repositories and len(gone) == 1:
            raise Refused(message)
        report(message)
    return list(repositories.values())


def _read_launch(home: Path, run: str, report: Callable[[str], None]) -> Launch | None:
    try:
        return run_records.load(Launch, RunFiles(home, run).launch)
    except GarrisonError as error:
        report(str(error))
        return None


def _open(path: Path, home: Path) -> Git:
    git = Git(path, home=home)
    git.common  # noqa: B018  # Refused if there is no repository
    return git


def list_rescue_refs(repository: RescueRepository, run: str | None = None) -> list[RescueName]:
    """Return the rescue refs of a repository, or those of one run, sorted by run, node and attempt."""
    names = [parse_rescue(ref) for ref in repository.git.rescue_refs(f"{RESCUES}/{run}" if run else RESCUES)]
    return sorted(names, key=lambda name: (name.run, name.node, name.attempt, name.kind, name.number))


_REASONS = {LIVE: "at an interval, all of it committed", "other": "in its stash, or on another of its branches"}
"""Kind of a rescue ref → its reason, where the saved commit is the agent's own and has none."""


def inspect_rescue(repository: RescueRepository, name: RescueName) -> RescuedWork:
    """Return the saved work of one rescue ref; GitError if its objects are damaged or gone."""
    git = repository.git
    # An agent's subject may have any length: git truncates it.
    form = f"%H%x00%cI%x00%(trailers:key={REASON},valueonly,separator=%x20)%x00%<(300,trunc)%s"
    commit, when, saved, subject, *_ = git.run("show", "-s", f"--format={form}", name.ref, "--").out.split("\0")
    tip = git.rev(f"refs/heads/{repository.bases.get(name.run, '')}") or git.rev("HEAD")
    parent = git.rev(f"{name.ref}^")
    base = git.run("merge-base", tip, commit, check=False).out.strip() if tip else ""
    against = base or parent or git.run("mktree", text="").out.strip()
    changed = changed_files(git, against, commit)
    why = saved.strip() or earlier.reason_of_rescue(subject.rstrip()) or _REASONS.get(
        name.kind, "all of it was committed")
    landed = bool(tip) and tip is not None and has_landed(git, commit, tip)
    return RescuedWork(name, str(git.root), commit, when, why, len(changed), sum(changed.values()), landed, against)


def has_landed(git: Git, commit: str, tip: str) -> bool:
    """Return whether `tip` has everything in `commit`: merging it would change nothing."""
    if git.is_ancestor(commit, tip):
        return True
    try:
        return git.merge_tree(tip, commit).tree == git.tree_of(tip)
    except GitError:
        return False


def changed_files(git: Git, old: str, new: str) -> dict[str, int]:
    """Return path → bytes of its new version, 0 if it was removed, for each path that differs."""
    raw = git.run("diff-tree", "-r", "-z", "--no-renames", "--raw", "--no-abbrev", old, new).out.split("\0")
    pairs = [(head.split(" "), path) for head, path in zip(raw[::2], raw[1::2], strict=False) if head.startswith(":")]
    blobs = [words[3] for words, _ in pairs if words[1] not in ("000000", "160000")]
    lines = git.run("cat-file", "--batch-check=%(objectname) %(objectsize)",
                    text="".join(f"{oid}\n" for oid in blobs)).out.splitlines() if blobs else []
    sizes = {oid: int(size) for oid, size in (line.split(" ", 1) for line in lines) if size.isdigit()}
    return {path: sizes.get(words[3], 0) for words, path in pairs}


def resolve_rescue(refs: Sequence[tuple[RescueRepository, RescueName]], word: str,
                   run: str | None) -> tuple[RescueRepository, RescueName]:
    """Return the rescue ref that `word` names: a ref (with or without its prefix), RUN/NODE/ATTEMPT, RUN/NODE or NODE.

    Interval snapshots count only if nothing else was saved; then the newest one. NotFound if there is none, Refused
    (with the list) if there are several. Pure.
    """
    candidates = [(repository, name) for repository, name in refs if run in (None, name.run)]
    matches = [(repository, name) for repository, name in candidates
               if name.ref in (word, f"refs/{word}", f"{RESCUES}/{word}")]
    if not matches:
        matches = [(repository, name) for repository, name in candidates if word in (
            name.node, f"{name.run}/{name.node}", f"{name.run}/{name.node}/{name.attempt}")]
        newest = {(name.run, name.node): (repository, name) for repository, name in sorted(
            matches, key=lambda match: (match[1].attempt, match[1].number))}
        lasting = [(repository, name) for repository, name in matches if not name.is_interval_snapshot]
        matches = lasting or list(newest.values())
    if not matches:
        existing = ", ".join(dict.fromkeys(f"{name.run}/{name.node}" for _, name in candidates))
        where = f" of run {run}" if run else ""
        raise NotFound(f"no saved work of {word!r}; " + (f"there is {existing}" if existing else
                                                         f"there is no saved work{where} at all"))
    if len(matches) > 1:
        listed = ", ".join(name.ref.removeprefix(RESCUES + "/") for _, name in matches)
        raise Refused(f"{word} could be any of {listed}; name one of them")
    return matches[0]


def restore_branch(git: Git, commit: str, branch: str) -> None:
    """Create a branch at saved work; Refused if it exists, UsageError if `branch` is not a branch name."""
    if git.run("check-ref-format", "--branch", branch, check=False).code or branch.startswith("-"):
        raise UsageError(f"not a branch name: {branch!r}")
    if not git.update_ref(f"refs/heads/{branch}", commit, ABSENT, message="garrison: restored"):
        raise Refused(f"a branch {branch} (or one that conflicts with it) already exists in {git.root}; name another")


def restore_worktree(git: Git, commit: str, folder: Path) -> list[str]:
    """Create a worktree at `folder`, detached at saved work; return notes for the user.

    Refused if `folder` exists, or would be inside a checkout.
    """
    folder = folder.absolute()
    if folder.exists() or folder.is_symlink():
        raise Refused(f"{folder} already exists; choose a new directory")
    real = folder.parent.resolve() / folder.name
    inside = next((tree.path for tree in git.worktrees() if real.is_relative_to(tree.path)), None)
    if inside is not None or real.is_relative_to(git.common):
        raise Refused(f"{folder} is inside the checkout {inside or git.root}, which is not changed; choose one outside")
    git.add_worktree(folder, None, commit)
    notes = complete_worktree(git, folder, connect=connect_for(git))
    submodules = {module.path for module in git.submodules(folder)}
    for line in git.run("ls-tree", "-r", "-z", commit).out.split("\0"):
        head, _, path = line.partition("\t")
        if head.startswith("160000") and path not in submodules and git.rev(head.split(" ")[2]):
            command = f"git -C {git.root} worktree add --detach {folder / path} {head.split(' ')[2]}"
            notes.append(f"{path} was a separate repository; `{command}` restores it")
    return notes


def list_all_rescue_refs(repositories: Iterable[RescueRepository],
                         run: str | None = None) -> list[tuple[RescueRepository, RescueName]]:
    return [(repository, name) for repository in repositories for name in list_rescue_refs(repository, run)]

