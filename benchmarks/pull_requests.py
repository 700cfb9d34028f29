"""What a pull request costs while it waits, and how soon its run continues.

    python benchmarks/pull_requests.py [--seconds 3600] [--poll 30] [--tries 3]

**The hour**: policy, worker, client and git as in a guardian, on the double of each forge over HTTP, wait for a review.
The clock is turned on from look to look, so that every look of the hour happens at its own time and none is left out;
only the answers about permissions, which are kept for ten real minutes, are asked for less often than in a real hour.
Nothing there can call a model but a node that is sent to rework, which the last column counts.

**Reactions**: real runs with `land=pr` on the double, polled every second. From a red check to the next attempt of the
agent, from an approval to the end of the run, and the whole way of a run from its launch.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]

from doubles.forge_server import ForgeServer  # noqa: E402
from doubles.forge_state import OWN_TOKEN  # noqa: E402
from forge_driver import Driver  # noqa: E402
from forge_place import KINDS, ForgePlace, rework  # noqa: E402
from garrison.config import PullRequestOptions  # noqa: E402
from garrison.forge.credentials import Token, git_environment  # noqa: E402
from garrison.forge.remote import parse_remote  # noqa: E402
from garrison.pull_request.access import open_forge  # noqa: E402
from garrison.pull_request.client import PullRequestClient  # noqa: E402
from garrison.system.git import Git  # noqa: E402
from support import Node, Place, checkout_in, git, make_repository, wait_for  # noqa: E402


class HttpDriver(Driver):
    """A run's pull request on the double over HTTP, with a clock that is turned on."""

    def __init__(self, root: Path, server: ForgeServer, kind: str, poll: float) -> None:
        self.location = parse_remote(server.remote(f"o/{kind}"), kind)
        self.cache, self.server = root / "cache", server
        super().__init__(root, options=PullRequestOptions(poll=poll))
        git(self.repo, "push", "-q", "--force", str(server.state.bare(f"o/{kind}")), "main")
        git(self.repo, "remote", "set-url", "origin", server.remote(f"o/{kind}"))

    def _open(self) -> PullRequestClient:
        token = Token(OWN_TOKEN)
        forge = open_forge(self.location, token, self.cache)
        return PullRequestClient(forge, Git(self.repo), self.launch, self.options, lambda *_: "work",
                                 git_environment(self.location, token))


def wait_an_hour(kind: str, seconds: float, poll: float) -> str:
    """Wait for a review; return a row of the table."""
    root = Path(tempfile.mkdtemp(prefix="garrison-bench-"))
    try:
        with ForgeServer(root / "forge") as server:
            server.state.create(f"o/{kind}")
            driver = HttpDriver(root, server, kind, poll)
            driver.settle(4000)
            assert driver.state.pull_request.waits_for() == "review of #1", driver.state.pull_request
            before, looks, reworks, end = len(server.requests), driver.looks, driver.reworks, driver.now + seconds
            while driver.now < end:
                if not driver.turn():
                    driver.now = max(driver.now, driver.worker.due) if not driver.worker.is_busy else driver.now
            asked = server.requests[before:]
            api = [each for each in asked if ".git/" not in each.path]
            unchanged = sum(each.status == 304 for each in api)
            return (f"| {kind} | {driver.looks - looks} | {len(api)} | {unchanged} | {len(api) - unchanged} | "
                    f"{len(asked) - len(api)} | {driver.reworks - reworks} |")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def react(kind: str) -> tuple[float, float, float]:
    """Return the seconds from a red check to the next attempt, from the approval to the end, and of the whole run."""
    root = Path(tempfile.mkdtemp(prefix="garrison-bench-"))
    make_repository(checkout_in(root))
    place = Place(root)
    try:
        with ForgePlace(place, kind) as there:
            began = time.monotonic()
            child = place.launch(place.graph(Node("work", command=rework("work"))), "r1", "--land", "pr", "--base",
                                 "origin:main")
            wait_for("it is ready", there.is_ready)
            red = time.monotonic()
            there.report("failure", "red")
            wait_for("the agent works again", lambda: any(
                each["kind"] == "spawn" and each["data"].get("attempt") == 2 for each in place.journal()))
            resumed = time.monotonic() - red
            wait_for("it is pushed", lambda: "work 2" in git(there.bare, "show", f"{there.branch()}:work.txt"))
            there.report("success")
            wait_for("it waits", lambda: place.journal()[-1]["data"].get("state") == "waiting for review")
            approved = time.monotonic()
            there.approve()
            assert place.finish(child) == 0, place.logs()
            assert there.check() == []
            return resumed, time.monotonic() - approved, time.monotonic() - began
    finally:
        place.kill_rest()
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--poll", type=float, default=30.0)
    parser.add_argument("--tries", type=int, default=3)
    options = parser.parse_args()
    print(f"{options.seconds:g} s of waiting for a review, poll = {options.poll:g}\n")
    print("| forge | looks | API requests | of those 304 | that count | of git | reworks |\n" + "|---" * 7 + "|")
    for kind in KINDS:
        print(wait_an_hour(kind, options.seconds, options.poll), flush=True)
    print(f"\nSeconds, median of {options.tries}, poll = 1\n")
    print("| forge | red check → next attempt | approval → end of the run | launch → end |\n" + "|---" * 4 + "|")
    for kind in KINDS:
        rows = [react(kind) for _ in range(options.tries)]
        print(f"| {kind} | " + " | ".join(f"{statistics.median(column):.2f}" for column in zip(*rows, strict=True))
              + " |", flush=True)


if __name__ == "__main__":
    main()
