"""Submodules of garrison's worktrees: populate them, without the network where possible, and save the work in them.

The user's configuration and checkout are not touched: a worktree's submodule gets its own git directory, below the
worktree's, that borrows the objects of the user's `.git/modules`. Before the worktree is removed, the commits made in
it are saved under `refs/garrison/submodules/` of the user's git directory of that submodule (without one: of the
repository itself), so that the landed pointer can be checked out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from garrison.errors import GarrisonError, Refused
from garrison.system.git import worktrees as nested
from garrison.system.git.neutral import ONTO_ANOTHER
from garrison.system.git.repository import TIMED_OUT, TOO_MUCH, GitError, split
from garrison.system.git.worktrees import Worktrees, is_safe_name, remove_pipes

if TYPE_CHECKING:
    from collections.abc import Collection

    from garrison.system.git.worktrees import Uncommitted

Connect = Callable[[str], AbstractContextManager[Mapping[str, str]]]
"""Opens the connection to a server for the time of a fetch, and yields variables for git; Refused if that is not
allowed."""

COMMITS = "refs/garrison/submodules"
"""Refs that keep commits of submodules: `<COMMITS>/<commit>`."""
PARTS = "refs/garrison/parts"
"""Refs that keep the submodules of a rescue ref that have no separate git directory."""
_EPOCH = "1970-01-01T00:00:00+0000"
_OF_MIRROR = "garrison: work in a repository that lies in a worktree"
"""Message of such a commit, always the same: the same work is the same commit."""
_MAX_LISTING = 64 << 20
"""Bytes of all file and object names of a repository inside a worktree."""
_AS_SUBMODULE = {"GIT_PROTOCOL_FROM_USER": "0", "GIT_HTTP_LOW_SPEED_LIMIT": "1000", "GIT_HTTP_LOW_SPEED_TIME": "30"}
"""An address from .gitmodules is subject to git's own restrictions for submodules."""


def connect_as_user(_address: str) -> AbstractContextManager[Mapping[str, str]]:
    """Connect as the user's own git does."""
    return nullcontext({})


class Submodule(NamedTuple):
    """One submodule in the index of a worktree: `oid` is the commit it points to, `url` as in .gitmodules."""

    name: str
    path: str
    url: str
    oid: str


class Submodules(Worktrees):
    """Submodules of a repository's worktrees."""

    store: Path | None = None
    """Git directory that keeps the commits of a submodule; None for another repository."""
    users: Path | None = None
    """The user's own checkout of a submodule, which may be absent; None for another repository."""
    users_commit: str | None = None
    """Commit of a submodule that the user's own checkout names; None if it names none."""
    fetch_seconds = 120.0
    """Time limit of a submodule's fetch: the server may not answer, and the waiting process does nothing else."""

    def submodules(self, path: Path) -> list[Submodule]:
        """Return the submodules in the worktree's index that .gitmodules describes."""
        settings = self._read_settings("-f", str(path / ".gitmodules")) if (path / ".gitmodules").is_file() else {}
        if not settings:
            return []
        links = {}
        for line in split(self.run("ls-files", "-s", "-z", cwd=path).out):
            if line.startswith("160000 "):
                links[line.partition("\t")[2]] = line.split(" ")[1]
        return [Submodule(key[len("submodule."):-len(".path")], where, settings.get(key[:-len("path")] + "url", ""),
                          links[where])
                for key, where in settings.items() if key.endswith(".path") and where in links
                and is_safe_name(key[len("submodule."):-len(".path")])]

    def _read_settings(self, *source: str) -> dict[str, str]:
        """Return the submodules' paths and addresses in the .gitmodules that `git config`'s options name."""
        lines = split(self.run("config", "-z", *source, "--get-regexp", r"^submodule\..*\.(path|url)$",
                               check=False).out)
        return dict(line.split("\n", 1) for line in lines if "\n" in line)

    def _knows(self, module: Submodule) -> bool:
        """Return whether the user has a submodule from that address, by their checkout or configuration.

        A submodule that the user has not checked out is read at the commit that the user's checkout names, a bare
        repository at its HEAD.
        """
        checkout = (self.root if self.users is None else self.users) / ".gitmodules"
        known = {}
        if checkout.is_file():
            known = self._read_settings("-f", str(checkout))
        elif commit := self.users_commit or ("HEAD" if self.users is None else None):
            known = self._read_settings("--blob", f"{commit}:.gitmodules")
        configured = "" if self.users is not None else \
            self.run("config", "--get", f"submodule.{module.name}.url", check=False).out.strip()
        return module.url in (known.get(f"submodule.{module.name}.url"), configured)

    def populate_submodules(self, path: Path, *, force: bool = False, connect: Connect = connect_as_user) -> None:
        """Populate the submodules of one of our worktrees; an existing one stays unchanged, unless `force`.

        Refused if a submodule's commit is missing and cannot or must not be fetched: if `connect` refuses, or if only
        the branch, and so an agent, names the address.
        """
        for module in self.submodules(path):
            inner = self._inner(path, module)
            if not self._is_own(path, module):
                if not force and nested.is_embedded(path, module.path):
                    continue  # it may contain work
                _clear(path, module.path)
                self._initialize(path, module, inner)
            if force or inner.rev("HEAD") is None:
                self._fetch(module, inner, connect)
                inner.run("checkout", "--quiet", "--force", "--detach", module.oid)
                inner.run("clean", "-ffdq")
            outer = "HEAD" if self.users is None else self.users_commit
            inner.users_commit = self.run("rev-parse", "--verify", "--quiet", f"{outer}:{module.path}",
                                          check=False).out.strip() or None if outer else None
            inner.populate_submodules(inner.root, force=force, connect=connect)

    def _inner(self, path: Path, module: Submodule) -> Submodules:
        outer = self.store or self.common
        users = outer / "modules" / module.name
        inner = self._open(path / module.path, self.git_dir(path) / "modules" / module.name,
                           users if users.is_dir() else outer)
        inner.users = (self.root if self.users is None else self.users) / module.path
        return inner

    def _open(self, root: Path, git_dir: Path, store: Path) -> Submodules:
        """Return a repository inside a worktree, with a git directory of garrison, whatever `root` contains."""
        inner = type(self)(root, self.environment, common=git_dir, home=self.home)
        inner.outer = self.outer or self.common
        inner.pinned = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(root)}
        inner.store = store
        return inner

    def _initialize(self, path: Path, module: Submodule, inner: Submodules) -> None:
        git_dir = self.git_dir(path) / "modules" / module.name
        shutil.rmtree(git_dir, ignore_errors=True)  # of a submodule that was removed and added again, or is incomplete
        git_dir.parent.mkdir(parents=True, exist_ok=True)
        inner.root.mkdir(parents=True, exist_ok=True)
        kind = "sha256" if len(module.oid) == 64 else "sha1"
        type(self)(path, self.environment).run(
            "init", "--quiet", f"--object-format={kind}", f"--separate-git-dir={git_dir}", str(inner.root))
        (git_dir / "objects" / "info").mkdir(exist_ok=True)
        stores = {inner.store, self.store or self.common}
        (git_dir / "objects" / "info" / "alternates").write_text(
            "".join(f"{store}/objects\n" for store in stores if store))
        inner.run("remote", "add", "--", "origin", self.resolve_url(module.url))

    def _fetch(self, module: Submodule, inner: Submodules, connect: Connect) -> None:
        if inner.rev(module.oid):
            return
        lost = f"cannot get submodule {module.path} at {module.oid[:10]} from {module.url}"
        update = f"submodule update --init --recursive` in {self.root} once"
        if not self._knows(module):
            raise Refused(f"{lost}: only this branch names that address, so garrison does not connect to it; add the "
                          f"submodule with that address in {self.root}, or use a commit of an existing one")
        try:
            with connect(inner.run("remote", "get-url", "origin").out.strip()) as variables:
                told = self._try_to_fetch(module, inner, variables)
        except GitError:
            raise
        except GarrisonError as error:
            raise Refused(f"{lost}: {error}; run `git {update}") from error
        if inner.rev(module.oid):
            return
        allow = "-c protocol.file.allow=always " if told and "transport 'file' not allowed" in told.stderr else ""
        raise Refused(f"{lost} ({told or 'the commit is not there'}); run `git {allow}{update}")

    def _try_to_fetch(self, module: Submodule, inner: Submodules, variables: Mapping[str, str]) -> GitError | None:
        """Fetch a submodule's commit; return why that failed, None if git gave no reason."""
        told = None
        for what in ((module.oid,), ()):  # a server may not serve single commits
            try:
                told = None
                inner.run("fetch", "--quiet", "--no-recurse-submodules", "origin", *what,
                          extra={**_AS_SUBMODULE, **variables}, timeout=self.fetch_seconds)
            except GitError as error:
                told = error
            if inner.rev(module.oid) or (told is not None and told.code == TIMED_OUT):
                break
        return told

    def resolve_url(self, url: str) -> str:
        """Return a submodule's address, resolving a relative one as git does: against the repository's own origin."""
        if not url.startswith(("./", "../")):
            return url
        base = self.run("config", "--get", "remote.origin.url", check=False).out.strip() or str(self.root)
        for part in url.split("/"):
            base = base.rstrip("/").rpartition("/")[0] if part == ".." else base
        rest = "/".join(part for part in url.split("/") if part not in ("", ".", ".."))
        return f"{base}/{rest}"

    # --- saving work ------------------------------------------------------------------------------------------------

    def commit_all(self, path: Path, message: str, *, links: Mapping[str, str] | None = None,
                   seen: Uncommitted | None = None) -> str | None:
        """Commit everything in the submodules first, and save their commits; then commit the worktree."""
        remove_pipes(path, everywhere=True)
        for _, inner in self._populated(path):
            inner.commit_all(inner.root, message)
            inner.save_head()
        made = {}
        for name, inner in self._embedded_submodules(path):
            made[name] = inner.create_snapshot(inner.root, _OF_MIRROR, when=_EPOCH)
            inner._push_to_store({f"{COMMITS}/{made[name]}": made[name]})
        return super().commit_all(path, message, links={**(links or {}), **made}, seen=seen)

    def is_dirty(self, path: Path, *, has_pipes: bool = True) -> bool:
        """Return whether the worktree, or a submodule in it, has uncommitted changes or untracked files."""
        may_nest = remove_pipes(path) if has_pipes else None
        if super().is_dirty(path, has_pipes=False) or any(inner.is_dirty(inner.root)
                                                          for _, inner in self._populated(path)):
            return True
        links = self.links(path)
        return any(inner.create_snapshot(inner.root, _OF_MIRROR, when=_EPOCH) != links.get(name)
                   for name, inner in self._embedded(path, may_nest=may_nest))

    def save_head(self) -> None:
        """Save a submodule's commit where it outlives the worktree."""
        head = self.rev("HEAD")
        if head:
            self._push_to_store({f"{COMMITS}/{head}": head})

    def create_snapshot(self, path: Path, message: str, *, links: Mapping[str, str] | None = None,
                        timeout: float | None = None, when: str = "") -> str:
        """Commit the worktree's work as `Worktrees.create_snapshot` does, with the work in its submodules.

        A submodule with work, or a repository that was created inside the worktree, is recorded as a commit of that
        work; a clone of another repository as its HEAD only.
        """
        may_nest = remove_pipes(path)
        changed = {}
        # A fixed date: otherwise unchanged work would be a new commit, and saved again, at each interval.
        for name, inner in self._populated(path):
            changed[name] = inner.create_snapshot(inner.root, message, timeout=timeout, when=_EPOCH)
        for name, inner in self._embedded(path, may_nest=may_nest):
            changed[name] = inner.create_snapshot(inner.root, _OF_MIRROR, timeout=timeout, when=_EPOCH)
        return super().create_snapshot(path, message, links={**(links or {}), **changed}, timeout=timeout, when=when)

    def save_submodules(self, path: Path, snapshot: str, ref: str) -> None:
        """Save the submodules' commits in `snapshot` under the same ref, in a place that outlives the worktree.

        If that is this repository itself, the ref is below `PARTS`.
        """
        for name, inner in [*self._populated(path), *self._embedded(path)]:
            fields = self.run("ls-tree", snapshot, "--", name).out.split()
            if len(fields) > 2 and fields[1] == "commit":
                commit = fields[2]
                inner.save_submodules(inner.root, commit, ref)
                has_own_store = inner.store != (self.store or self.common)
                saved_as = ref if has_own_store else f"{PARTS}/{ref.removeprefix('refs/')}/{name}"
                head = inner.rev("HEAD") or commit
                inner._push_to_store({saved_as: commit, f"{COMMITS}/{head}": head})

    def find_populated(self, path: Path) -> dict[str, Path]:
        """Return path below the worktree → git directory of each populated submodule, including nested ones."""
        found: dict[str, Path] = {}
        for name, inner in self._populated(path):
            found[name] = inner.common
            found |= {f"{name}/{below}": git_dir for below, git_dir in inner.find_populated(inner.root).items()}
        return found

    def _populated(self, path: Path) -> list[tuple[str, Submodules]]:
        return [(module.path, self._inner(path, module)) for module in self.submodules(path)
                if self._is_own(path, module)]

    def _is_own(self, path: Path, module: Submodule) -> bool:
        git_dir = self.git_dir(path) / "modules" / module.name
        return (git_dir / "HEAD").is_file() and nested.leads_to(path, module.path, git_dir)

    def _heads(self, path: Path, names: Collection[str]) -> dict[str, str]:
        found = {name: inner.rev("HEAD") or "" for name, inner in self._populated(path)} if names else {}
        found |= {name: inner.create_snapshot(inner.root, _OF_MIRROR, when=_EPOCH)
                  for name, inner in (self._embedded_submodules(path) if names else ())}
        others = super()._heads(path, [name for name in names if name not in found])
        return {**others, **{name: oid for name, oid in found.items() if oid and name in names}}

    def _embedded_submodules(self, path: Path) -> list[tuple[str, Submodules]]:
        return [(module.path, inner) for module in self.submodules(path) if nested.is_embedded(path, module.path)
                and (inner := self._mirror(path, module.path, self._inner(path, module).store)).rev("HEAD")]

    def _embedded(self, path: Path, *, may_nest: bool | None = None) -> list[tuple[str, Submodules]]:
        """Return complete repositories in the worktree, each by its mirror: submodules, and others without a remote.

        `may_nest`: what `remove_pipes` has just returned.
        """
        found = dict(self._embedded_submodules(path))
        if not (remove_pipes(path) if may_nest is None else may_nest):
            return list(found.items())
        listed = split(self.run("ls-files", "--others", "--exclude-standard", "-z", cwd=path, check=False,
                                exact=True).out)
        for name in [*self.links(path, check=False), *(name.rstrip("/") for name in listed if name.endswith("/"))]:
            if name not in found and nested.is_embedded(path, name) and not nested.has_remote(path, name):
                found[name] = self._mirror(path, name, None)
        return list(found.items())

    def _mirror(self, path: Path, name: str, store: Path | None) -> Submodules:
        """Return a repository inside the worktree, with a git directory of garrison that has the same HEAD.

        With an incomplete history it has none.
        """
        folder = _mirrors(self.common, self.git_dir(path)) / quote(os.fsencode(name), safe="")
        inner = self._open(path / name, folder, store or self.store or self.common)
        inner.has_foreign_objects = True
        try:
            if self._read_mirror(path, name, folder, inner):
                return inner
        except GitError as error:
            if error.code not in (TIMED_OUT, TOO_MUCH) and "memory" not in error.stderr:
                raise  # not beyond the limits: the problem may be temporary
        (folder / "HEAD").write_text("ref: refs/heads/none\n")
        (folder / "index").unlink(missing_ok=True)
        return inner

    def _read_mirror(self, path: Path, name: str, folder: Path, inner: Submodules) -> bool:
        """Update a mirror; return whether its history is complete."""
        for pack in nested.refresh_mirror(path, name, folder):
            inner.run("index-pack", str(pack), check=False)
        if not inner.rev("HEAD") or inner.run("rev-list", "--objects", "--quiet", "HEAD", check=False).code:
            return False
        inner.run("ls-tree", "-r", "-z", "HEAD", most=_MAX_LISTING)  # few objects can expand to many files
        inner.run("read-tree", "HEAD")  # what is ignored there too, is tracked
        return True

    def remove_worktree(self, path: Path) -> None:
        """Remove a registered worktree, as `Worktrees` does, and the mirrors of its repositories."""
        with suppress(GitError, OSError):
            shutil.rmtree(_mirrors(self.common, self.git_dir(path)), ignore_errors=True)
        super().remove_worktree(path)

    def _push_to_store(self, refs: Mapping[str, str]) -> None:
        assert self.store is not None
        self.run("push", "--quiet", "--no-recurse-submodules", f"--receive-pack={ONTO_ANOTHER}", str(self.store),
                 *(f"+{oid}:{ref}" for ref, oid in refs.items()), durable=True)


def _mirrors(common: Path, git_dir: Path) -> Path:
    return common / "garrison" / "nested" / git_dir.name


def _clear(path: Path, name: str) -> None:
    """Remove what is in place of a submodule's repository, without following links."""
    folder = path
    for part in Path(name).parts:
        folder /= part
        if folder.is_symlink():
            folder.unlink()
            return
    link = folder / ".git"
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    else:
        link.unlink(missing_ok=True)
