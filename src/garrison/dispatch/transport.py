"""Transport of commits between the run's repository and a host's clone: git over the user's ssh, always begun at home.

The host needs no way back, and gets no right to write in the run's repository. What is fetched lands under
`refs/garrison/incoming/HOST/RUN/NODE/ATTEMPT-CLAIM`, checked by git's fsck. No ref is read by its name: the
run takes the commit that an accepted result names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.dispatch.incoming import incoming_ref
from garrison.dispatch.job import base_ref, check_commit, left_ref
from garrison.errors import GarrisonError
from garrison.system.git import GitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.dispatch.records import AttemptId, Token
    from garrison.dispatch.ssh import HostAccess
    from garrison.system.git import Git

CLONES = "clones"
"""Folder of a host's home with its clones."""
SECONDS = 600.0
"""Longest transfer."""
_FETCH = {"fetch.fsckObjects": "true", "transfer.fsckObjects": "true", "fetch.recurseSubmodules": "false",
          "protocol.version": "2"}
_PUSH = {"push.recurseSubmodules": "no", "push.followTags": "false"}


class TransferFailed(GarrisonError):
    """git did not bring the commits over; it can be tried again."""


def clone_path(host_home: str, repository: str) -> str:
    return f"{host_home}/{CLONES}/{repository}"


class Transport:
    """Transfers between one repository and its clone on one host."""

    def __init__(self, git: Git, access: HostAccess, host: str, clone: str) -> None:
        self.git, self.access, self.host, self.clone = git, access, host, clone

    def push_base(self, commit: str, id_: AttemptId) -> None:
        """Bring the commit that an attempt begins at to the host; TransferFailed if that was not possible."""
        self._run("push", _PUSH, "--quiet", "--no-verify", self.access.git_url(self.clone),
                  f"+{check_commit(commit)}:{base_ref(id_)}")

    def fetch(self, commit: str, token: Token) -> str:
        """Fetch exactly that commit, and return the ref that keeps it; TransferFailed if that was not possible."""
        ref = incoming_ref(self.host, token)
        if self.git.rev(check_commit(commit)) != commit or self.git.rev(ref) != commit:
            self._run("fetch", _FETCH, "--quiet", "--no-tags", "--no-write-fetch-head", "--force",
                      self.access.git_url(self.clone), f"{commit}:{ref}")
        if self.git.rev(ref) != commit:
            raise TransferFailed(f"{self.host} has sent another commit than {commit[:10]}")
        return ref

    def fetch_left(self, token: Token) -> tuple[str, str]:
        """Fetch what a worker left that was cut off or stopped; return the commit and the ref that keeps it, two empty
        texts if it left nothing."""
        name, url = left_ref(token.id), self.access.git_url(self.clone)
        if not self._run("ls-remote", _FETCH, url, name).strip():
            return "", ""
        ref = incoming_ref(self.host, token)
        self._run("fetch", _FETCH, "--quiet", "--no-tags", "--no-write-fetch-head", "--force", url, f"+{name}:{ref}")
        return self.git.rev(ref) or "", ref

    def _run(self, name: str, settings: Mapping[str, str], *arguments: str) -> str:
        # Settings of this variable are on top of those by number, which make the call neutral.
        packed = " ".join(f"'{key}'='{value}'" for key, value in settings.items())
        try:
            return self.git.run(name, *arguments, timeout=SECONDS, extra={
                **self.access.git_environment(), "GIT_CONFIG_PARAMETERS": packed}).out
        except GitError as error:
            raise TransferFailed(f"{self.host}: {error}") from None
