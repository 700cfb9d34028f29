"""Wait for another task of the same run: until it has started, or until it has landed.

What another agent does is seen in the repository: garrison gives each task a branch, and the target gets one merge
commit for each that lands. In the sandbox an agent has a git directory of its own, in which nothing of this appears; so
the demonstration shows its agents the repository's, read-only (GARRISON_DEMO_NEWS). A wait is bounded; an agent that
waits in vain reports that and continues, since nothing that follows depends on the meeting.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

OPTIONS = {
    "--until-begun": ("refs/heads/garrison/{run}/{node}", "has begun"),
    "--until-landed": ("main^{{/Garrison-Node: {node}}}", "has landed"),
}
"""Option → what git can resolve from then on, and in words."""
PATIENCE = 60.0
"""Seconds after which a wait is given up."""


def wait(agent: str, arguments: Sequence[str]) -> bool:
    """Wait as `--until-begun NODE` or `--until-landed NODE` says; False after a vain wait. Alone, there is no wait."""
    run = os.environ.get("GARRISON_RUN")
    if not arguments or not run:
        return True
    option, node = arguments
    revision, words = OPTIONS[option]
    revision = revision.format(run=run, node=node)
    if known(revision):
        return True
    print(f"{agent}: waiting until {node} {words}", flush=True)
    deadline = time.monotonic() + float(os.environ.get("CREW_PATIENCE", PATIENCE))
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if known(revision):
            print(f"{agent}: {node} {words}", flush=True)
            return True
    print(f"{agent}: not seen in time that {node} {words}; going on without", flush=True)
    return False


def known(revision: str) -> bool:
    """Whether git can resolve it in the repository."""
    news = os.environ.get("GARRISON_DEMO_NEWS")
    command = ["git", *([f"--git-dir={news}"] if news else []), "rev-parse", "--quiet", "--verify", revision]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
