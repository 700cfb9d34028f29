"""State of the double of a forge: real bare repositories, and pull requests in one JSON file that survives restarts."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from garrison.values import asdict

T = TypeVar("T")
OWN_TOKEN, OWN_LOGIN = "double-token-of-garrison", "garrison-bot"
_GIT = {
    "GIT_AUTHOR_NAME": "forge",
    "GIT_AUTHOR_EMAIL": "forge@example.com",
    "GIT_COMMITTER_NAME": "forge",
    "GIT_COMMITTER_EMAIL": "forge@example.com",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def data(text: str) -> str:
    """Return a text as `git fast-import` reads it."""
    return f"data {len(text.encode())}\n{text}"


class Problem(Exception):
    """A refusal of the forge: status and its own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass
class Pull:
    number: int
    title: str
    body: str
    head: str
    base: str
    author: str
    draft: bool = False
    state: str = "open"
    merged: bool = False
    merge_commit: str = ""
    last_head: str = ""
    """Its head when it was closed or merged."""
    labels: list[str] = field(default_factory=list)
    auto: str = ""
    """Method of auto-merge, if that is on."""
    hidden: int = 0
    """Lists that will not show it yet."""
    fork: bool = False
    """True if its head is a branch of another repository, which the double does not have: its commits are ours."""


@dataclass
class Issue:
    number: int
    title: str
    body: str
    author: str
    labels: list[str] = field(default_factory=list)
    assignees: list[str] = field(default_factory=list)
    closed: bool = False


@dataclass
class Comment:
    """A comment on an issue or pull request as a whole."""

    id: int
    number: int
    author: str
    body: str


@dataclass
class LineComment(Comment):
    path: str
    line: int
    commit: str
    thread: int
    """Id of the first comment of its thread."""
    side: str = "new"
    review: int = 0
    resolved: bool = False


@dataclass
class Review:
    """A review: APPROVED, CHANGES_REQUESTED, COMMENTED or DISMISSED."""

    id: int
    number: int
    author: str
    state: str
    commit: str
    body: str = ""


@dataclass
class Status:
    """A check of a commit: pending, success or failure. A bare status has no log."""

    id: int
    commit: str
    name: str
    state: str
    summary: str = ""
    log: str | None = None


_ROWS: dict[str, type[Any]] = {"pulls": Pull, "issues": Issue, "comments": Comment, "lines": LineComment,
                               "reviews": Review, "statuses": Status}


@dataclass
class Repository:
    """What the forge knows of one repository."""

    path: str
    next_number: int = 1
    next_id: int = 100
    pulls: list[Pull] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    lines: list[LineComment] = field(default_factory=list)
    reviews: list[Review] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    required: dict[str, list[str]] = field(default_factory=dict)
    """Base → checks that it requires."""
    approvals: dict[str, int] = field(default_factory=dict)
    merge_queue: bool = False
    """True if nothing but the queue merges into its branches; it merges with the next request."""
    writers: list[str] = field(default_factory=lambda: [OWN_LOGIN])
    labels: list[str] = field(default_factory=list)


class ForgeState:
    """All repositories of the double. People act through the methods; the routes do too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self._file = folder / "state.json"
        self.repositories: dict[str, Repository] = {}
        if self._file.exists():
            for body in json.loads(self._file.read_text(encoding="utf-8")):
                rows = {name: [kind(**each) for each in body[name]] for name, kind in _ROWS.items()}
                self.repositories[body["path"]] = Repository(**{**body, **rows})

    def save(self) -> None:
        """Keep everything for the next start."""
        text = json.dumps([asdict(each) for each in self.repositories.values()], indent=1)
        part = self._file.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.replace(self._file)

    def git(self, path: str, *words: str, given: str = "") -> str:
        """Run git in a repository; Problem 500 if it fails."""
        done = subprocess.run(
            ["git", "-C", str(self.bare(path)), *words],
            capture_output=True,
            text=True,
            check=False,
            input=given,
            env={"PATH": os.environ["PATH"], **_GIT},
        )
        if done.returncode:
            raise Problem(500, done.stderr.strip())
        return done.stdout.strip()

    def bare(self, path: str) -> Path:
        return self.folder / "git" / f"{path}.git"

    def create(self, path: str, base: str = "main") -> Repository:
        """Create a repository with one commit on `base`, or return it."""
        with self.lock:
            if path in self.repositories:
                return self.repositories[path]
            bare = self.bare(path)
            bare.mkdir(parents=True)
            self.git(path, "-c", "init.templateDir=", "init", "-q", "--bare", f"--initial-branch={base}")
            with (bare / "config").open("a") as config:
                config.write("[http]\n\treceivepack = true\n")
            self._import(path, base, "First", "first\n")
            self.repositories[path] = made = Repository(path)
            self.save()
            return made

    def commit(self, path: str, branch: str, content: str, parent: str = "") -> str:
        """Commit `content` to file.txt of `branch`, from `parent` (default: the branch, else main); return it."""
        with self.lock:
            before = parent or self.head_of(path, branch) or self.head_of(path, "main")
            return self._import(path, branch, f"Change {branch}", content, before)

    def _import(self, path: str, branch: str, subject: str, content: str, before: str = "") -> str:
        """Commit `content` as the only file of a branch by one call of git; return the commit."""
        lines = (f"commit refs/heads/{branch}", "mark :1", "committer forge <forge@example.com> now", data(subject),
                 *([f"from {before}"] if before else []), "deleteall", "M 100644 inline file.txt", data(content),
                 "get-mark :1", "done\n")
        return self.git(path, "fast-import", "--quiet", "--force", "--date-format=now", "--done",
                        given="\n".join(lines))

    def head_of(self, path: str, branch: str) -> str:
        """Return a branch's commit; empty if there is none."""
        try:
            return self.git(path, "rev-parse", "--verify", "-q", f"refs/heads/{branch}")
        except Problem:
            return ""

    def pull(self, repository: Repository, number: int) -> Pull:
        """Return a pull request; Problem 404."""
        found = next((each for each in repository.pulls if each.number == number), None)
        if found is None:
            raise Problem(404, "Not Found")
        return found

    def pull_head(self, repository: Repository, pull: Pull) -> str:
        return (self.head_of(repository.path, pull.head) if pull.state == "open" else "") or pull.last_head

    def open_pull(self, repository: Repository, head: str, base: str, title: str, body: str, *, draft: bool) -> Pull:
        """Open a pull request; Problem if one is open for these branches."""
        with self.lock:
            if not self.head_of(repository.path, head) or not self.head_of(repository.path, base):
                raise Problem(422, "Validation Failed: head or base does not exist")
            if any(each.head == head and each.base == base and each.state == "open" and not each.fork
                   for each in repository.pulls):
                raise Problem(409, f"A pull request already exists for {head}.")
            pull = Pull(repository.next_number, title, body, head, base, OWN_LOGIN, draft)
            repository.next_number += 1
            repository.pulls.append(pull)
            return pull

    def comment(self, repository: Repository, number: int, body: str, author: str = OWN_LOGIN) -> Comment:
        """Comment on an issue or pull request."""
        return self._add(repository, repository.comments, lambda id_: Comment(id_, number, author, body))

    def comment_line(self, repository: Repository, number: int, path: str, line: int, body: str,
                     author: str = OWN_LOGIN, *, side: str = "new", thread: int = 0, review: int = 0) -> LineComment:
        """Comment on a line; without `thread`, it starts one."""
        commit = self.pull_head(repository, self.pull(repository, number))
        return self._add(repository, repository.lines, lambda id_: LineComment(
            id_, number, author, body, path, line, commit, thread or id_, side, review))

    def answer_line(self, repository: Repository, first: LineComment, body: str) -> LineComment:
        return self.comment_line(repository, first.number, first.path, first.line, body, side=first.side,
                                 thread=first.thread, review=first.review)

    def review(self, repository: Repository, number: int, state: str, author: str = OWN_LOGIN) -> Review:
        """Review the head of a pull request."""
        commit = self.pull_head(repository, self.pull(repository, number))
        return self._add(repository, repository.reviews, lambda id_: Review(id_, number, author, state, commit))

    def report(self, repository: Repository, commit: str, name: str, state: str, summary: str = "",
               log: str | None = None) -> Status:
        return self._add(repository, repository.statuses, lambda id_: Status(id_, commit, name, state, summary, log))

    def _add(self, repository: Repository, rows: list[T], make: Callable[[int], T]) -> T:
        with self.lock:
            row = make(repository.next_id)
            repository.next_id += 1
            rows.append(row)
            self.save()
            return row

    def newest_statuses(self, repository: Repository, commit: str) -> list[Status]:
        """Return the newest status of each name of a commit."""
        newest = {each.name: each for each in repository.statuses if each.commit == commit}
        return list(newest.values())

    def obstacle(self, repository: Repository, pull: Pull, *, later: bool = False) -> str:
        """Return why it cannot be merged now; with `later`, whether it never can be by waiting."""
        if pull.state != "open":
            return "Pull Request is not mergeable: it is closed"
        if pull.draft:
            return "Pull Request is still a draft"
        head, base = self.pull_head(repository, pull), self.head_of(repository.path, pull.base)
        try:
            self.git(repository.path, "merge-tree", "--write-tree", base, head)
        except Problem:
            return "Pull Request has merge conflicts"
        if later:
            return ""
        passed = {each.name for each in self.newest_statuses(repository, head) if each.state == "success"}
        if missing := set(repository.required.get(pull.base, ())) - passed:
            return f'Required status check "{sorted(missing)[0]}" is expected. (protected branch)'
        approved = {each.author for each in repository.reviews
                    if each.number == pull.number and each.state == "APPROVED"}
        if len(approved) < repository.approvals.get(pull.base, 0):
            return "At least 1 approving review is required by reviewers with write access. (protected branch)"
        return ""

    def merge(self, repository: Repository, pull: Pull, method: str, expected: str, *, lie: str = "") -> str:
        """Merge by the rules; return the commit. `lie` is `nothing` (the base stays) or `tree` (another tree)."""
        with self.lock:
            head = self.pull_head(repository, pull)
            if expected and expected != head:
                raise Problem(409, "Head branch was modified. Review and try the merge again.")
            if why := self.obstacle(repository, pull):
                raise Problem(405, why)
            if repository.merge_queue and method != "queue":
                raise Problem(405, "Changes must be made through the merge queue")
            base = self.head_of(repository.path, pull.base)
            tree = self.git(repository.path, "merge-tree", "--write-tree", base, head)
            if lie == "tree":
                blob = self.git(repository.path, "hash-object", "-w", "--stdin", given="not what was tested\n")
                tree = self.git(repository.path, "mktree", given=f"100644 blob {blob}\tfile.txt\n")
            parents = ["-p", base] if method in {"squash", "rebase"} else ["-p", base, "-p", head]
            made = self.git(repository.path, "commit-tree", tree, *parents, "-m", f"Merge #{pull.number}")
            if lie != "nothing":
                self.git(repository.path, "update-ref", f"refs/heads/{pull.base}", made, base)
            pull.state, pull.merged, pull.merge_commit, pull.last_head, pull.auto = "closed", True, made, head, ""
            self.save()
            return made

    def settle(self, repository: Repository) -> None:
        """Merge what auto-merge may merge by now."""
        for pull in repository.pulls:
            if pull.auto and pull.state == "open" and not self.obstacle(repository, pull):
                self.merge(repository, pull, pull.auto, "")
