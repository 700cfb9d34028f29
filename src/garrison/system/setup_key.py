"""When a tree is due to be set up: once, and again when its key changed. One rule for gate slots and nodes' trees.

The key is a hash of the set-up's command and of the lock files in the tree; whoever owns the tree remembers the key of
its last green set-up.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOCK_FILES = ("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "requirements.txt", "pyproject.toml", "setup.py",
              "setup.cfg", "package.json", "package-lock.json", "yarn.lock", "pnpm-lock.yaml", "Cargo.lock", "go.sum",
              "Gemfile.lock", "composer.lock")
"""Files whose change makes set-up run again, where nobody names others."""


def setup_key(command: str, tree: Path, lock_files: Sequence[str] = ()) -> str:
    """The key that a set-up by `command` of `tree`, as it is now, has; `lock_files` are paths below the tree."""
    digest = hashlib.sha256(command.encode())
    for name in lock_files or LOCK_FILES:
        path = tree / name
        if path.is_file():
            digest.update(b"\0" + name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def setup_due(command: str | None, tree: Path, lock_files: Sequence[str], last: str) -> str | None:
    """The key with which set-up is due, None if the `last` green one had it (or there is no set-up)."""
    if not command:
        return None
    key = setup_key(command, tree, lock_files)
    return None if key == last else key
