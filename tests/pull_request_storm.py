"""Storm on pull requests with a real guardian: processes are killed at their requests to a forge over HTTP, requests
fail or lose their answers, and people comment, push, force, edit and close in between.

    python -m tests.pull_request_storm --faults 500 [--seeds N..]

Every story is a run with `land=pr`, from its launch to the merge, on the double of GitHub, GitLab or Gitea in turn.
Faults end with the last act of people, who then make everything green and approve: a merge must follow.
`ForgePlace.check` judges by the forge's state, git and `garrison verify`.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

from doubles.forge_state import OWN_LOGIN  # noqa: E402
from forge_place import KINDS, ForgePlace, rework  # noqa: E402
from forge_storm import count_faults, tell_stories  # noqa: E402
from storm import TIMING  # noqa: E402
from support import PROGRAM, Node, Place, checkout_in, git, make_repository  # noqa: E402

CHANCE = 0.2
"""Part of the requests that meet a fault."""
FAULTS = ("kill-before", "kill-before", "kill-after", "kill-after", "502-before", "502-after", "drop-before",
          "drop-after", "not-json", "unlisted", "kill-runner", "secondary-limit", "403-scope", "401", "moved")
LATE = ("stale", "stale", "reversed", "repeated")
"""Faults of reads of which the client learns nothing."""
GIT_FAULTS = ("kill-before", "kill-after", "502-before", "drop-before", "drop-after", "push-rejected")
RESUMES = 12
PATIENCE = 150.0
"""Seconds after the last fault within which a run must have ended."""


class Story:
    """One run with its faults."""

    def __init__(self, seed: int, root: Path, most: int = 40) -> None:
        self.dice, self.most = random.Random(seed), most
        make_repository(checkout_in(root))
        self.place = Place(root)
        self.place.env |= TIMING
        rule = self.dice.choice(("forge", "garrison", "auto"))
        self.there = ForgePlace(self.place, KINDS[seed % len(KINDS)], merge=rule)
        if rule == "auto":
            self.there.repository.required["main"], self.there.repository.approvals["main"] = ["ci"], 1
        self.did: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.is_calm = False
        self.there.server.disturb = self.disturb

    def disturb(self, method: str, path: str) -> str:
        """Choose what befalls a request; called when it arrives."""
        with self.lock:
            if self.is_calm or count_faults(self.did) >= self.most or self.dice.random() > CHANCE:
                return ""
            faults = GIT_FAULTS if ".git/" in path else FAULTS + LATE if method == "GET" else FAULTS
            kind = self.dice.choice(faults)
            name, _, when = kind.partition("-")
            if name == "kill" and not self.there.kill("runner-work" if when == "runner" else "guardian-crew"):
                return ""
            what = "git" if ".git/" in path else "write" if method != "GET" else "read"
            self.did[f"{kind} {what}"] += 1
            return "drop-before" if kind == "kill-before" else "" if name == "kill" else kind

    def act(self) -> None:
        """Someone does something at the forge."""
        there, dice = self.there, self.dice
        branch, number = there.branch(), self.did.total() - count_faults(self.did)
        what = dice.choice(("red", "comment", "stranger", "push", "base", "edit", "close", "force", "dismiss", "delete",
                            "draft", "retarget", "uncomment", "approve"))
        if not there.is_ready():
            what = "base"
        self.did[f"people: {what}"] += 1
        match what:
            case "red":
                there.report("failure", f"E   red {number}")
            case "comment" | "stranger":
                there.comment_line(f"why {number}?", "work.txt", "eve" if what == "comment" else "mallory")
            case "push" | "base":
                there.commit(branch if what == "push" else "main", f"theirs-{number}.txt", "theirs\n")
            case "edit":
                there.pulls[-1].body = f"Mine {number}.\n{there.pulls[-1].body}"
            case "dismiss":
                there.approve(state="DISMISSED")
            case "approve":
                there.report("success")
                there.approve()
            case "uncomment":
                with there.server.state.lock:
                    own = [each for each in there.repository.lines if each.author == OWN_LOGIN]
                    there.repository.lines[:] = own
            case "force":
                self.force(branch)
            case _:
                self.undo(what, branch)

    def undo(self, what: str, branch: str) -> None:
        """Someone closes it, removes its branch, makes it a draft or gives it another base; then undoes that."""
        there, pull = self.there, self.there.pulls[-1]
        before, title = there.head(branch), pull.title
        if what == "close":
            pull.last_head, pull.state = before, "closed"
        elif what == "delete":
            git(there.bare, "update-ref", "-d", f"refs/heads/{branch}")
        elif what == "draft":
            prefix = {"github": "", "gitlab": "Draft: ", "gitea": "WIP: "}[there.kind]
            pull.title, pull.draft = f"{prefix}{title}", True
        else:
            git(there.bare, "branch", "--force", "next", "main")
            pull.base = "next"
        time.sleep(self.dice.uniform(0, 3))
        if what == "close":
            pull.state = "open"
        elif what == "delete" and not there.head(branch):
            git(there.bare, "update-ref", f"refs/heads/{branch}", before, check=False)
        elif what == "draft":
            pull.title, pull.draft = title, False
        elif what == "retarget" and not pull.merged:
            pull.base = "main"

    def force(self, branch: str) -> None:
        """Someone forces another commit onto the branch, and a while later what was there before."""
        there = self.there
        before = there.head(branch)
        made = there.commit(branch, "forced.txt", "forced\n", parent=there.head())
        time.sleep(self.dice.uniform(0, 3))
        if made and there.head(branch) == made:
            there.forced.add(before)
            git(there.bare, "update-ref", f"refs/heads/{branch}", before, made, check=False)

    def play(self) -> list[str]:
        """Play the story; return what is wrong at its end."""
        with self.there:
            try:
                return self._play()
            finally:
                self.is_calm = True
                self.place.kill_rest()

    def _play(self) -> list[str]:
        graph = self.place.graph(Node("work", command=rework("work")), Node("more", command=rework("more")))
        self.is_calm = True  # the pre-flight runs alongside the user, who reads what it says
        self.child = self.place.launch(graph, "r1", "--land", "pr", "--base", "origin:main", "--max-rework", "9",
                                       "--max-respawn", "99")
        self.resumes = 0
        if not self._wait(lambda: bool(self.place.journal())):
            return [f"it did not begin: {self.place.logs()}"]
        self.is_calm = False
        self._wait(self.there.is_ready)
        for _ in range(self.dice.randrange(2, 6)):
            if self.place.status() == "done":
                break
            self.act()
            time.sleep(self.dice.uniform(0.5, 3))
        self.is_calm = True
        done = self._wait(self._is_merged)
        self._wait(lambda: self.child.poll() is not None)
        wrong = [] if done and self.child.returncode == 0 else [
            f"it did not land (exit {self.child.returncode}): {self.place.command('status', 'r1').stdout[-900:]}"]
        return wrong + self.there.check()

    def _is_merged(self) -> bool:
        """People make everything green, approve, and repeat that for each new head."""
        there = self.there
        if there.is_ready():
            head = there.head(there.pulls[-1].head)
            if head and not any(each.commit == head and each.state == "success" and each.name == "ci"
                                for each in there.repository.statuses):
                there.report("success")
            if not any(each.commit == head and each.state == "APPROVED" for each in there.repository.reviews):
                there.approve()
        return bool(there.pulls) and there.pulls[-1].merged

    def _wait(self, condition: object) -> bool:
        """Wait for something, resuming what gives up; return whether it came."""
        until, synced = time.monotonic() + PATIENCE, time.monotonic()
        while time.monotonic() < until:
            if condition():
                return True
            if self.child.poll() is not None and self.place.journal():
                if self.resumes >= RESUMES or self.child.returncode == 0:
                    return bool(condition())
                self.resumes += 1
                self.child = self.place.resume()
            if time.monotonic() - synced > 5:
                synced = time.monotonic()
                subprocess.run([*PROGRAM, "pr", "sync", "r1"],
                               env=self.place.env, capture_output=True, check=False, timeout=60)
            time.sleep(0.1)
        return False


if __name__ == "__main__":
    raise SystemExit(tell_stories("python -m tests.pull_request_storm", __doc__, Story))
