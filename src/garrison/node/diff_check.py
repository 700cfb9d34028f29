"""Inspect the work that is to land, for a node's runner: git's own output for the classifier, and the settings.

`merge.diff_guard.inspect_diff` decides what the user should know of it. What an agent committed is read as bytes by
git, outside any worktree, within bounds: anything beyond them counts as too large. The settings are those of the home,
and of the target's garrison.toml, or else your checkout's; the branch's own file is ignored.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.config import PROJECT_FILE, GuardConfig, read_config
from garrison.ends import UNREADABLE_GUARD, ChangeKind, Effect, LandingNote
from garrison.errors import UsageError
from garrison.merge.diff_guard import MAX_READ, Diff, inspect_diff, is_test, parse_log
from garrison.merge.gate_files import MAKEFILES, find_gate_files
from garrison.merge.gates_by_path import parse_rules
from garrison.pipeline.graph import flag
from garrison.pipeline.outcome import PARTIAL
from garrison.run.request import parse_project_file, read_guard
from garrison.system import untrusted
from garrison.system.git import GitError
from garrison.system.terminal_text import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from garrison.merge.diff_guard import Landed
    from garrison.records.run import Launch, Task
    from garrison.system.git import Git
    from garrison.system.git.commits import ChangedPath

_MAX_TOTAL = 64 << 20
"""Bytes that are inspected, in all."""
_MAX_LOG = 32 << 20
"""Bytes of a list of commits with their changes."""
_SECONDS = 60.0
_MAX_SAID = 200
"""Characters of an agent's report on work that is not all done."""
_MAX_AT_ONCE = 4 << 20
"""Bytes of files, large ones included, that are read without asking for their sizes first."""
_KINDS = (b"blob", b"tree", b"commit", b"tag")
_LANDINGS = 20
"""Landings before the start of the work that it might revert."""
_LOG = ("log", "-z", "--raw", "--no-abbrev", "--no-renames", "--format=%H")
_FIRST = (PROJECT_FILE, "package.json")


class Inspected(NamedTuple):
    """Findings on a branch that is to land, at its commit `tip`."""

    tip: str
    changes: tuple[LandingNote, ...] = ()


def inspect_branch(git: Git, home: Path, launch: Launch, task: Task, branch: str, gates: Iterable[str],
                   said: Mapping[str, object]) -> Inspected:
    """Inspect a branch that is to land.

    Args:
        gates: the commands that will test it.
        said: what its agent reported.
    """
    tip, target = git.branch_tip(branch), git.branch_tip(launch.onto)
    base = git.merge_base(target, tip) if tip and target else None
    if tip is None or target is None or base is None or launch.claimed_for:
        return Inspected(tip or "")  # the merge queue reports what is missing; for a host's work its home decides
    changes, history, landed, is_cut = _read_history(git, base, tip)
    done = [change for each in history for change in each.changes]
    blobs, settings = _Blobs(git), f"{launch.base_ref}:{PROJECT_FILE}"
    tests = {oid for change in changes if is_test(change.name) for oid in (change.blob, change.old_blob)}
    commands = list(filter(None, gates))
    blobs.read([f"{target}:{PROJECT_FILE}", settings, *(change.blob for change in (*changes, *done)), *tests,
                *(f"{target}:{name}" for name in _named_in("\n".join(dict.fromkeys(commands))))])
    rules = parse_rules(blobs.read_one(f"{target}:{PROJECT_FILE}") or b"").rules
    command = "\n".join(dict.fromkeys((*commands, *filter(None, (rule.command for rule in rules)))))
    blobs.read(f"{target}:{name}" for name in _named_in(command))  # those of gates by path
    limits, unreadable = _limits(home, launch, blobs.read_one(settings))
    gate = find_gate_files(command, lambda name: blobs.read_one(f"{target}:{name}"))
    found = inspect_diff(Diff(changes, blobs.read, gate, done, landed, blobs.sizes, task.may_change), limits)
    if said.get("status") == PARTIAL:
        words = shorten(" ".join(str(said.get("notes") or "").split()), _MAX_SAID)
        allows = flag(task.attributes, "allow_partial")
        effect = Effect.TELL if allows else limits.effect(ChangeKind.PARTIAL)
        found = [*found, LandingNote(ChangeKind.PARTIAL.value, effect.value, 1, (words,) if words else ())]
    if unreadable:
        found = [*found, LandingNote(UNREADABLE_GUARD, Effect.ASK.value, 1, (unreadable,))]
    if unread := blobs.unread + is_cut:
        found = _with_unread(found, limits, unread)
    return Inspected(tip, tuple(found))


def _named_in(command: str) -> Iterable[str]:
    """Yield files that the gate may consist of, to read them together."""
    yield from _FIRST if any(word in command for word in ("npm", "yarn", "bun")) else ()
    yield from MAKEFILES if "make" in command else ()
    with suppress(ValueError):
        yield from (word.removeprefix("./") for word in shlex.split(command, comments=True)
                    if not word.startswith(("/", "-")) and ("/" in word or "." in word) and "\n" not in word)


def _limits(home: Path, launch: Launch, project: bytes | None) -> tuple[GuardConfig, str]:
    """Return the settings, and why they are only the defaults: they were valid at the launch.

    A garrison.toml that the target does not have yet is the user's own, in the checkout.
    """
    try:
        if project is None:
            return read_guard(home, Path(launch.repo)), ""
        return read_config(home).guard().with_project(parse_project_file(PROJECT_FILE, project).below("guard")), ""
    except (UsageError, untrusted.UnsafeFile) as error:
        return GuardConfig(), str(error)


def _with_unread(found: Sequence[LandingNote], limits: GuardConfig, count: int) -> list[LandingNote]:
    """Return the findings, and one on size if files were not inspected."""
    line = f"{count:,} file{'s' * (count != 1)} too large to be inspected"
    known = next((each for each in found if each.kind == ChangeKind.SIZE), None)
    more = LandingNote(ChangeKind.SIZE.value, limits.effect(ChangeKind.SIZE).value, count,
                       (line,)) if known is None else \
        known._replace(number=known.number + count, names=(*known.names, line))
    return [*(each for each in found if each is not known), more]


def _read_history(git: Git, base: str, tip: str) -> tuple[Sequence[ChangedPath], list[Landed], list[Landed], bool]:
    """Return what the work changes, its commits, the landings before it, and whether there are more commits than can
    be read."""
    if git.parents_of(tip) == (base,):  # one log has it all
        commits, is_cut = _read_log(git, f"-{1 + _LANDINGS}", "--first-parent", "-m", tip)
        if not is_cut and [each.commit for each in commits[:1]] == [tip]:
            return commits[0].changes, commits[:1], commits[1:], False
    changes = git.changes(base, tip)
    history, is_cut = _read_log(git, f"{base}..{tip}")
    return changes, history, _read_log(git, f"-{_LANDINGS}", "--first-parent", "-m", base)[0] if changes else [], is_cut


def _read_log(git: Git, *arguments: str) -> tuple[list[Landed], bool]:
    """Return commits with their changes, and whether there is more than can be read."""
    try:
        return parse_log(git.run(*_LOG, *arguments, "--", timeout=_SECONDS, most=_MAX_LOG).out), False
    except GitError:
        return [], True


class _Blobs:
    """Files of the repository by the names of their blobs, or as `COMMIT:PATH`, each read once."""

    def __init__(self, git: Git) -> None:
        self.git = git
        self.sizes: dict[str, int] = {}
        self.unread = 0
        """Files beyond the bounds."""
        self._known: dict[str, bytes | None] = {}
        self._total = 0

    def read_one(self, name: str) -> bytes | None:
        """Return the content of one; None if it is missing or too large."""
        return self.read([name]).get(name)

    def read(self, names: Iterable[str]) -> Mapping[str, bytes]:
        """Return the content of the files that exist and are small enough."""
        # The null id is the side of a change that has no file; a name with a line break cannot be requested.
        asked = [name for name in dict.fromkeys(names) if name.strip("0")]
        new = [name for name in asked if name not in self._known and "\n" not in name]
        if new:
            self._read(new)
        return {name: data for name in asked if (data := self._known.get(name)) is not None}

    def _read(self, names: Sequence[str]) -> None:
        try:  # most work is small: then one git has sizes and contents
            data = self._print("--batch", names, _MAX_AT_ONCE)
        except GitError:
            listed = dict(zip(names, self._print("--batch-check", names).split(b"\n"), strict=False))
            names = [name for name in names if self._accept(name, listed.get(name, b""))]
            data = self._print("--batch", names) if names else b""
        at = 0
        for name in names:
            begin = data.index(b"\n", at) + 1
            header, at = data[at:begin - 1], begin
            size = _parse_header(header)[1]
            if size is not None:
                at = begin + size + 1
            if name in self.sizes or self._accept(name, header):
                self._known[name] = data[begin:at - 1]

    def _print(self, form: str, names: Sequence[str], most: int | None = None) -> bytes:
        answer = self.git.run("cat-file", "--buffer", f"{form}=%(objecttype) %(objectsize)", exact=True, most=most,
                              text="".join(f"{name}\n" for name in names))
        return answer.out.encode(errors="surrogateescape")

    def _accept(self, name: str, header: bytes) -> bool:
        """Note the size of an object by git's header; return whether it is a file that may be read."""
        self._known[name] = None
        kind, size = _parse_header(header)
        if kind != b"blob" or size is None:
            return False
        self.sizes[name] = size
        if size > MAX_READ or self._total + size > _MAX_TOTAL:
            self.unread += 1
            return False
        self._total += size
        return True


def _parse_header(header: bytes) -> tuple[bytes, int | None]:
    """Return kind and size of an object that git describes; no size for one that is missing. Pure."""
    kind, _, size = header.partition(b" ")
    return (kind, int(size)) if kind in _KINDS and size.isdigit() else (b"", None)
