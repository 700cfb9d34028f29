"""Rescue refs: work kept before its tree goes, and at intervals while an agent works.

`refs/garrison/rescue/<run>/<node>/<attempt>` holds what an attempt left. The rules of this file: a ref that keeps other
work is never overwritten, the next one gets a number (`1`, `1-2`, `1-3`); the same work twice is one ref. What was kept
for a reason of its own says so (`1-validator`, `1-branch`, `1-left`). Interval snapshots are `1-live-<n>`: the youngest
`LIVE_KEPT` of a node stay, the older are superseded, and so are all of them once the node has landed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from garrison.system.git.history import ABSENT
from garrison.system.git.repository import GitError, pair
from garrison.system.git.submodules import PARTS, Submodules

RESCUES, ARCHIVE = "refs/garrison/rescue", "refs/garrison/archive"
LIVE = "live"
LIVE_KEPT = 3
"""Interval snapshots of a node that stay."""
_LAST = re.compile(r"(\d{1,9})(?:-([a-z]+))?(?:-(\d{1,9}))?\Z")
_TRIES = 1000


class RescueName(NamedTuple):
    """Parts of a rescue ref's name; `attempt` 0 and `kind` `?` for a name that garrison did not make."""

    ref: str
    run: str
    node: str
    attempt: int
    kind: str = ""
    number: int = 1

    @property
    def live(self) -> bool:
        """Return whether it is an interval snapshot."""
        return self.kind == LIVE


def parse_rescue(ref: str) -> RescueName:
    """Parse the name of a rescue ref. Pure."""
    parts = ref.removeprefix(RESCUES + "/").split("/")
    run, node = parts[0], parts[1] if len(parts) > 1 else ""
    match = _LAST.match(parts[2]) if len(parts) == 3 else None
    if match is None:
        return RescueName(ref, run, node, 0, "?")
    return RescueName(ref, run, node, int(match[1]), match[2] or "", int(match[3] or 1))


def rescue_stem(run: str, node: str, attempt: int, kind: str = "") -> str:
    """Return the first rescue ref for an attempt's work. Pure."""
    return f"{RESCUES}/{run}/{node}/{attempt}{f'-{kind}' if kind else ''}"


class Rescues(Submodules):
    """Keeping work under refs."""

    def snapshot(self, path: Path, ref: str, message: str) -> str:
        """Keep everything not ignored at `path` under exactly `ref`, whatever it held; the commit kept."""
        kept = self.freeze(path, message)
        self.hold_parts(path, kept, ref)
        if not self.update_ref(ref, kept, message=message.splitlines()[0]):
            raise GitError(("update-ref", ref), 1, f"fatal: could not keep {kept} under {ref}")
        return kept

    def keep_work(self, path: Path, stem: str, message: str) -> str:
        """Keep everything not ignored in the worktree at `path`; the ref that now holds it (`stem`, or numbered)."""
        return self._hold(self.freeze(path, message), stem, message, path)

    def keep_directory(self, path: Path, parent: str | None, stem: str, message: str) -> str:
        """Save a directory that is no worktree any more under the next free rescue ref."""
        return self._hold(self.freeze_directory(path, parent, message), stem, message, None)

    def keep_commit(self, commit: str, stem: str) -> str:
        """Keep a commit that some ref is about to leave; the ref that now holds it."""
        return self._hold(commit, stem, "garrison", None)

    def keep_live(self, path: Path, stem: str, message: str, base: str, *, timeout: float) -> str:
        """Save an interval snapshot of `path` as the next of `stem-<n>`; return '' if nothing is new since the last.

        Nothing is new either where everything is on the branch `base` already. `timeout`: seconds for git's reading.
        """
        have = self.lives(stem)
        kept = self.freeze(path, message, timeout=timeout)
        tip = self.branch_tip(base)
        if (tip and self.is_ancestor(kept, tip)) or (have and self.same_work(have[-1].ref, kept)):
            return ""
        ref = f"{stem}-{have[-1].number + 1 if have else 1}"
        self.hold_parts(path, kept, ref)
        if not self.update_ref(ref, kept, ABSENT, message=message.splitlines()[0]):
            raise GitError(("update-ref", ref), 1, f"fatal: could not keep {kept} under {ref}")
        self.forget_rescues([one.ref for one in [*have, parse_rescue(ref)][:-LIVE_KEPT]])
        return ref

    def lives(self, stem: str) -> list[RescueName]:
        """Return the interval snapshots of one stem, oldest first."""
        folder = stem.rpartition("/")[0]
        found = [parse_rescue(ref) for ref in self.refs(folder + "/") if ref.startswith(stem + "-")]
        return sorted((one for one in found if one.live), key=lambda one: one.number)

    def forget_rescues(self, refs: list[str]) -> None:
        """Delete rescue refs, and what they keep of submodules."""
        if not refs:
            return
        parts = [part for ref in refs for part in self.refs(f"{PARTS}/{ref.removeprefix('refs/')}/")]
        self.delete_refs([*refs, *parts])
        for head in (self.common / "modules").glob("**/HEAD"):
            if (head.parent / "objects").is_dir():
                type(self)(head.parent, self._environment).delete_refs(refs)

    def same_work(self, one: str, other: str) -> bool:
        """Return whether two commits hold the same files on the same parents."""
        told = [self.run("rev-parse", f"{name}^{{commit}}", f"{name}^{{tree}}", f"{name}^@",
                         check=False).out.split() for name in (one, other)]
        return bool(told[0]) and (told[0][:1] == told[1][:1] or told[0][1:] == told[1][1:])

    def rescues(self, prefix: str = RESCUES) -> dict[str, str]:
        """Return every rescue ref below `prefix` with its commit; refs to other kinds of objects are ignored."""
        told = self.run("for-each-ref", "--format=%(refname) %(objecttype) %(objectname)", prefix).out.splitlines()
        found = {ref: pair(rest) for ref, rest in map(pair, told)}
        return {ref: oid for ref, (kind, oid) in found.items() if kind == "commit"}

    def _hold(self, kept: str, stem: str, message: str, path: Path | None) -> str:
        for number in range(1, _TRIES):
            ref = stem if number == 1 else f"{stem}-{number}"
            if self.rev(ref) is None:
                if path is not None:
                    self.hold_parts(path, kept, ref)
                if self.update_ref(ref, kept, ABSENT, message=message.splitlines()[0]):
                    return ref
            elif self.same_work(ref, kept):
                return ref
        raise GitError(("update-ref", stem), 1, f"fatal: could not keep {kept} under {stem}")
