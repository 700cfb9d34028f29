"""Places: everything that a confined process tree gets. Pure data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from garrison.values import Value


class Role(StrEnum):
    """Kind of process tree; each kind has its own rights."""

    AGENT = "agent"
    VALIDATOR = "validator"
    SETUP = "setup"
    ACCEPTANCE = "acceptance"
    GATE = "gate"
    TOOL = "tool"
    GIT = "git"
    """The user's filters and merge drivers that git runs."""


class Mode(StrEnum):
    """Mechanism that enforces the confinement."""

    AUTO = "auto"
    """Bubblewrap, else refuse: the user must choose a weaker one by name."""
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    CONTAINER = "container"
    """A container of an image, run by Podman or Docker."""
    NONE = "none"

    @property
    def mounts(self) -> bool:
        """Return whether the mode can show files at other paths than their own."""
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
"""Folder of an attempt that its command may write to; all others of garrison are closed to it."""
NETWORK_FOLDER = "network"
"""Folder of an attempt for the proxy's records."""
DEFAULT_MODE = Mode.AUTO
MODE_VARIABLE = "GARRISON_SANDBOX"
"""Variable that sets the mode of every tree."""
AUTO_VARIABLE = "GARRISON_SANDBOX_AUTO"
"""Variable that sets the meaning of `auto` for a run of an earlier version, where it was Landlock without
bubblewrap."""
DEFAULT_NETWORK = Network.ALLOW
"""Network of a confined tree; an unconfined one has the machine's."""
DEFAULT_HOSTS = "default"
"""Word in `hosts` for the hosts that are allowed by default."""


class Rights(Value):
    """Rights of a confined tree, from config.toml."""

    mode: Mode = DEFAULT_MODE
    network: Network = DEFAULT_NETWORK
    hosts: tuple[str, ...] = (DEFAULT_HOSTS,)
    """Hosts that `Network.ALLOW` admits."""
    read: tuple[Path, ...] = ()
    """Paths that are shown in addition, read-only."""
    programs: tuple[Path, ...] = ()
    """Programs that the user's own command names, and their installations: shown without private files."""
    write: tuple[Path, ...] = ()
    """Paths that are shown in addition, writable."""
    hide: tuple[Path, ...] = ()
    """Paths that are hidden although a parent is shown."""
    host_ports: tuple[tuple[str, int], ...] = ()
    """Hosts and ports that are reachable through the tree's own loopback device."""
    image: str = ""
    """Image of a container, '' for the image in the repository's devcontainer.json."""
    devcontainer: tuple[str, ...] = ()
    """Keys of a devcontainer.json that the user allows (`devcontainer.GUARDED`)."""
    workspace: Path | None = None
    """Where a devcontainer.json puts the worktree; None: at the path of the checkout."""
    container_env: tuple[tuple[str, str], ...] = ()
    """Variables of a devcontainer.json."""
    container_options: tuple[str, ...] = ()
    """Options for the engine that the user allows a devcontainer.json to set."""
    push: bool = False
    """True if an agent's git keeps push addresses and credential helpers."""


class Mount(Value):
    """A file or folder of the machine that is shown inside at `target`."""

    source: Path
    target: Path
    writable: bool = False


class Place(Value):
    """Everything that a confined process tree gets."""

    role: Role
    rights: Rights
    worktree: Path
    """Worktree outside."""
    private: Path
    """garrison's folder for this tree, which may only write to its `tmp` and `home`."""
    mounts: tuple[Mount, ...] = msgspec.field(default=())
    """Git view, exchange folder, agent socket and so on; a later mount covers an earlier one."""
    worktree_writable: bool = True
    under_home: tuple[Path, ...] = ()
    """What set-up left in its home, a layer under the home inside: writable, and private to this tree."""
    under_worktree: tuple[Path, ...] = ()
    """What set-up created in its worktree, a layer under this one."""
    caches: bool = False
    """True if the user's caches of package managers are also layers under the home inside."""
    under_caches: Path | None = None
    """Folder with what set-up left in these caches."""
    checkout: Path | None = None
    """Path of the user's checkout, where the worktree is inside; None: at its own path."""
    subfolder: str = ""
    """Folder of the worktree where it starts, '' for its top."""
    secret: tuple[Path, ...] = ()
    """Folders that must not be shown accidentally: the repository."""
    entry: tuple[str, ...] = ()
    """Prefix that starts the command in its prepared network namespace (`network.prepare`)."""
    user: int | None = None
    """User and group inside; None: those outside."""
    ports: tuple[int, ...] = ()
    """TCP ports of the machine that it may connect to without a network namespace."""

    @property
    def inside(self) -> Path:
        return self.checkout or self.worktree

    @property
    def start(self) -> Path | None:
        """Return the start folder of a process inside; None for its caller's folder, which has the same path."""
        return self.inside / self.subfolder if self.checkout or self.subfolder else None

    def translate(self, path: Path) -> Path:
        """Convert a path in the worktree to its path inside; return any other path unchanged."""
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
    """True if a new /proc may be mounted; a container may refuse it."""
    can_forbid_namespaces: bool = True
    can_name_host: bool = True
    """False if a container refuses a separate host name; then the machine's is visible."""
    landlock: int = 0
    """Landlock's ABI, 0 without Landlock."""
    is_installed: bool = True
    """False if there is no bubblewrap at all."""


def sandbox_folder(worktree: Path) -> Path:
    """Return the private folder of a worktree's processes, next to it; no node's name has a dot."""
    return worktree.with_name(f".{worktree.name}.sandbox")
