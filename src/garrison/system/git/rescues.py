"""Rescue refs: save work before its worktree is removed, and at intervals while an agent works.

`refs/garrison/rescue/<run>/<node>/<attempt>` contains the work of an attempt. A ref with other work is never
overwritten: the next one gets a number (`1`, `1-2`, `1-3`). The same work twice is one ref. A suffix says why work was
saved at another time (`1-validator`, `1-branch`, `1-left`, `1-queued`; `1-other`: an agent's stash and other branches).
Interval snapshots are `1-live-<n>`: of a node, the newest `LIVE_KEPT` are kept, older ones are deleted, and all of them
once it has landed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.system.git.commits import ABSENT
from garrison.system.git.damage import write_held
from garrison.system.git.repository import GitError, pair
from garrison.system.git.submodules import PARTS, Submodules

if TYPE_CHECKING:
    from collections.abc import Callable

RESCUES, ARCHIVE = "refs/garrison/rescue", "refs/garrison/archive"
RUNS = "refs/garrison/run"
"""Folder of the refs that reserve the ids of runs, each at the commit where its run started."""
REASON = "Garrison-Saved"
"""Trailer of a commit that garrison makes to save work: the reason."""
LIVE = "live"
LIVE_KEPT = 3
"""Number of interval snapshots of a node to keep."""
_LAST_PART = re.compile(r"(\d{1,9})(?:-([a-z]+))?(?:-(\d{1,9}))?\Z")
_MAX_NUMBER = 1000


class RescueName(NamedTuple):
    """Parts of a rescue ref's name; `attempt` 0 and `kind` `?` for a name that garrison did not choose."""

    ref: str
    run: str
    node: str
    attempt: int
    kind: str = ""
    number: int = 1

    @property
    def is_interval_snapshot(self) -> bool:
        return self.kind == LIVE


def parse_rescue(ref: str) -> RescueName:
    """Parse the name of a rescue ref. Pure."""
    parts = ref.removeprefix(RESCUES + "/").split("/")
    run, node = parts[0], parts[1] if len(parts) > 1 else ""
    match = _LAST_PART.match(parts[2]) if len(parts) == 3 else None
    if match is None:
        return RescueName(ref, run, node, 0, "?")
    return RescueName(ref, run, node, int(match[1]), match[2] or "", int(match[3] or 1))


def rescue_message(node: str, why: str) -> str:
    """Return the message of a commit of a node's work; `why` completes "what NODE …". Pure."""
    return f"garrison: what {node} {why}\n\n{REASON}: {why}"


def rescue_stem(run: str, node: str, attempt: int, kind: str = "") -> str:
    """Return the first rescue ref for an attempt's work. Pure."""
    return f"{RESCUES}/{run}/{node}/{attempt}{f'-{kind}' if kind else ''}"


class Rescues(Submodules):
    """Rescue refs of a repository."""

    def find_refs_of_runs(self) -> dict[str, str]:
        """Return the ids of the runs, of any home, with branches or refs here, each with one of these."""
        refs = self.refs("refs/garrison/", "refs/heads/garrison/")
        return {parts[3]: ref for ref in refs if len(parts := ref.split("/")) > 3}

    def save_work(self, path: Path, stem: str, message: str) -> str:
        """Save everything not ignored in the worktree at `path`; return its ref (`stem`, or numbered)."""
        return self._save_made(lambda: self.create_snapshot(path, message), stem, message, path)

    def save_directory(self, path: Path, parent: str | None, stem: str, message: str) -> str:
        """Save a directory that is no longer a worktree; return its ref."""
        return self._save_made(lambda: self.create_directory_snapshot(path, parent, message), stem, message, None)

    def save_commit(self, commit: str, stem: str) -> str:
        """Save a commit that a ref is about to leave; return its ref."""
        return self._save_as(commit, stem, "garrison", None)

    def save_interval_snapshot(self, path: Path, stem: str, message: str, base: str, *, timeout: float) -> str:
        """Save an interval snapshot of `path` as the next of `stem-<n>`; return '' if there is nothing new.

        Nothing is new if the last snapshot has it, or if everything is already on the branch `base`.

        Args:
            timeout: seconds that git may take to read the files.
        """
        existing = self.interval_snapshots(stem)
        commit = self.create_snapshot(path, message, timeout=timeout)
        tip = self.branch_tip(base)
        if (tip and self.is_ancestor(commit, tip)) or (existing and self.is_same_work(existing[-1].ref, commit)):
            return ""
        ref = f"{stem}-{existing[-1].number + 1 if existing else 1}"
        self.save_submodules(path, commit, ref)
        if not self.update_ref(ref, commit, ABSENT, message=message.splitlines()[0]):
            raise GitError(("update-ref", ref), 1, f"fatal: could not save {commit} as {ref}")
        self.delete_rescues([name.ref for name in [*existing, parse_rescue(ref)][:-LIVE_KEPT]])
        return ref

    def interval_snapshots(self, stem: str) -> list[RescueName]:
        """Return the interval snapshots of one stem, oldest first."""
        folder = stem.rpartition("/")[0]
        names = [parse_rescue(ref) for ref in self.refs(folder + "/") if ref.startswith(stem + "-")]
        return sorted((name for name in names if name.is_interval_snapshot), key=lambda name: name.number)

    def delete_rescues(self, refs: list[str]) -> None:
        """Delete rescue refs, with the refs of their submodules."""
        if not refs:
            return
        parts = [part for ref in refs for part in self.refs(f"{PARTS}/{ref.removeprefix('refs/')}/")]
        self.delete_refs([*refs, *parts])
        for head in (self.common / "modules").glob("**/HEAD"):
            if (head.parent / "objects").is_dir():
                type(self)(head.parent, self.environment).delete_refs(refs)

    def is_same_work(self, first: str, second: str) -> bool:
        """Return whether two commits have the same files and parents."""
        (commit, *content), (other, *other_content) = (
            self.run("rev-parse", f"{name}^{{commit}}", f"{name}^{{tree}}", f"{name}^@",
                     check=False).out.split() or [""] for name in (first, second))
        return bool(commit) and (commit == other or content == other_content)

    def rescue_refs(self, prefix: str = RESCUES) -> dict[str, str]:
        """Return every rescue ref below `prefix` with its commit; refs to other kinds of objects are ignored."""
        lines = self.run("for-each-ref", "--format=%(refname) %(objecttype) %(objectname)", prefix).out.splitlines()
        objects = {ref: pair(rest) for ref, rest in map(pair, lines)}
        return {ref: oid for ref, (kind, oid) in objects.items() if kind == "commit"}

    def _save_made(self, make: Callable[[], str], stem: str, message: str, path: Path | None) -> str:
        """Save the commit that `make` makes as `_save_as` does, even if a `git gc` of the user removes it."""
        saved: list[str] = []

        def write() -> str:
            saved.append(self._save_as(make(), stem, message, path))
            return saved[-1]

        return write_held(self.common, write, self.has_all, lambda: self.delete_refs(saved))

    def _save_as(self, commit: str, stem: str, message: str, path: Path | None) -> str:
        for number in range(1, _MAX_NUMBER):
            ref = stem if number == 1 else f"{stem}-{number}"
            if self.rev(ref) is None:
                if path is not None:
                    self.save_submodules(path, commit, ref)
                if self.update_ref(ref, commit, ABSENT, message=message.splitlines()[0]):
                    return ref
                if not self.has_object(commit):  # no name helps
                    raise GitError(("update-ref", ref), 1, f"fatal: {commit} is gone")
            elif self.is_same_work(ref, commit):
                return ref
        raise GitError(("update-ref", stem), 1, f"fatal: could not save {commit} as {stem}")
