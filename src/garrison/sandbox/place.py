"""Places: everything that one confined process tree is given. Pure data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from garrison.values import Value


class Role(StrEnum):
    """Kind of process tree; the kinds have rights of their own."""

    AGENT = "agent"
    VALIDATOR = "validator"
    SETUP = "setup"
    ACCEPTANCE = "acceptance"
    GATE = "gate"
    TOOL = "tool"
    GIT = "git"
    """Filters and merge drivers of the user's that git runs."""


class Mode(StrEnum):
    """Mechanism that enforces the confinement."""

    AUTO = "auto"
    """Bubblewrap, else refuse: a weaker one is chosen by the user, by name."""
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    CONTAINER = "container"
    """A container of an image, run by Podman or Docker."""
    NONE = "none"

    @property
    def mounts(self) -> bool:
        """Return whether what holds a tree shows files at other paths than their own."""
        return self in (Mode.BUBBLEWRAP, Mode.CONTAINER)


class Network(StrEnum):
    """Network of a confined tree."""

    NONE = "none"
    """Its own loopback device only."""
    ALLOW = "allow"
    """Its own loopback device, and garrison's proxy to the allowed hosts."""
    OPEN = "open"
    """The machine's network."""


EXCHANGE = "agent"
"""Folder of an attempt that its command may write; nothing else of garrison's may."""
NETWORK_FOLDER = "network"
"""Folder of an attempt for the proxy's records."""
DEFAULT_MODE = Mode.AUTO
MODE_VARIABLE = "GARRISON_SANDBOX"
"""Variable that states the mode of every tree."""
AUTO_VARIABLE = "GARRISON_SANDBOX_AUTO"
"""Variable that states what `auto` is for a run of an earlier version, whose `auto` was Landlock without bubblewrap."""
DEFAULT_NETWORK = Network.ALLOW
"""Network of a tree that is confined; one that is not has the machine's."""
DEFAULT_HOSTS = "default"
"""Word in `hosts` that stands for the hosts that are allowed without a setting."""


class Rights(Value):
    """Rights of a confined tree, as config.toml states them."""

    mode: Mode = DEFAULT_MODE
    network: Network = DEFAULT_NETWORK
    hosts: tuple[str, ...] = (DEFAULT_HOSTS,)
    """Hosts that `Network.ALLOW` admits."""
    read: tuple[Path, ...] = ()
    """Paths that are shown in addition, read-only."""
    programs: tuple[Path, ...] = ()
    """Programs that the user's own command names, and their installations: shown without what is private in them."""
    write: tuple[Path, ...] = ()
    """Paths that are shown in addition, writable."""
    hide: tuple[Path, ...] = ()
    """Paths that are not shown although something above them is."""
    host_ports: tuple[tuple[str, int], ...] = ()
    """Hosts and ports of this machine's that are reached at its own loopback device."""
    image: str = ""
    """Image of a container, '' for that of the repository's devcontainer.json."""
    devcontainer: tuple[str, ...] = ()
    """Keys of a devcontainer.json that the user allows (`devcontainer.GUARDED`)."""
    workspace: Path | None = None
    """Where a devcontainer.json has the worktree; None: at the path of the checkout."""
    container_env: tuple[tuple[str, str], ...] = ()
    """Variables of a devcontainer.json."""
    container_options: tuple[str, ...] = ()
    """Options for the engine that the user has allowed a devcontainer.json."""
    push: bool = False
    """True if an agent's git keeps the addresses and credential helpers to push with."""


class Mount(Value):
    """A file or folder of the machine that is shown inside at `target`."""

    source: Path
    target: Path
    writable: bool = False


class Place(Value):
    """All that one confined process tree is given."""

    role: Role
    rights: Rights
    worktree: Path
    """Worktree outside."""
    private: Path
    """garrison's folder for this tree. The tree may write its `tmp` and `home` there, and nothing else."""
    mounts: tuple[Mount, ...] = msgspec.field(default=())
    """Git view, exchange folder, agent socket and so on; a later mount lies over an earlier one."""
    worktree_writable: bool = True
    under_home: tuple[Path, ...] = ()
    """What set-up left in its home, which lies under the home inside: writable, and private to this tree."""
    under_worktree: tuple[Path, ...] = ()
    """What set-up made in its worktree, which lies under this one."""
    caches: bool = False
    """True if the user's caches of package managers lie under the home inside as well."""
    under_caches: Path | None = None
    """Folder with what set-up left in those."""
    checkout: Path | None = None
    """Path of the user's checkout, where the worktree stands inside; None: at its own path."""
    subfolder: str = ""
    """Folder of the worktree in which it begins, '' for its top."""
    secret: tuple[Path, ...] = ()
    """Folders that must not be shown by chance: the repository."""
    entry: tuple[str, ...] = ()
    """Words before the command that start it in a network namespace prepared for it (`network.prepare`)."""
    user: int | None = None
    """User and group inside; None: those outside."""
    ports: tuple[int, ...] = ()
    """TCP ports of the machine that it may connect to where it has no network namespace."""

    @property
    def inside(self) -> Path:
        return self.checkout or self.worktree

    @property
    def start(self) -> Path | None:
        """Return where a process begins inside; None for the folder of its caller, which has the same path."""
        return self.inside / self.subfolder if self.checkout or self.subfolder else None

    def translate(self, path: Path) -> Path:
        """Return where a path of the worktree outside is inside; any other path unchanged."""
        if self.checkout is None or not path.is_relative_to(self.worktree):
            return path
        return self.checkout / path.relative_to(self.worktree)

    @property
    def home(self) -> Path:
        return self.private / "home"

    @property
    def tmp(self) -> Path:
        return self.private / "tmp"


# ---- Machine: its abilities to confine processes, as the probe found them. Pure data.


class Abilities(Value):
    """Abilities of this machine to confine this user's processes."""

    bubblewrap: str = ""
    """Path of the program, '' if bubblewrap is missing or does not work."""
    refusal: str = ""
    """Why bubblewrap cannot be used."""
    has_own_proc: bool = True
    """True if a /proc of its own may be mounted; a container may refuse it."""
    can_forbid_namespaces: bool = True
    can_name_host: bool = True
    """False if a container refuses an own host name; the machine's is seen then."""
    landlock: int = 0
    """Landlock's ABI, 0 without Landlock."""
    is_installed: bool = True
    """False if there is no bubblewrap at all."""


def sandbox_folder(worktree: Path) -> Path:
    """Return the private folder of a worktree's processes, alongside it; no node's name has a dot."""
    return worktree.with_name(f".{worktree.name}.sandbox")
