"""Where state lives and how patient the layers are. The only room that reads the environment for itself.

Everything here is decided from arguments (`environ`, paths), so that a test or a resume by cron sees what it gives.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Timing:
    """How long the layers wait, in seconds; each is set by `GARRISON_<NAME>`."""

    rescan: float = 1.0
    """The slow timer that makes a lost event cost a second."""
    spawn_deadline: float = 30.0
    """From the lease to `active`; later is a failed start."""
    beat_timeout: float = 300.0
    """Silence after which a life is reported stale."""
    orphan_grace: float = 600.0
    """After so long without guardian and launcher a runner begins nothing new."""
    restart_window: float = 600.0
    """Deaths of one name that are older do not count when its restart is decided."""
    healthy_after: float = 60.0
    """A life that lived so long begins its name's backoff anew; a probe that did ends its parking."""
    probe_after: float = 0.0
    """From the parking of a name to its first probe, doubled after each that fails; 0: as long as the window."""
    damage_patience: float = 5.0
    """How long a layer waits for a damaged record to be mended before it gives up, saying which."""
    git_patience: float = 10.0
    """How long the same refusal of git may spoil every turn before a node or an attempt fails for it; a lock passes."""
    sweep_grace: float = 2.0
    """Between TERM and KILL when a life is replaced."""
    rescue_every: float = 300.0
    """Between two snapshots of an agent's uncommitted work."""
    rescue_limit: float = 120.0
    """How long one of them may take; a tree that needs longer is tried less and less often."""
    stop_launcher: float = 60.0
    stop_guardian: float = 45.0
    stop_runner: float = 30.0
    stop_orchestrator: float = 15.0
    """Deadlines of an orderly stop; each layer's is shorter than its parent's."""
    gate_timeout: float = 1800.0
    acceptance_timeout: float = 1800.0
    setup_timeout: float = 1800.0

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Timing:
        """The defaults, overridden by `GARRISON_RESCAN`, `GARRISON_ORPHAN_GRACE` and so on."""
        values = {}
        for field in fields(cls):
            text = environ.get(f"GARRISON_{field.name.upper()}")
            if text is not None:
                values[field.name] = _seconds(field.name, text)
        return cls(**values)


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e7:
        raise UsageError(f"GARRISON_{name.upper()}={text!r} is not a number of seconds above 0")
    return value


def checkout() -> Path | None:
    """The source checkout garrison runs from, if it does."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "scripts").is_dir() else None


def find_home(option: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """The home: `option`, else GARRISON_HOME, else the checkout's state/, else the user's state directory.

    Never the current directory: cron, an agent in a worktree and a person must see the same state.
    """
    environ = os.environ if environ is None else environ
    named = option or environ.get("GARRISON_HOME")
    if named:
        return Path(os.path.abspath(named))  # noqa: PTH100  # resolve() would follow a symlinked home
    source = checkout()
    if source:
        return source / "state"
    return _user_state(environ)


def _user_state(environ: Mapping[str, str]) -> Path:
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "garrison"
    import platformdirs

    return Path(platformdirs.user_state_dir("garrison"))


def homes_list(environ: Mapping[str, str] | None = None) -> Path:
    """The file that lists the homes this user has launched in, one a line."""
    return _user_state(os.environ if environ is None else environ) / "homes"


def trees_root(environ: Mapping[str, str] | None = None) -> Path:
    """Where worktrees and gate slots live: GARRISON_TREES, else the user cache directory's `garrison/`."""
    environ = os.environ if environ is None else environ
    if environ.get("GARRISON_TREES"):
        return Path(os.path.abspath(environ["GARRISON_TREES"]))  # noqa: PTH100
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "garrison"
    import platformdirs

    return Path(platformdirs.user_cache_dir("garrison"))
