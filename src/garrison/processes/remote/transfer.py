"""Transfer commits between the run's repository and a host: `python -P -m garrison.processes.remote.transfer`.

A child of the orchestrator, so that a slow network stops nothing else. It prints nothing, or one line and exits with 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.dispatch.records import AttemptId, Token
from garrison.dispatch.ssh import HostAccess
from garrison.dispatch.transport import TransferFailed, Transport, clone_path
from garrison.errors import GarrisonError
from garrison.records.hosts import read_host
from garrison.system.git import Git

if TYPE_CHECKING:
    from collections.abc import Sequence

PUSH, FETCH, LEFT = "push", "fetch", "left"


def transfer_argv(what: str, home: Path, repo: str, host: str, token: Token, commit: str) -> list[str]:
    return [sys.executable, "-P", "-m", "garrison.processes.remote.transfer", what, "--home", str(home), "--repo", repo,
            "--host", host, "--attempt", str(token.id), "--claim", str(token.claim), "--commit", commit]


def transport_to(home: Path, repo: Path, name: str) -> Transport:
    """Return the transport between a repository and a host; NotFound if the home has no such host."""
    host, git = read_host(home, name), Git(repo, home=home)
    return Transport(git, HostAccess.of(home, host), name, clone_path(host.home, git.key))


def main(argv: Sequence[str] | None = None) -> int:
    """Do one transfer."""
    parser = argparse.ArgumentParser(prog="garrison.processes.remote.transfer")
    parser.add_argument("what", choices=(PUSH, FETCH, LEFT))
    for name in ("--home", "--repo", "--host", "--attempt", "--commit"):
        parser.add_argument(name, required=True)
    parser.add_argument("--claim", type=int, required=True)
    given = parser.parse_args(argv)
    try:
        transport = transport_to(Path(given.home), Path(given.repo), given.host)
        id_ = AttemptId.parse(given.attempt)
        if given.what == PUSH:
            transport.push_base(given.commit, id_)
        elif given.what == LEFT:
            if not transport.fetch_left(Token(id_, given.claim))[0]:
                raise TransferFailed(f"{given.host} has not kept yet what its worker left")
        else:
            transport.fetch(given.commit, Token(id_, given.claim))
    except (GarrisonError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
