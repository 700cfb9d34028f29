"""Transport of commits between the run's repository and a host's clone: git over the user's ssh, always begun at home.

The host needs no way back, and gets no right to write in the run's repository. What is fetched lands under
`refs/garrison/incoming/HOST/RUN/NODE/ATTEMPT-CLAIM`, checked by git's fsck; nobody reads such a ref by its name: the
run takes the commit that an accepted result names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.dispatch.incoming import incoming_ref
from garrison.dispatch.job import base_ref, check_commit
from garrison.errors import GarrisonError
from garrison.system.git import GitError

if TYPE_CHECKING:
    from garrison.dispatch.records import AttemptId, Token
    from garrison.dispatch.ssh import HostAccess
    from garrison.system.git import Git

CLONES = "clones"
"""Folder of a host's home with its clones."""
SECONDS = 600.0
"""Longest transfer."""
_UNCHECKED = ("protocol.file.allow=always", "protocol.ssh.allow=always")
_FETCH = ("fetch.fsckObjects=true", "transfer.fsckObjects=true", "fetch.recurseSubmodules=false", "protocol.version=2",
          *_UNCHECKED)
_PUSH = ("push.recurseSubmodules=no", "push.followTags=false", *_UNCHECKED)


class TransferFailed(GarrisonError):
    """git did not bring the commits over; it can be tried again."""


def clone_path(host_home: str, repository: str) -> str:
    """Return the path of a host's clone of a repository."""
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

    def _run(self, name: str, settings: tuple[str, ...], *arguments: str) -> None:
        options = {f"GIT_CONFIG_KEY_{number}": setting.partition("=")[0] for number, setting in enumerate(settings)}
        options |= {f"GIT_CONFIG_VALUE_{number}": setting.partition("=")[2] for number, setting in enumerate(settings)}
        # Settings by GIT_CONFIG_PARAMETERS are on top of those by number, which make the call neutral.
        packed = " ".join(f"'{key}'='{options[f'GIT_CONFIG_VALUE_{number}']}'" for number, key in enumerate(
            setting.partition("=")[0] for setting in settings))
        try:
            self.git.run(name, *arguments, timeout=SECONDS,
                         extra={**self.access.git_environment(), "GIT_CONFIG_PARAMETERS": packed})
        except GitError as error:
            raise TransferFailed(f"git {name} with {self.host}: {error}") from None
