"""The user's git settings in the home inside: without them nothing but the worktree's own repository knows who commits.

Submodules, repositories that tests make, and with Landlock the worktree itself, are not views of garrison's making.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from garrison.sandbox import git_config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAME = ".gitconfig"
_TIMEOUT = 20


def copy_settings(env: Mapping[str, str], user_home: Path, home: Path) -> None:
    """Write what the user's own settings say into a home inside, without secrets; leave a file that is there alone."""
    if os.path.lexists(home / NAME) or not any(os.path.lexists(path) for path in _files(env, user_home)):
        return
    text = git_config.render(git_config.select(git_config.parse(_list(env, user_home)), ("global",)))
    # The home may be the agent's from an earlier command: no link in the file's place is followed.
    with suppress(FileExistsError), (home / NAME).open("xb") as file:
        file.write(text)


def _files(env: Mapping[str, str], user_home: Path) -> tuple[str, str]:
    return f"{user_home}/{NAME}", f"{env.get('XDG_CONFIG_HOME') or f'{user_home}/.config'}/git/config"


def _list(env: Mapping[str, str], user_home: Path) -> str:
    """Return all settings as git lists them outside of any repository; '' if it cannot."""
    own = {name: env[name] for name in ("PATH", "XDG_CONFIG_HOME") if name in env}
    try:
        done = subprocess.run(["git", "config", "--list", "-z", "--show-scope", "--includes"], cwd="/",
                              env={**own, "HOME": str(user_home), "GIT_CONFIG_NOSYSTEM": "1"}, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else ""
