"""Forge access: open the forge of a remote with the user's token.

Only launcher and guardian of a run with a pull request get the variables that contain tokens (`forge_variables`): no
runner, agent or gate does. The clients are imported only here, when a run has a pull request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison import extras
from garrison.config import read_config
from garrison.errors import Refused
from garrison.merge.target import check_target_name, fetch_tip, split_target
from garrison.records.names import quote

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from garrison.backoff import Backoff
    from garrison.config import PullRequestOptions
    from garrison.forge.client import Forge
    from garrison.forge.credentials import Token
    from garrison.forge.model import Location
    from garrison.processes.runtime import Runtime
    from garrison.system.git import Git

_HOSTS = ("GH_HOST", "GITLAB_HOST", "GITEA_HOST")
"""Variables that name the host of a token."""


def forge_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with tokens that launcher and guardian of a run with a pull request get."""
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
    from garrison.forge.credentials import find_token, git_environment

    extras.require("forges", "a pull request")
    location = locate(git, remote, options)
    token = find_token(location, environ)
    return open_forge(location, token, home), git_environment(location, token)


def open_forge(location: Location, token: Token, cache_folder: Path | None = None,
               pauses: Backoff | None = None) -> Forge:
    """Return a client for one repository; with a folder it keeps answers and their ETags there."""
    from garrison.forge.gitea import Gitea
    from garrison.forge.github import GitHub
    from garrison.forge.gitlab import GitLab
    from garrison.forge.model import ForgeKind
    from garrison.forge.transport import PAUSES, EtagCache

    cache = EtagCache(cache_folder / location.host.replace(":", "_"), token) if cache_folder else None
    kinds: dict[ForgeKind, type[Forge]] = {ForgeKind.GITHUB: GitHub, ForgeKind.GITLAB: GitLab, ForgeKind.GITEA: Gitea}
    return kinds[location.kind](location, token, cache, pauses or PAUSES)


# ---- pull request preflight ------------------------------------------------------------------------------------------

# Pre-flight of a run with a pull request: check forge, token, rights and base before anything costs money.

DEFAULT_REMOTE = "origin"


def find_base(git: Git, stated: str | None) -> tuple[str, str]:
    """Return remote and branch of the base: as stated, else the upstream of the checked-out branch."""
    remote, branch = split_target(check_target_name(stated)) if stated else (None, git.current_branch() or "")
    if remote is None and branch:
        remote = git.run("config", "--get", f"branch.{branch}.remote", check=False).out.strip() or DEFAULT_REMOTE
    if not branch or not remote:
        raise Refused("no branch is checked out: name the base of the pull request with --base REMOTE:BRANCH")
    if remote not in git.run("remote").out.split():
        raise Refused(f"{git.root} has no remote {quote(remote)}; `git remote add` it, or name another with "
                      "--base REMOTE:BRANCH")
    return remote, branch


def check_forge(runtime: Runtime, git: Git, stated: str | None) -> tuple[str, str, str]:
    """Return base, remote and the base's commit, fetched; Refused or ForgeError if no pull request could be opened."""
    from garrison.pull_request.client import NETWORK_SECONDS

    remote, branch = find_base(git, stated)
    options = read_config(runtime.home).pull_requests()
    forge, credentials = connect(git, remote, runtime.home, runtime.environ, options)
    rules = forge.read_rules(branch)
    if not rules.can_push:
        raise Refused(f"the token may not push to {forge.location.path} on {forge.location.host}; give it write "
                      "permission for contents and pull requests (docs/pull-requests.md lists the scopes)")
    oid = fetch_tip(git, remote, branch, NETWORK_SECONDS, credentials)
    if not oid:
        raise Refused(f"{remote} has no branch {quote(branch)}; push it, or name another with --base {remote}:BRANCH")
    return branch, remote, oid
