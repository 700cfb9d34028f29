"""Private git view: what a confined process tree has instead of the repository's git directory.

Next to a worktree `NAME`, `.NAME.sandbox/git/common` is a git directory that is `REPOSITORY` inside, where the `.git`
file of the worktree points:

    HEAD, index, logs …   copies of the worktree's own part config, hooks, info   copies, without credentials
    (git_config.py) packed-refs           every ref of the repository, as the view's own objects               what is
    written inside; its alternates are the repository's objects, bound read-only modules               copies of the git
    directories of the worktree's submodules

So inside there is an ordinary repository, not a linked worktree, that is fully writable: stash, rebase, bisect, tags,
gc, more worktrees. (`.git` stays a file since it is one outside, where garrison's own git reads the same folder.) Views
of version 1 were mounted over the repository's git directory, with the worktree's part in `worktrees/<id>`; one that an
agent left there before an update is still collected. The real one cannot be changed, and only its objects can be read.
`collect.py` imports what belongs to the node. Everything in `common` belongs to the agent from the first start on:
garrison reads it by `system/untrusted.py`, and never runs git with its configuration.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from garrison.errors import GarrisonError
from garrison.records import atomic
from garrison.sandbox import git_config
from garrison.sandbox.file_system import SYSTEM, home_inside, is_within
from garrison.sandbox.place import Mount, sandbox_folder
from garrison.system import untrusted
from garrison.system.git import bounds, commits
from garrison.system.git.commits import OID
from garrison.system.git.damage import read_beginning
from garrison.values import asdict, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from garrison.system.git import Git

STORES = Path("/run/garrison/git")
"""Folder inside that contains the real object directories, read-only: `<number>/objects`, `<number>/lfs`."""
REPOSITORY = STORES / "repository"
"""Git directory inside."""
MERGE_HEADS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD")
"""Files of an operation in progress that the next commit finishes."""
_HIDDEN_REFS = ("refs/stash", "refs/bisect/", "refs/worktree/", "refs/rewritten/", "refs/garrison/mq/")
"""Refs private to the user's checkout, and pins of the merge queue."""
_SYSTEM_CONFIG = Path("/etc/gitconfig")
_LIMIT_HOOKS = 500
_LIMIT_DIRECTORIES = 10_000
"""Most directories of a view that are searched for locks; an agent may have created a million."""
_LIMIT_COPY = 4 << 20
"""Largest hook or file of patterns in bytes that is copied."""
_VERSION = 2


class ViewState(msgspec.Struct):
    """Garrison's own record of a view, out of the agent's reach."""

    branch: str
    """Branch of the worktree, '' if it was detached."""
    git_dir: str
    """The worktree's own git directory in the repository."""
    tip: str
    """Value of the branch in the repository at the last collection, '' if it had none."""
    owner: str = ""
    """Attempt of the agent that it was made for."""
    pending: str = ""
    """Value that a collection in progress sets the branch to."""
    indexed: str = ""
    """Commit that the worktree's index in the repository was made for."""
    seen: str = ""
    """Private state at the last complete collection."""
    unmerged: list[str] | None = None
    """Files in conflict in the private index at that time; None if unknown."""
    permissions: str = ""
    """The repository's setting `core.sharedRepository`."""
    stores: list[str] = msgspec.field(default_factory=list)
    """Borrowed object directories, in the order of their numbers inside."""
    checkout: str = ""
    """Path of the worktree inside."""
    modules: dict[str, str] = msgspec.field(default_factory=dict)
    """Path of each submodule below the worktree → path of its git directory below the view."""
    version: int = 1
    refs: str = ""
    """Hash of the packed refs that garrison wrote into the view."""
    is_direct: bool = False
    """True if nothing is mounted: processes work directly in the view, where the worktree's `.git` file points."""

    @property
    def part(self) -> str:
        """Return the folder below the view's git directory that is the worktree's own part: '', or ending with `/`."""
        return f"worktrees/{Path(self.git_dir).name}/" if self.version == 1 else ""


def checkout_path(root: Path, key: str, user_home: Path) -> Path:
    """Return where every worktree of a repository is inside: at the path of the user's own checkout. Pure.

    So what a set-up leaves in one (the first line of each program of a virtual environment, for example) fits all. A
    checkout that is the home folder or contains it, or that the system needs, cannot be covered: then a folder of the
    home is used.

    Args:
        root: top directory of the checkout from which the run was launched.
        key: key of the repository.
    """
    home = home_inside(user_home)
    needed = (home, *map(Path, (*SYSTEM, "/tmp", "/var/tmp", "/run", "/dev", "/proc")))
    is_free = root.is_absolute() and not any(is_within(folder, root) for folder in needed)
    below_own = any(is_within(root, Path(folder)) for folder in ("/run", "/dev", "/proc"))
    return root if is_free and not below_own else home / "checkout" / key


class BegunView(NamedTuple):
    """A view in the making (`GitView.begin`)."""

    folder: Path
    stores: ObjectStores
    settings: list[git_config.ConfigEntry]
    named: list[git_config.ConfigEntry]
    """Settings that name a copy."""


class GitView:
    """View of the worktree `worktree`; `name` distinguishes several of one worktree."""

    def __init__(self, git: Git, worktree: Path, name: str = "git") -> None:
        self.git, self.worktree = git, worktree
        self.folder = sandbox_folder(worktree) / name
        self.common = self.folder / "common"
        self.lock = self.folder.with_name(f"{name}.lock")
        """Lock held while the view is collected or replaced."""
        self._inside = REPOSITORY

    # ---- state

    @property
    def exists(self) -> bool:
        return (self.folder / "view.json").is_file()

    def read_state(self) -> ViewState | None:
        """Return the recorded state of the view; None without a view, or for one of another version."""
        content = atomic.read(self.folder / "view.json")
        if content is None:
            return None
        try:
            state = ViewState(**json.loads(content))
        except (ValueError, TypeError):
            return None
        return state if state.version in (1, _VERSION) else None

    def write_state(self, state: ViewState) -> None:
        """Record the state of the view."""
        atomic.write(self.folder / "view.json", json.dumps(asdict(state)).encode())

    def follow(self) -> None:
        """Record the new place of the worktree's git directory after the repository was moved. Idempotent."""
        if (state := self.read_state()) is not None:
            self.write_state(replace(state, git_dir=str(find_git_dir(self.git, self.worktree))))

    @property
    def reflog(self) -> Path:
        """Return the private reflog of HEAD, which changes with commits; it may be anything."""
        state = self.read_state()
        return self.common / (state.part if state else "") / "logs" / "HEAD"

    def remove(self) -> None:
        """Remove the view without following links. Idempotent."""
        if self.folder.parent.is_dir():
            with atomic.locked(self.lock):
                self._remove()

    def clear_locks(self) -> None:
        """Remove the lock files of a killed git from the view, which would make every later commit fail.

        Only while no process works in it.
        """
        with atomic.locked(self.lock), untrusted.open_directory(self.common) as common:
            if common is None:
                return
            for folder, directories, names, descriptor in islice(os.fwalk(".", dir_fd=common), _LIMIT_DIRECTORIES):
                if folder == ".":
                    directories[:] = [name for name in directories if name not in ("hooks", "objects")]
                for name in names:
                    if name.endswith(".lock"):
                        with suppress(OSError):
                            os.unlink(name, dir_fd=descriptor)

    def _remove(self) -> None:
        for folder in (self.folder, *self.folder.parent.glob(f"{self.folder.name}.new-*")):
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                untrusted.remove_tree(folder)

    # ---- preparing

    def begin(self, *, hooks: bool = True, is_direct: bool = False) -> BegunView:
        """Create the part of a view that does not depend on what is checked out. Arguments: as for `prepare`."""
        self._inside = self.common if is_direct else REPOSITORY
        new = self.folder.with_name(f"{self.folder.name}.new-{os.getpid()}")
        untrusted.remove(new.parent, new.name)
        atomic.make_directory(new)
        stores = ObjectStores(self.git.common, is_direct=is_direct)
        _make_git_directory(new / "common", stores.alternates(self.git.common / "objects"))
        return BegunView(new, stores, *self._write_shared(new / "common", hooks=hooks))

    def prepare(self, *, push: bool = False, owner: str = "", checkout: Path | None = None, hooks: bool = True,
                is_direct: bool = False, begun: BegunView | None = None) -> tuple[Mount, ...]:
        """Create the view from the repository's current state, replacing an old one; return what to bind inside.

        Args:
            push: keep the addresses to push to.
            owner: attempt of the agent that it is made for, compared by `enter`.
            checkout: path of the worktree inside; None: as outside.
            hooks: the user's own hooks run inside.
            is_direct: as in `ViewState`.
            begun: result of `begin` with the same arguments.
        """
        inside = checkout or self.worktree
        git_dir = restore_link(self.git, self.worktree)
        self._inside = self.common if is_direct else REPOSITORY
        new, stores, entries, named = begun or self.begin(hooks=hooks, is_direct=is_direct)
        common = new / "common"
        branch, tip = read_head(self.git, self.worktree, git_dir)
        self._write_settings(common, git_dir, inside, entries, named, push=push)
        modules = _copy_worktree_part(self.git, self.worktree, git_dir, common, stores, inside)
        (new / "empty").touch()
        for number, folder in enumerate(["", *modules.values()]):
            (new / f"link-{number}").write_text(f"gitdir: {self._inside / folder}\n", errors="surrogateescape")
        shared = next((entry.value or "" for entry in reversed(entries) if entry.key == "core.sharedrepository"), "")
        state = ViewState(branch, str(git_dir), tip, owner, indexed=tip, permissions=shared,
                          stores=[str(path) for path in stores.paths], checkout=str(inside), modules=modules,
                          version=_VERSION, refs=hash_refs((common / "packed-refs").read_bytes()), is_direct=is_direct)
        atomic.write(new / "view.json", json.dumps(asdict(state)).encode(), durable=False)
        # Renamed, and removed afterwards: a view exists completely or not at all, and the lock is not held for an
        # agent's million files.
        with atomic.locked(self.lock):
            untrusted.set_aside(self.folder.parent, self.folder.name)
            new.rename(self.folder)
        untrusted.remove_set_aside(self.folder.parent)
        return self.mounts()

    def mounts(self) -> tuple[Mount, ...]:
        """Return what to bind inside for a prepared view, in order."""
        state = self.read_state()
        empty = self.folder / "empty"
        if state is not None and state.is_direct:
            _write_link(self.worktree, self.common)
            stores = [Path(path) for path in state.stores]
            return (Mount(self.common, self.common, writable=True), *(Mount(path, path) for path in stores),
                    *(Mount(lfs, lfs) for path in stores if (lfs := path.parent / "lfs").is_dir()))
        restore_link(self.git, self.worktree)
        system = [Mount(empty, _SYSTEM_CONFIG)] if _SYSTEM_CONFIG.is_file() else []  # the view's own has its settings
        links = ["", *state.modules] if state else []
        inside = Path(state.checkout) if state else self.worktree
        return (Mount(self.common, REPOSITORY, writable=True),
                *(Mount(self.folder / f"link-{number}", inside / path / ".git") for number, path in enumerate(links)
                  if (self.worktree / path / ".git").is_file()),
                *store_mounts([Path(path) for path in state.stores] if state else [], empty), *system)

    def _write_shared(self, common: Path, *, hooks: bool,
                      ) -> tuple[list[git_config.ConfigEntry], list[git_config.ConfigEntry]]:
        """Write the parts shared by all worktrees of a repository: refs, hooks, files; return the real settings, and
        those that name a copy."""
        entries = [entry for entry in self._list_settings() if entry.scope != "command"]
        named = self._copy_hooks(common, _paths_in(entries).get("core.hookspath", "")) if hooks else []
        head = (self.git.common / "HEAD").read_text()
        if "refs/heads/.invalid" in head:  # of a repository with its refs in tables
            head = "ref: refs/heads/main\n"
        (common / "HEAD").write_text(head)
        _write_refs(self.git, common)
        _copy_file(self.git.common / "shallow", common / "shallow")
        for name in ("exclude", "attributes", "sparse-checkout"):
            _copy_file(self.git.common / "info" / name, common / "info" / name)
        return entries, named

    def _write_settings(self, common: Path, git_dir: Path, inside: Path, entries: Sequence[git_config.ConfigEntry],
                        named: Sequence[git_config.ConfigEntry], *, push: bool) -> None:
        """Write the settings, with the user's own patterns, and what is excluded in this worktree."""
        shared = [*git_config.select(entries, ("system", "global", "local"), push=push),
                  *self._copy_patterns(common, _paths_in(entries)), *named,
                  *(git_config.ConfigEntry("local", key, value) for key, value in git_config.FORCED),
                  git_config.ConfigEntry("local", "core.bare", "false"),  # it has a worktree, whatever the real one has
                  git_config.ConfigEntry("local", "core.worktree", str(inside))]
        (common / "config").write_bytes(git_config.render(shared))
        own = git_config.select(entries, ("worktree",), push=push)
        if (git_dir / "config.worktree").exists():
            (common / "config.worktree").write_bytes(git_config.render(
                entry for entry in own if not entry.key.endswith(".pushurl")))
        if (excluded := git_dir / commits.EXCLUDE_FILE).is_file():
            with (common / "info" / "exclude").open("ab") as file:
                file.write(b"\n" + excluded.read_bytes())

    def _list_settings(self) -> list[git_config.ConfigEntry]:
        if known := self.git.settings(self.worktree):
            return [git_config.ConfigEntry(each.scope, each.key, each.value if each.has_value else None)
                    for each in known]
        listing = self.git.run("config", "--list", "-z", "--show-scope", "--includes", cwd=self.worktree)
        return git_config.parse(listing.out)

    def _copy_patterns(self, common: Path, paths: Mapping[str, str]) -> list[git_config.ConfigEntry]:
        """Copy the user's own lists of ignored files and attributes; return the settings that name the copies."""
        settings = []
        for key, default in (("core.excludesfile", "ignore"), ("core.attributesfile", "attributes")):
            named = paths.get(key, "")
            config = os.environ.get("XDG_CONFIG_HOME") or Path(os.environ.get("HOME", "/"), ".config")
            source = Path(named) if named else Path(config, "git", default)
            copy = f"garrison-{default}"
            if source.is_absolute():
                is_copied = _copy_file(source, common / "info" / copy)
            else:  # in the worktree, it may be an agent's link to something that the agent must not see
                is_copied = bool(data := untrusted.read_begin(self.worktree, named, _LIMIT_COPY))
                if is_copied:
                    (common / "info").mkdir(parents=True, exist_ok=True)
                    (common / "info" / copy).write_bytes(data)
            if is_copied:
                settings.append(git_config.ConfigEntry("local", key, str(self._inside / "info" / copy)))
        return settings

    def _copy_hooks(self, common: Path, path: str) -> list[git_config.ConfigEntry]:
        """Copy the user's hooks; return the setting that names a folder of hooks in the worktree itself."""
        if path and not Path(path).is_absolute():
            return [git_config.ConfigEntry("local", "core.hookspath", path)]
        source = Path(path) if path else self.git.common / "hooks"
        for count, file in enumerate(_files_below(source)):
            if count >= _LIMIT_HOOKS:
                break
            _copy_file(file, common / "hooks" / file.relative_to(source))
        return []


class ObjectStores:
    """Object directories of a repository and all their alternates, each with its place inside."""

    def __init__(self, common: Path, *, is_direct: bool = False) -> None:
        self._places: dict[Path, int] = {}
        self._is_direct = is_direct
        self.add(common / "objects")

    def add(self, objects: Path) -> None:
        """Add an object directory and, after it, the alternates that it names."""
        for real in _closure(objects):
            self._places.setdefault(real, len(self._places))

    def alternates(self, objects: Path) -> str:
        """Return the content of `info/alternates` for a private store that replaces `objects`, which are added."""
        self.add(objects)
        if self._is_direct:
            return "".join(f"{bounds.quote_in_list(real)}\n" for real in _closure(objects))
        return "".join(f"{STORES}/{self._places[real]}/objects\n" for real in _closure(objects))

    @property
    def paths(self) -> list[Path]:
        return list(self._places)


def store_mounts(stores: Sequence[Path], empty: Path) -> list[Mount]:
    """Return the read-only mounts of object directories; `empty` hides alternates, whose paths do not exist inside."""
    mounts = []
    for number, real in enumerate(stores):
        place = STORES / str(number)
        if real.is_dir():
            mounts.append(Mount(real, place / "objects"))
            if (real / "info" / "alternates").is_file():
                mounts.append(Mount(empty, place / "objects" / "info" / "alternates"))
            if (real.parent / "lfs").is_dir():  # where git-lfs searches next to an alternate
                mounts.append(Mount(real.parent / "lfs", place / "lfs"))
    return mounts


def _closure(objects: Path) -> list[Path]:
    """Return the real paths of an object directory and all its alternates."""
    found: list[Path] = []
    waiting = [objects]
    while waiting:
        real = waiting.pop(0).resolve()
        if real not in found and real.is_dir():
            found.append(real)
            waiting += _read_alternates(real)
    return found


def _read_alternates(objects: Path) -> list[Path]:
    content = untrusted.read_text(objects, "info/alternates")
    return [objects / line for line in content.splitlines() if line and not line.startswith("#")]


# ---- the worktree's link to its git directory ------------------------------------------------------------------------


def find_git_dir(git: Git, worktree: Path) -> Path:
    """Return the worktree's own git directory by the repository's records, whatever its `.git` file says.

    GarrisonError if the repository has no such worktree.
    """
    git_dir = git.registered(worktree)
    if git_dir is None:
        raise GarrisonError(f"{worktree} is not a worktree of {git.root}: its registration is gone")
    return git_dir


def restore_link(git: Git, worktree: Path) -> Path:
    """Return the worktree's own git directory, and rewrite its `.git` file if that names anything else."""
    git_dir = find_git_dir(git, worktree)
    _write_link(worktree, git_dir)
    return git_dir


def give_back(git: Git, worktree: Path) -> None:
    """Point the `.git` file of an idle worktree to the repository: the user's git there would obey what the agent
    wrote."""
    state = GitView(git, worktree).read_state()
    if state is not None and state.is_direct and worktree.is_dir():
        restore_link(git, worktree)


def _write_link(worktree: Path, git_dir: Path) -> None:
    """Rewrite the `.git` file of a worktree if it names something else; keep anything else in its place."""
    link = worktree / ".git"
    untrusted.mend_folder(worktree)
    try:
        content = untrusted.read(worktree, ".git", 1 << 16) or b""
    except untrusted.UnsafeFile:
        content = b""
    named = os.fsdecode(content.removeprefix(b"gitdir: ").removesuffix(b"\n"))
    if not content.startswith(b"gitdir: ") or os.path.normpath(worktree / named) != str(git_dir):
        if link.is_dir() and not link.is_symlink():
            free = next(link.with_name(f".git.left-{number}") for number in range(1, 1000)
                        if not os.path.lexists(link.with_name(f".git.left-{number}")))
            link.rename(free)
        atomic.write(link, b"gitdir: " + os.fsencode(git_dir) + b"\n")


# ---- parts of a view -------------------------------------------------------------------------------------------------


def _paths_in(entries: Iterable[git_config.ConfigEntry]) -> dict[str, str]:
    """Return each setting as a path."""
    # Path's fails without such a user
    return {entry.key: os.path.expanduser(entry.value or "") for entry in entries}  # noqa: PTH111


def _make_git_directory(folder: Path, alternates: str) -> None:
    """Create an empty git directory that borrows objects."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/tags", "logs", "info", "hooks"):
        with suppress(FileExistsError):
            os.mkdir(f"{folder}/{name}")  # noqa: PTH102  # for each agent that starts
    (folder / "objects" / "info" / "alternates").write_text(alternates)


def read_head(git: Git, worktree: Path, git_dir: Path) -> tuple[str, str]:
    """Return branch ('' for none) and commit ('' for none) that a worktree has checked out."""
    head = (git_dir / "HEAD").read_text(errors="replace").strip()
    if head.startswith("ref: refs/heads/") and head != "ref: refs/heads/.invalid":
        branch = head.removeprefix("ref: refs/heads/")
        return branch, git.branch_tip(branch) or ""
    if OID.fullmatch(head):
        return "", head
    return git.current_branch(worktree) or "", git.head(worktree) or ""


def _write_refs(git: Git, common: Path) -> None:
    """Write every ref of the repository that an agent may see: `packed-refs`, and files for symbolic ones."""
    refs = _list_refs(git) if (git.common / "reftable").exists() else _read_refs(git.common)
    lines = []  # no header: GitPython refuses one without the flag for peeled tags
    for ref, value in sorted(refs.items()):
        if ref.startswith(_HIDDEN_REFS):
            continue
        if value.startswith("ref:"):
            path = common / ref
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        elif OID.fullmatch(value):
            lines.append(f"{value} {ref}\n")
    (common / "packed-refs").write_text("".join(lines), errors="surrogateescape")


def hash_refs(packed: bytes) -> str:
    """Return the value of `ViewState.refs` for a file of packed refs. Pure."""
    return hashlib.sha256(packed).hexdigest()


def _list_refs(git: Git) -> dict[str, str]:
    listing = git.run("for-each-ref", "--format=%(objectname) %(refname) %(symref)", extra={"GIT_DIR": str(git.common)})
    parts = (line.split(" ", 2) for line in listing.out.splitlines())
    return {ref: f"ref: {symbolic}" if symbolic else oid for oid, ref, symbolic in parts}


def _read_refs(common: Path) -> dict[str, str]:
    """Read every ref from its file, as git does, in the user's repository; a git call costs as much."""
    refs: dict[str, str] = {}
    # Loose ones first, as git reads them: `git pack-refs` writes the packed file before it removes theirs, so that a
    # ref being packed right now is found in one of the two places. A loose one is newer than a packed one.
    start = len(str(common)) + 1
    for path, folders, names in os.walk(common / "refs"):
        folders[:] = [name for name in folders if f"{path[start:]}/{name}/" not in _HIDDEN_REFS]
        for name in names:
            if not name.endswith(".lock"):
                with suppress(OSError):
                    refs[f"{path}/{name}"[start:]] = os.fsdecode(read_beginning(f"{path}/{name}", 4096)).strip()
    with suppress(FileNotFoundError):
        for line in (common / "packed-refs").read_text(errors="surrogateescape").splitlines():
            value, _, ref = line.partition(" ")
            if ref.startswith("refs/"):
                refs.setdefault(ref, value)
    return refs


def _copy_worktree_part(git: Git, worktree: Path, git_dir: Path, target: Path, stores: ObjectStores,
                        inside: Path) -> dict[str, str]:
    """Copy a worktree's own git directory and its submodules'; return their paths, as `ViewState.modules`."""
    _copy_state(git_dir, target)
    heads = sorted((git_dir / "modules").glob("**/HEAD"))
    populated = git.find_populated(worktree) if heads else {}
    modules = {path: os.path.relpath(folder.resolve(), git_dir.resolve()) for path, folder in populated.items()}
    paths = {folder: path for path, folder in modules.items()}
    for head in heads:
        source = head.parent
        folder = str(source.relative_to(git_dir))
        if not (source / "objects").is_dir() or "objects" in source.relative_to(git_dir).parts:
            continue
        copy = target / folder
        _make_git_directory(copy, stores.alternates(source / "objects"))
        _copy_state(source, copy)
        listing = git.run("config", "--list", "-z", "--show-scope", "-f", str(source / "config"), check=False).out
        entries = [entry._replace(scope="local") for entry in git_config.parse(listing)]
        kept = git_config.select(entries, ("local",))
        if folder in paths:
            kept.append(git_config.ConfigEntry("local", "core.worktree", str(inside / paths[folder])))
        (copy / "config").write_bytes(git_config.render(kept))
    return modules


def _copy_state(source: Path, target: Path) -> None:
    """Copy the private files of a git directory, except configuration, objects, hooks and locks."""
    left_out = {"objects", "modules", "hooks", "lfs", "config", "config.worktree", "worktrees", "info", "garrison",
                "gitdir", "commondir"}

    def ignored(folder: str, names: list[str]) -> Iterable[str]:
        top = Path(folder).samefile(source)
        return [name for name in names if name.endswith(".lock") or name.startswith("garrison-snapshot-")
                or (top and (name in left_out or name == "locked"))]

    shutil.copytree(source, target, symlinks=True, ignore=ignored, dirs_exist_ok=True)
    if (source / "info" / "sparse-checkout").is_file():
        _copy_file(source / "info" / "sparse-checkout", target / "info" / "sparse-checkout")


def _copy_file(source: Path, target: Path) -> bool:
    """Copy a regular file of the user with its mode, if it exists and is not huge; return whether it was copied."""
    with suppress(OSError):
        if source.is_file() and source.stat().st_size <= _LIMIT_COPY:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            return True
    return False


def _files_below(folder: Path) -> Iterable[Path]:
    """Yield the hooks in a folder, and the content of its subfolders."""
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in sorted(names):
            if not name.endswith(".sample"):
                yield Path(path, name)
