"""Submodules of garrison's own trees: populated without the network where possible, and no work in them lost.

The user's configuration and checkout are not touched: a tree's submodule gets a git directory of its own, below the
worktree's, that borrows the objects which the user's `.git/modules` has. What is committed in it is kept, before the
tree goes, under `refs/garrison/submodules/` of the user's git directory of that submodule (without one: of the
repository itself), so that the pointer which landed can be checked out.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from garrison.errors import Refused
from garrison.system.git.repository import GitError, split
from garrison.system.git.worktrees import Worktrees

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT = "refs/garrison/submodules"
PARTS = "refs/garrison/parts"
_EPOCH = "1970-01-01T00:00:00+0000"
_LIKE_GIT = {"GIT_PROTOCOL_FROM_USER": "0"}
"""An address that stands in the repository is used only as git itself would for a submodule."""


class Module(NamedTuple):
    """One submodule that a tree's index has: `oid` is the commit it points to, `url` as .gitmodules says."""

    name: str
    path: str
    url: str
    oid: str


class Submodules(Worktrees):
    """Submodules of worktrees. `store` is the git directory that keeps their commits."""

    store: Path | None = None

    def modules(self, path: Path) -> list[Module]:
        """Return the submodules in the worktree's index that .gitmodules describes."""
        if not (path / ".gitmodules").is_file():
            return []
        lines = split(self.run("config", "-z", "-f", ".gitmodules", "--get-regexp", r"^submodule\..*\.(path|url)$",
                               cwd=path, check=False).out)
        told = dict(line.split("\n", 1) for line in lines if "\n" in line)
        links = {}
        for line in split(self.run("ls-files", "-s", "-z", cwd=path).out):
            if line.startswith("160000 "):
                links[line.partition("\t")[2]] = line.split(" ")[1]
        return [Module(key[len("submodule."):-len(".path")], where, told.get(key[:-len("path")] + "url", ""),
                       links[where]) for key, where in told.items() if key.endswith(".path") and where in links]

    def populate(self, path: Path, *, force: bool = False) -> None:
        """Fill the submodules of a worktree of ours; one that is there already stays as it is, unless `force`.

        Refused if a submodule's commit is nowhere to be had.
        """
        for module in self.modules(path):
            inner = self._inner(path, module)
            if not (inner.root / ".git").exists():
                self._begin(path, module, inner)
            if force or inner.rev("HEAD") is None:
                self._fetch(module, inner)
                inner.run("checkout", "--quiet", "--force", "--detach", module.oid)
                inner.run("clean", "-ffdq")
            inner.populate(inner.root, force=force)

    def _inner(self, path: Path, module: Module) -> Submodules:
        inner = type(self)(path / module.path, self._environment)
        above = self.store or self.common
        users = above / "modules" / module.name
        inner.store = users if users.is_dir() else above
        return inner

    def _begin(self, path: Path, module: Module, inner: Submodules) -> None:
        own = self.git_dir(path) / "modules" / module.name
        shutil.rmtree(own, ignore_errors=True)  # of a submodule that went and came back, or half made
        own.parent.mkdir(parents=True, exist_ok=True)
        inner.root.mkdir(parents=True, exist_ok=True)
        kind = "sha256" if len(module.oid) == 64 else "sha1"
        self.run("init", "--quiet", f"--object-format={kind}", f"--separate-git-dir={own}", str(inner.root))
        (own / "objects" / "info").mkdir(exist_ok=True)
        stores = {inner.store, self.store or self.common}
        (own / "objects" / "info" / "alternates").write_text("".join(f"{one}/objects\n" for one in stores if one))
        inner.run("remote", "add", "origin", self.address(module.url))

    def _fetch(self, module: Module, inner: Submodules) -> None:
        if inner.rev(module.oid):
            return
        answer = inner.run("fetch", "--quiet", "--no-recurse-submodules", "origin", module.oid, check=False,
                           extra=_LIKE_GIT)
        if answer.code:  # a server that gives no single commits
            answer = inner.run("fetch", "--quiet", "--no-recurse-submodules", "origin", check=False, extra=_LIKE_GIT)
        if inner.rev(module.oid) is None:
            told = GitError(("fetch", "origin"), answer.code, answer.err) if answer.code else "the commit is not there"
            allow = "-c protocol.file.allow=always " if "transport 'file' not allowed" in answer.err else ""
            raise Refused(f"submodule {module.path} cannot be had at {module.oid[:10]} from {module.url} ({told}); "
                          f"run `git {allow}submodule update --init --recursive` in {self.root} once")

    def address(self, url: str) -> str:
        """Return a submodule's address, resolving a relative one as git does: against the repository's own origin."""
        if not url.startswith(("./", "../")):
            return url
        base = self.run("config", "--get", "remote.origin.url", check=False).out.strip() or str(self.root)
        for part in url.split("/"):
            base = base.rstrip("/").rpartition("/")[0] if part == ".." else base
        rest = "/".join(part for part in url.split("/") if part not in ("", ".", ".."))
        return f"{base}/{rest}"

    # --- nothing is lost ---------------------------------------------------------------------------------------------

    def commit_all(self, path: Path, message: str) -> str | None:
        """Commit everything in the submodules first, and keep their commits; then commit the worktree."""
        for _, inner in self._parts(path):
            inner.commit_all(inner.root, message)
            inner.keep_head()
        return super().commit_all(path, message)

    def keep_head(self) -> None:
        """Save a submodule's commit where it outlives the worktree."""
        head = self.rev("HEAD")
        if head:
            self._store({f"{KEPT}/{head}": head})

    def freeze(self, path: Path, message: str, *, links: Mapping[str, str] | None = None,
               timeout: float | None = None, when: str = "") -> str:
        """Commit the worktree's work as `Worktrees.freeze` does; a submodule with work is recorded as a commit of that
        work.

        So is a repository that was created inside the worktree. A clone of another repository is recorded as its commit
        only.
        """
        changed = {}
        # What the outer commit names must not change with the hour, or unchanged work would be kept again and again.
        for name, inner in self._parts(path):
            kept = inner.freeze(inner.root, message, timeout=timeout, when=_EPOCH)
            if kept != inner.rev("HEAD"):
                changed[name] = kept
        begun = {name: inner.freeze(inner.root, message, timeout=timeout, when=_EPOCH)
                 for name, inner in self._begun(path)}
        return super().freeze(path, message, links={**(links or {}), **changed, **begun}, timeout=timeout, when=when)

    def hold_parts(self, path: Path, frozen: str, ref: str) -> None:
        """Save what `frozen` records of the submodules under the same ref, where their objects outlive the worktree.

        Where that is this repository itself, the ref is below `PARTS`.
        """
        for name, inner in [*self._parts(path), *self._begun(path)]:
            told = self.run("ls-tree", frozen, "--", name).out.split()
            if len(told) > 2 and told[1] == "commit":
                inner.hold_parts(inner.root, told[2], ref)
                apart = inner.store != (self.store or self.common)
                at = ref if apart else f"{PARTS}/{ref.removeprefix('refs/')}/{name}"
                head = inner.rev("HEAD") or told[2]
                inner._store({at: told[2], f"{KEPT}/{head}": head})

    def _parts(self, path: Path) -> list[tuple[str, Submodules]]:
        return [(module.path, inner) for module in self.modules(path)
                if ((inner := self._inner(path, module)).root / ".git").exists()]

    def _begun(self, path: Path) -> list[tuple[str, Submodules]]:
        """Repositories inside the tree that nothing tells git about and that come from nowhere else."""
        listed = split(self.run("ls-files", "--others", "--exclude-standard", "-z", cwd=path, check=False).out)
        found = []
        for name in (name.rstrip("/") for name in listed if name.endswith("/")):
            inner = type(self)(path / name, self._environment)
            inner.store = self.store or self.common
            remotes = inner.run("remote", check=False)
            if remotes.code == 0 and not remotes.out.strip():
                found.append((name, inner))
        return found

    def _store(self, refs: Mapping[str, str]) -> None:
        assert self.store is not None
        self.run("push", "--quiet", "--no-recurse-submodules", str(self.store),
                 *(f"+{oid}:{ref}" for ref, oid in refs.items()), durable=True)
