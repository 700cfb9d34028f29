"""Pre-flight of a run with a pull request: forge, token, rights and base are there before anything costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.config import read_config
from garrison.errors import Refused
from garrison.merge.target import check_target_name, split_target
from garrison.processes.forge_access import connect
from garrison.processes.pull_request_client import PullRequestClient
from garrison.records.names import quote

if TYPE_CHECKING:
    from garrison.processes.runtime import Runtime
    from garrison.system.git import Git

DEFAULT_REMOTE = "origin"


def find_base(git: Git, stated: str | None) -> tuple[str, str]:
    """Return remote and branch of the base: as stated, else the upstream of the branch that is checked out."""
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
    remote, branch = find_base(git, stated)
    options = read_config(runtime.home).pull_requests()
    forge, credentials = connect(git, remote, runtime.home, runtime.environ, options)
    rules = forge.read_rules(branch)
    if not rules.can_push:
        raise Refused(f"the token may not push to {forge.location.path} on {forge.location.host}; give it write "
                      "permission for contents and pull requests (docs/pull-requests.md lists the scopes)")
    oid = PullRequestClient.fetch(git, remote, branch, credentials)
    if not oid:
        raise Refused(f"{remote} has no branch {quote(branch)}; push it, or name another with --base {remote}:BRANCH")
    return branch, remote, oid
