"""Directories: the home, worktrees, and the data of this installation.

Everything is computed from arguments (`environ`, paths), so that a test, or a resume by cron, controls the input.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping


def checkout() -> Path | None:
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "scripts").is_dir() else None


def find_data(folder: str, file: str) -> Path:
    """Return the folder `folder` with `file`: the checkout's, else the wheel's; Refused if there is none."""
    from importlib import resources  # needed by few commands

    source = checkout()
    for root in (*([source] if source is not None else []), Path(str(resources.files("garrison")))):
        if (root / folder / file).is_file():
            return root / folder
    raise Refused(f"this installation lacks {folder}; install garrison from a wheel, or work in a checkout")


def find_home(option: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the home: `option`, else GARRISON_HOME, else the checkout's state/, else the user's state directory.

    Never the current directory: cron, an agent in a worktree and the user must see the same state.
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
    """Return the file that lists this user's homes with launches, one per line."""
    return _user_state(os.environ if environ is None else environ) / "homes"


def trees_root(environ: Mapping[str, str] | None = None) -> Path:
    """Return the root of worktrees and gate slots: GARRISON_TREES, else the user cache directory's `garrison/`."""
    environ = os.environ if environ is None else environ
    if environ.get("GARRISON_TREES"):
        return Path(os.path.abspath(environ["GARRISON_TREES"]))  # noqa: PTH100
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "garrison"
    import platformdirs

    return Path(platformdirs.user_cache_dir("garrison"))
