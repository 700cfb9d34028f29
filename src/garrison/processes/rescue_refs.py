"""What was rescued: the refs of a repository, what each holds, what has landed since, and which one a person means.

The rules of this room: `choose` decides and is pure; the rest reads refs and objects. Nothing is written but what
`restore_branch` and `restore_tree` are asked for, and those never touch what is there already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.records import run as run_records
from garrison.records.run import Launch, RunFiles
from garrison.system.git import ABSENT, Git, GitError
from garrison.system.git.rescues import RESCUES, RescueName, parse_rescue
from garrison.system.worktree_files import complete_worktree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_WHY = re.compile(r"garrison: what \S+ (.*)")


class RescueRepository(NamedTuple):
    """A repository that may hold rescue refs, and the branch each run of this home lands on there."""

    git: Git
    bases: Mapping[str, str]


@dataclass(frozen=True)
class RescuedWork:
    """One rescue ref. `files` and `size` (bytes): of what the target did not have as the work began there.

    `landed`: whether the target has all of it now.
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
    """The commit that it is compared with: where the work left the target branch."""

    def body(self) -> dict[str, object]:
        """As JSON's shapes."""
        return {"ref": self.name.ref, "run": self.name.run, "node": self.name.node, "attempt": self.name.attempt,
                "kind": self.name.kind or "left", "when": self.when, "why": self.why, "files": self.files,
                "size": self.size, "landed": self.landed, "commit": self.commit, "base": self.against,
                "repo": self.repo}


def find_repositories(home: Path, repo: Path | None, run: str | None, say: Callable[[str],
                                                                                    None]) -> list[RescueRepository]:
    """Where to look: `repo`, else the repositories that the runs of the home (or `run`) recorded.

    A repository that is gone is said; Refused if it is the only one that was asked for.
    """
    launches = [launch for one in run_records.list_runs(home) if run in (None, one)
                and (launch := _launch(home, one, say)) is not None]
    bases = {launch.run_id: launch.base for launch in launches}
    if repo is not None:
        return [RescueRepository(_open(repo), bases)]
    found: dict[Path, RescueRepository] = {}
    gone = []
    for path in dict.fromkeys(launch.repo for launch in launches):
        try:
            git = _open(Path(path))
            found.setdefault(git.common, RescueRepository(git, bases))
        except GarrisonError:
            gone.append(path)
    for path in gone:
        said = f"the repository {path} of a run is gone or no repository any more; where it was moved to: --repo DIR"
        if not found and len(gone) == 1:
            raise Refused(said)
        say(said)
    return list(found.values())


def _launch(home: Path, run: str, say: Callable[[str], None]) -> Launch | None:
    try:
        return run_records.load(Launch, RunFiles(home, run).launch)
    except GarrisonError as error:
        say(str(error))
        return None


def _open(path: Path) -> Git:
    git = Git(path)
    git.common  # noqa: B018  # Refused if there is no repository
    return git


def list_rescue_refs(place: RescueRepository, run: str | None = None) -> list[RescueName]:
    """The rescue refs of a repository, or those of one run, by run, node and attempt."""
    found = [parse_rescue(ref) for ref in place.git.rescue_refs(f"{RESCUES}/{run}" if run else RESCUES)]
    return sorted(found, key=lambda one: (one.run, one.node, one.attempt, one.kind, one.number))


def inspect_rescue(place: RescueRepository, name: RescueName) -> RescuedWork:
    """Everything about one rescue ref; GitError if its objects are damaged or gone."""
    git = place.git
    told = git.run("show", "-s", "--format=%H%n%cI%n%s", name.ref, "--").out.splitlines()
    commit, when, subject = told[0], told[1], told[2] if len(told) > 2 else ""
    tip = git.rev(f"refs/heads/{place.bases.get(name.run, '')}") or git.rev("HEAD")
    parent = git.rev(f"{name.ref}^")
    base = git.run("merge-base", tip, commit, check=False).out.strip() if tip else ""
    against = base or parent or git.run("mktree", text="").out.strip()
    changed = changed_files(git, against, commit)
    match = _WHY.match(subject)
    why = match[1] if match else ("at an interval, all of it committed" if name.is_interval_snapshot
                                  else "all of it was committed")
    landed = bool(tip) and tip is not None and has_landed(git, commit, tip)
    return RescuedWork(name, str(git.root), commit, when, why, len(changed), sum(changed.values()), landed, against)


def has_landed(git: Git, commit: str, tip: str) -> bool:
    """Whether `tip` has everything that `commit` holds: merging it would change nothing."""
    if git.is_ancestor(commit, tip):
        return True
    try:
        return git.merge_tree(tip, commit).tree == git.tree_of(tip)
    except GitError:
        return False


def changed_files(git: Git, old: str, new: str) -> dict[str, int]:
    """Path → bytes of the new version (0 if it was removed), of what differs."""
    raw = git.run("diff-tree", "-r", "-z", "--no-renames", "--raw", "--no-abbrev", old, new).out.split("\0")
    pairs = [(head.split(" "), path) for head, path in zip(raw[::2], raw[1::2], strict=False) if head.startswith(":")]
    blobs = [words[3] for words, _ in pairs if words[1] not in ("000000", "160000")]
    told = git.run("cat-file", "--batch-check=%(objectname) %(objectsize)",
                   text="".join(f"{oid}\n" for oid in blobs)).out.splitlines() if blobs else []
    sizes = {oid: int(size) for oid, size in (line.split(" ", 1) for line in told) if size.isdigit()}
    return {path: sizes.get(words[3], 0) for words, path in pairs}


def resolve_rescue(known: Sequence[tuple[RescueRepository, RescueName]], word: str,
                   run: str | None) -> tuple[RescueRepository, RescueName]:
    """The rescue that `word` means: a ref (its beginning may be left out), RUN/NODE/ATTEMPT, RUN/NODE, or NODE. Pure.

    Interval snapshots count only where nothing else was kept; then the youngest. NotFound and Refused (with the list).
    """
    mine = [(place, one) for place, one in known if run in (None, one.run)]
    exact = [(place, one) for place, one in mine if one.ref in (word, f"refs/{word}", f"{RESCUES}/{word}")]
    found = exact or [(place, one) for place, one in mine if word in (
        one.node, f"{one.run}/{one.node}", f"{one.run}/{one.node}/{one.attempt}")]
    if not exact:
        lasting = [(place, one) for place, one in found if not one.is_interval_snapshot]
        newest = {(one.run, one.node): (place, one) for place, one in sorted(
            found, key=lambda pair: (pair[1].attempt, pair[1].number))}
        found = lasting or list(newest.values())
    if not found:
        there = ", ".join(dict.fromkeys(f"{one.run}/{one.node}" for _, one in mine)) if mine else ""
        raise NotFound(f"nothing of {word!r} was rescued; " + (f"there is {there}" if there else
                       "there is no rescue at all" + (f" of run {run}" if run else "")))
    if len(found) > 1:
        listed = ", ".join(one.ref.removeprefix(RESCUES + "/") for _, one in found)
        raise Refused(f"{word} could be any of {listed}; name one of them")
    return found[0]


def restore_branch(git: Git, commit: str, branch: str) -> None:
    """Make a branch at a rescue; Refused if it is there, UsageError if it is no branch name."""
    if git.run("check-ref-format", "--branch", branch, check=False).code or branch.startswith("-"):
        raise UsageError(f"not a branch name: {branch!r}")
    if not git.update_ref(f"refs/heads/{branch}", commit, ABSENT, message="garrison: restored"):
        raise Refused(f"a branch {branch} (or one that is in its way) is there already in {git.root}; name another")


def restore_worktree(git: Git, commit: str, folder: Path) -> list[str]:
    """Make a worktree at `folder`, detached at a rescue; notes for people.

    Refused if anything is there already, or if it would lie in a checkout.
    """
    folder = folder.absolute()
    if folder.exists() or folder.is_symlink():
        raise Refused(f"{folder} is there already; name a directory that is not")
    real = folder.parent.resolve() / folder.name
    inside = next((tree.path for tree in git.worktrees() if real.is_relative_to(tree.path)), None)
    if inside is not None or real.is_relative_to(git.common):
        raise Refused(f"{folder} lies in the checkout {inside or git.root}, which stays as it is; name one outside")
    git.add_worktree(folder, None, commit)
    notes = complete_worktree(git, folder)
    known = {module.path for module in git.submodules(folder)}
    for line in git.run("ls-tree", "-r", "-z", commit).out.split("\0"):
        head, _, path = line.partition("\t")
        if head.startswith("160000") and path not in known and git.rev(head.split(" ")[2]):
            again = f"git -C {git.root} worktree add --detach {folder / path} {head.split(' ')[2]}"
            notes.append(f"{path} was a repository of its own; `{again}` brings it back")
    return notes


def list_all_rescue_refs(where: Iterable[RescueRepository], run: str | None = None) -> list[tuple[RescueRepository,
                                                                                                  RescueName]]:
    """The rescue refs of several repositories."""
    return [(place, name) for place in where for name in list_rescue_refs(place, run)]

