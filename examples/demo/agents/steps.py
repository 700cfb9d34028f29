"""How every agent of the crew works: a list of steps, each applied to files and committed.

An attempt that begins with conflict markers resolves them first (conflicts.py); one that is to meet another task waits
at its end (meeting.py).

A killed agent is simply started again. That is safe because a step is decided by what the files say (`apply` of a
finished step changes nothing), a file is replaced atomically, and a step whose files are already committed makes no
commit. The agents share no other state.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conflicts import conflicted, is_merging, targets_side
from meeting import wait

SCRATCH = ".{}.crew-tmp"


class CannotApply(Exception):
    """The project does not look as this agent expects; nothing was changed by the failing change."""


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which occurs exactly once, by `new`; done when `new` is there."""

    path: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The text after the edit."""
        if self.new in text:
            return text
        if text.count(self.old) != 1:
            raise CannotApply(f"{self.path}: expected exactly once: {self.old.strip().splitlines()[0]!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Create:
    """A new file; done when it holds this text."""

    path: str
    text: str

    def apply(self, _text: str) -> str:
        """The text of the new file."""
        return self.text


@dataclass(frozen=True)
class Rewrite:
    """Run a codemod over a file; the codemod must leave its own output unchanged."""

    path: str
    codemod: Callable[[str], str]

    def apply(self, text: str) -> str:
        """The text after the codemod."""
        return self.codemod(text)


@dataclass(frozen=True)
class Step:
    """Changes that make one commit."""

    title: str
    changes: Sequence[Edit | Create | Rewrite]


def run(agent: str, steps: Sequence[Step], arguments: Sequence[str] = ()) -> int:
    """Work through all steps in the current directory; the exit code is 0 when everything is committed.

    `arguments` name the task to wait for at the end (meeting.py), if any.
    """
    if not Path("ledger/amounts.py").is_file():
        print(f"{agent}: start me in the root of the ledger project", file=sys.stderr)
        return 2
    greet(agent)
    for left_over in Path().rglob(SCRATCH.format("*")):
        left_over.unlink()
    try:
        resolve(agent, steps)
        for number, step in enumerate(steps, start=1):
            work(agent, f"step {number} of {len(steps)}", step)
    except CannotApply as error:
        print(f"{agent}: {error}", file=sys.stderr)
        return 1
    wait(agent, arguments)
    print(f"{agent}: finished, {len(steps)} steps", flush=True)
    return 0


def greet(agent: str) -> None:
    """Print the agent's name, and what a successor is told; only the files decide."""
    node, attempt = os.environ.get("GARRISON_NODE", agent), os.environ.get("GARRISON_ATTEMPT", "1")
    print(f"{agent}: node {node}, attempt {attempt}", flush=True)
    prompt = os.environ.get("GARRISON_PROMPT_FILE")
    if prompt and Path(prompt).is_file():
        told = re.search(r"(REWORK:|RESUMPTION CONTEXT).*", Path(prompt).read_text(encoding="utf-8"), re.DOTALL)
        if told:
            print(f"{agent}: I am told\n{told[0]}".rstrip(), flush=True)


def resolve(agent: str, steps: Sequence[Step]) -> None:
    """Finish a merge that was left to us: the target's side of each conflict, with the own changes made again."""
    if not is_merging():
        return
    marked = conflicted()
    for path in marked:
        change_file(Rewrite(path, targets_side))
    for change in [change for step in steps for change in step.changes if change.path in marked]:
        change_file(change)
    if marked:
        pause()
        git("add", "--", *marked)
    git("commit", "--quiet", "-m", f"Merge the target; {agent} resolves {', '.join(marked) or 'nothing'}")
    print(f"{agent}: merged the target, resolved {', '.join(marked) or 'nothing'}", flush=True)


def work(agent: str, which: str, step: Step) -> None:
    """Apply, then commit, each with a pause before it if there is something to do."""
    changed = [change_file(change) for change in step.changes]
    if any(changed):
        pause()
    if commit(step):
        print(f"{agent}: {which} committed: {step.title}", flush=True)
        leave_note(f"{agent}: {which} is committed: {step.title}")
        pause()
    else:
        print(f"{agent}: {which} was there: {step.title}", flush=True)


def change_file(change: Edit | Create | Rewrite) -> bool:
    """Bring one file to its new text, at once or not at all; False if it has it already."""
    path = Path(change.path)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = change.apply(before)
    if after == before and path.exists():
        return False
    scratch = path.with_name(SCRATCH.format(path.name))
    scratch.write_text(after, encoding="utf-8")
    scratch.replace(path)
    return True


def commit(step: Step) -> bool:
    """Commit the files of a step; False if they hold nothing new."""
    paths = [change.path for change in step.changes]
    git("add", "--", *paths)
    if git("diff", "--cached", "--quiet", "--", *paths, check=False) == 0:
        return False
    git("commit", "--quiet", "-m", step.title, "--", *paths)
    return True


def git(*arguments: str, check: bool = True, patience: float = 10.0) -> int:
    """Run git. A git of a killed predecessor may still be at work for a moment, so a taken index lock is waited for."""
    command = ["git", "-c", "commit.gpgsign=false", "-c", "gc.auto=0", *arguments]
    deadline = time.monotonic() + patience
    while True:
        done = subprocess.run(command, env=committer(), stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0 or not check:
            return done.returncode
        if "index.lock" not in done.stderr or time.monotonic() > deadline:
            raise CannotApply(f"git {arguments[0]}: {done.stderr.strip()}")
        time.sleep(0.05)


def committer() -> dict[str, str]:
    """The environment with the crew's name wherever the user has given git none."""
    environment = dict(os.environ)
    known = subprocess.run(["git", "config", "user.email"], stdout=subprocess.DEVNULL, check=False).returncode == 0
    if not known:
        for role in ("AUTHOR", "COMMITTER"):
            environment.setdefault(f"GIT_{role}_NAME", "crew")
            environment.setdefault(f"GIT_{role}_EMAIL", "crew@localhost")
    return environment


def leave_note(line: str) -> None:
    """One line for a successor, if somebody wants notes."""
    notes = os.environ.get("GARRISON_NOTES_FILE")
    if notes:
        with Path(notes).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def pause() -> None:
    """Take half of the pace, so that there is time to be killed in."""
    time.sleep(float(os.environ.get("CREW_PACE", "0.4")) / 2)
