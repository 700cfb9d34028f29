"""Storm on pull requests: kill the guardian at its requests, fail them, lose answers, while people act.

    python -m tests.forge_storm --faults 500 [--seeds N..]

Every story goes from the push over a red check or a comment to the merge, with faults at random requests; the checker
then compares what was made at the forge with what may have been made.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

sys.path[:0] = [str(Path(__file__).parent)]

from forge_driver import BRANCH, Driver, commit  # noqa: E402
from forge_memory import Killed, approve  # noqa: E402
from garrison.config import MergeRule, PullRequestOptions  # noqa: E402
from garrison.forge import model  # noqa: E402
from garrison.forge.model import CheckState, ReviewVerdict  # noqa: E402
from garrison.system import failpoint  # noqa: E402
from garrison.values import replace  # noqa: E402
from storm import Trial, make_parser, play_all  # noqa: E402
from support import git  # noqa: E402

KINDS = ("before", "after", "502", "lost", "limited")
CHANCE = 0.07
"""Part of the requests that meet a fault."""


class Story:
    """One run with its faults."""

    def __init__(self, seed: int, root: Path) -> None:
        self.random = random.Random(seed)
        self.did: Counter[str] = Counter()
        self.theirs: list[str] = []
        rule = self.random.choice((MergeRule.FORGE, MergeRule.GARRISON))
        self.driver = Driver(root, self.fault, PullRequestOptions(rule, poll=1.0))

    def fault(self, name: str) -> str:
        """Return the fault of a request, if it meets one."""
        if self.random.random() > CHANCE:
            return ""
        kind = self.random.choice(KINDS)
        self.did[f"{kind} {name}"] += 1
        return kind

    def at_git(self, name: str) -> None:
        """Kill the guardian before or after a request of git's."""
        if name.startswith("forge:") and self.random.random() < CHANCE:
            self.did[f"kill {name}"] += 1
            raise Killed

    def people(self) -> None:
        """Someone does something at the forge."""
        driver, world = self.driver, self.driver.world
        head = world.branch(BRANCH)
        act = self.random.choice(("check", "comment", "stranger", "push", "base", "edit", "delete", "dismiss", "green"))
        self.did[f"people: {act}"] += 1
        if act == "check" and head:
            world.checks[head] = [model.Check("ci", head, CheckState.FAILED, "red")]
        elif act == "green" and head:
            world.checks[head] = [model.Check("ci", head, CheckState.PASSED)]
        elif act in ("comment", "stranger") and len(world.lines) < 6:
            author = "eve" if act == "comment" else "mallory"
            number = f"c{len(world.lines)}{self.random.randrange(1000)}"
            world.lines.append(model.LineComment(number, f"t{number}", author, "why?", "work.txt", 1))
        elif act in ("push", "base"):
            branch = BRANCH if act == "push" and head else "main"
            self.theirs.append(self._commit(branch))
        elif act == "edit" and world.pulls:
            world.change(1, title=f"Edited {self.random.randrange(9)}", body=f"Mine.\n{world.pulls[0].body}")
        elif act == "delete" and world.lines:
            world.lines.pop(self.random.randrange(len(world.lines)))
        elif act == "dismiss" and world.reviews:
            world.reviews[-1] = replace(world.reviews[-1], verdict=ReviewVerdict.DISMISSED)
        driver.now += 1000

    def _commit(self, branch: str) -> str:
        """Someone commits onto a branch at the forge."""
        bare, name = self.driver.bare, f"theirs-{len(self.theirs)}.txt"
        there = bare.parent / f"clone-{len(self.theirs)}"
        git(bare.parent, "clone", "-q", "-b", branch, str(bare), str(there))
        git(there, "config", "user.name", "eve")
        git(there, "config", "user.email", "e@e")
        made = commit(there, name, "theirs\n")
        git(there, "push", "-q", "origin", branch)
        return made

    def play(self) -> list[str]:
        """Play the story; return what is wrong at its end."""
        with mock.patch.object(failpoint, "here", self.at_git):
            self._settle()
            for _ in range(self.random.randrange(1, 4)):
                if self.driver.state.landing.status in ("landed", "failed"):
                    break
                self.people()
                self._settle()
        with mock.patch.object(self, "fault", lambda _: ""), mock.patch.object(self.driver, "fault", lambda _: ""):
            self.driver.begin()
            self._finish()
        return self.check()

    def _settle(self) -> None:
        while True:
            try:
                self.driver.settle(4000)
            except Killed:
                self.driver.kill()
            else:
                return

    def _finish(self) -> None:
        """People mend what is theirs to mend, and approve."""
        world = self.driver.world
        for _ in range(4):
            head = world.branch(BRANCH)
            world.checks[head] = [model.Check("ci", head, CheckState.PASSED)]
            approve(world)
            self.driver.now += 1000
            self.driver.settle(4000)
            if self.driver.state.landing.status in ("landed", "failed"):
                return

    def check(self) -> list[str]:
        """Return what was lost or doubled."""
        driver, world, wrong = self.driver, self.driver.world, []
        wrong += [f"{what} was made {times} times" for what, times in Counter(world.made).items() if times > 1]
        merges = sum(kind == "merge" for kind, _ in world.made)
        if merges != 1 or len(world.pulls) != 1:
            wrong.append(f"{len(world.pulls)} pull requests, {merges} merges: {driver.state.pull_request}")
        if driver.state.landing.status != "landed":
            wrong.append(f"it did not land: {driver.state.landing} {driver.state.pull_request}")
            return wrong
        main = world.branch("main")
        tree = git(driver.bare, "rev-parse", f"{driver.state.landing.commit}^{{tree}}")
        if tree not in driver.tested.values():
            wrong.append("the merged tree was not tested")
        for oid in self.theirs:
            if git(driver.bare, "merge-base", oid, main) != oid:
                wrong.append(f"the commit {oid} that somebody pushed is lost")
        unanswered = [line.id for line in world.lines if line.author == "eve" and not any(
            each.author == "garrison" and each.thread == line.thread for each in world.lines)
            and line.id in driver.state.pull_request.taken]
        if unanswered:
            wrong.append(f"comments without an answer: {unanswered}")
        return wrong


def count_faults(did: Counter[str]) -> int:
    """Return how many faults there were; what people did is none."""
    return sum(times for what, times in did.items() if not what.startswith("people: "))


def tell_stories(prog: str, about: str | None, begin: Callable[[int, Path], Trial]) -> int:
    """Tell stories of growing seeds until enough faults have happened."""
    parser = make_parser(prog, about, "1..")
    parser.add_argument("--faults", type=int, default=500)
    options = parser.parse_args()
    return play_all(prog, options.seeds, begin, keep=options.keep,
                    enough=lambda did: count_faults(did) >= options.faults)


if __name__ == "__main__":
    raise SystemExit(tell_stories("python -m tests.forge_storm", __doc__, Story))
