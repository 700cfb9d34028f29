"""Forge access: open the forge of a remote with the user's token.

Only launcher and guardian of a run with a pull request get the variables that hold tokens (`forge_variables`): no
runner, agent or gate does. The clients are imported here alone, when a run has a pull request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.errors import Refused
from garrison.records.run import LAND_PR

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.config import PullRequestOptions
    from garrison.forge.model import Location
    from garrison.forge.protocol import Forge
    from garrison.records.run import Launch
    from garrison.system.git import Git

_HOSTS = ("GH_HOST", "GITLAB_HOST", "GITEA_HOST")
"""Variables that say which host a token is for."""


def forge_variables(launch: Launch, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with tokens that launcher and guardian of a run with a pull request get."""
    if launch.land != LAND_PR:
        return {}
    from garrison.forge.credentials import token_names

    return {name: environ[name] for name in (*sorted(token_names()), *_HOSTS) if environ.get(name)}


def locate(git: Git, remote: str, options: PullRequestOptions) -> Location:
    """Return the repository on a forge that a remote names; Refused or UsageError if it names none."""
    from garrison.forge.remote import parse_remote

    url = git.run("remote", "get-url", "--push", "--", remote, check=False).out.strip()
    if not url:
        raise Refused(f"{git.root} has no remote {remote}; `git remote add` it, or name another with --base "
                      "REMOTE:BRANCH")
    return parse_remote(url, options.forge)


def connect(git: Git, remote: str, home: Path, environ: Mapping[str, str],
            options: PullRequestOptions) -> tuple[Forge, dict[str, str]]:
    """Return the forge of a remote, and the environment with which git may use it; ForgeError or UsageError."""
    from garrison.forge.connect import open_forge
    from garrison.forge.credentials import find_token, git_environment

    location = locate(git, remote, options)
    token = find_token(location, environ)
    return open_forge(location, token, home), git_environment(location, token)
