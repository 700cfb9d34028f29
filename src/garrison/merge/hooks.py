"""The user's reference-transaction hook at a landing: it runs only where a person asked for it, and as it was then.

`--with-hooks` records a hash of the hook, with that of the hook it calls if garrison's guard is in its place. A hook
that was changed since is not run, and nothing lands until it is as it was, or is recorded again.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.merge.guard import NAME, configured_hooks_path

if TYPE_CHECKING:
    from garrison.system.git import Git


def find_hook(git: Git) -> Path | None:
    """Return the reference-transaction hook that git would run, None if there is none."""
    configured = configured_hooks_path(git)
    path = (git.root / configured if configured else git.common / "hooks") / NAME
    return path if os.access(path, os.X_OK) else None


def digest(git: Git) -> str:
    """Return a hash of the hook and of the one that the guard calls; '' if git would run none."""
    hook = find_hook(git)
    if hook is None:
        return ""
    before = hook.with_name(".before")
    called = [hook.with_name(f"{NAME}.before-garrison")]
    if before.is_file():
        called.append(git.root / before.read_text(errors="replace").strip() / NAME)
    content = hashlib.sha256(hook.read_bytes())
    for path in called:
        if path.is_file():
            content.update(path.read_bytes())
    return content.hexdigest()[:16]


def record(git: Git) -> str:
    """Return the hash of the hook that a person asks for; Refused if there is none."""
    found = digest(git)
    if not found:
        raise Refused(f"--with-hooks: {git.root} has no executable {NAME} hook; leave the option out")
    return found


def explain_change(git: Git, recorded: str) -> str:
    """Return why the recorded hook cannot run at a landing, '' if it can."""
    if digest(git) == recorded:
        return ""
    return (f"the {NAME} hook is not the one that was recorded with --with-hooks, so it is not run and nothing lands; "
            "restore it, or record it as it is: garrison merge-queue config --with-hooks")
