"""A real run with a pull request: the double of a forge over HTTP alongside a `Place`, and people who act at the forge.

Launcher, guardian, runners and gate are real processes; the forge is `doubles.forge_server` with real git.
What people do is done to the forge's state and bare repository; what the run did is read from there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from doubles.forge_server import ForgeServer
from doubles.forge_state import OWN_LOGIN, OWN_TOKEN, Pull, Repository
from support import Place, alive, git

KINDS = ("github", "gitlab", "gitea")
_VARIABLES = {"github": ("GH_ENTERPRISE_TOKEN", "GH_HOST"), "gitlab": ("GITLAB_TOKEN", "GITLAB_HOST"),
              "gitea": ("GITEA_TOKEN", "GITEA_HOST")}
_MARKER = re.compile(r"<!-- garrison[^>]*-->")
PERSON = {"GIT_AUTHOR_NAME": "eve", "GIT_AUTHOR_EMAIL": "e@e", "GIT_COMMITTER_NAME": "eve",
          "GIT_COMMITTER_EMAIL": "e@e"}


class DisturbedServer(ForgeServer):
    """The double, with a function that chooses what befalls each request."""

    disturb: Callable[[str, str], str] | None = None

    def take_fault(self, method: str, path: str) -> str:
        """Return the fault of a request: planted, or as `disturb` says."""
        return super().take_fault(method, path) or (self.disturb(method, path) if self.disturb is not None else "")


class ForgePlace:
    """A place whose repository has a remote on the double."""

    def __init__(self, place: Place, kind: str = "gitea", **options: object) -> None:
        self.place, self.kind, self.path = place, kind, f"o/{kind}"
        self.server = DisturbedServer(place.root / "forge")
        self.repository: Repository = self.server.state.create(self.path)
        self.repository.writers.append("eve")
        self.bare = self.server.state.bare(self.path)
        git(self.bare, "config", "core.logAllRefUpdates", "true")
        git(place.repo, "push", "-q", "--force", str(self.bare), "main")
        git(place.repo, "remote", "add", "origin", self.server.remote(self.path))
        token, host = _VARIABLES[kind]
        place.env |= {token: OWN_TOKEN, host: self.server.host}
        settings = {"forge": kind, "poll": 1, "settle": 0, **options}
        table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        with (place.home / "config.toml").open("a") as file:
            file.write(f"[pull_requests]\n{table}")
        self.forced: set[str] = set()
        """Commits that people forced onto a branch."""
        self.theirs: list[str] = []
        """Commits that people pushed, and that must not be lost."""

    def __enter__(self) -> ForgePlace:
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    # --- the forge

    def branch(self, run: str = "r1") -> str:
        return f"garrison/{run}/integration"

    def head(self, branch: str = "main") -> str:
        return self.server.state.head_of(self.path, branch)

    @property
    def pulls(self) -> list[Pull]:
        return self.repository.pulls

    def is_ready(self) -> bool:
        """Return whether an open pull request is not a draft."""
        return bool(self.pulls) and self.pulls[-1].state == "open" and not self.pulls[-1].draft \
            and not self.pulls[-1].title.upper().startswith(("WIP:", "DRAFT:"))

    # --- people

    def approve(self, author: str = "eve", state: str = "APPROVED") -> None:
        self.server.state.review(self.repository, self.pulls[-1].number, state, author)

    def report(self, state: str, log: str = "", name: str = "ci") -> None:
        """CI reports on the head."""
        self.server.state.report(self.repository, self.head(self.pulls[-1].head), name, state, log[:80], log or None)

    def comment_line(self, text: str, path: str, author: str = "eve") -> int:
        """Someone comments on a line; return the comment's id."""
        state, number = self.server.state, self.pulls[-1].number
        with state.lock:
            review = state.review(self.repository, number, "COMMENTED", author)
            return state.comment_line(self.repository, number, path, 1, text, author, review=review.id).id

    def commit(self, branch: str, name: str, text: str, parent: str = "") -> str:
        """Someone pushes a file onto a branch (from `parent`: forced); '' if another was quicker."""
        old = self.head(branch)
        with tempfile.TemporaryDirectory() as folder:
            env = {"PATH": os.environ["PATH"], **PERSON, "GIT_INDEX_FILE": f"{folder}/index"}

            def run(*words: str, given: str = "") -> str:
                return subprocess.run(["git", "-C", str(self.bare), *words], env=env, input=given, text=True,
                                      capture_output=True, check=True).stdout.strip()

            run("read-tree", parent or old)
            blob = run("hash-object", "-w", "--stdin", given=text)
            run("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
            made = run("commit-tree", run("write-tree"), "-p", parent or old, "-m", f"Add {name}")
            try:
                run("update-ref", f"refs/heads/{branch}", made, old)
            except subprocess.CalledProcessError:
                return ""
        if parent:
            self.forced.add(made)
        else:
            self.theirs.append(made)
        return made

    def kill(self, stem: str, run: str = "r1") -> bool:
        """Kill a process of the run, if it lives now."""
        with suppress(OSError, ValueError, KeyError):
            found = self.place.identity(stem, run)
            if found.get("status") == "active" and alive(found):
                os.kill(found["pid"], signal.SIGKILL)
                return True
        return False

    # --- what was made

    def check(self, run: str = "r1") -> list[str]:
        """Return what was lost or doubled, by forge, git and `garrison verify`."""
        wrong, repository = [], self.repository
        if len(repository.pulls) != 1 or not repository.pulls[0].merged:
            wrong.append(f"pull requests: {[(each.number, each.state, each.merged) for each in repository.pulls]}")
        merges = [line for line in git(self.bare, "log", "--format=%s", "main").splitlines()
                  if line.startswith("Merge #")]
        if len(merges) != 1:
            wrong.append(f"merges on the base: {merges}")
        own = [each.body for each in (*repository.comments, *repository.lines) if each.author == OWN_LOGIN]
        markers = Counter(marker for body in own for marker in set(_MARKER.findall(body)))
        wrong += [f"{times} times: {marker}" for marker, times in markers.items() if times > 1]
        if any(not _MARKER.search(body) for body in own):
            wrong.append("a comment without a marker")
        answered = {each.thread for each in repository.lines if each.author == OWN_LOGIN}
        wrong += [f"the comment {each.id} ({each.body}) was not answered" for each in repository.lines
                  if self.kind != "gitea" and each.author == "eve" and each.thread not in answered]
        wrong += [f"the commit {oid[:10]} that a user pushed is lost" for oid in self.theirs
                  if not self._is_in(oid, "main")]
        seen: list[str] = []
        log = git(self.bare, "reflog", "show", "--format=%H", self.branch(run), check=False).split()
        for new in reversed(log):
            if seen and new not in self.forced and seen[-1] not in self.forced and not self._is_in(seen[-1], new):
                wrong.append(f"a push replaced {seen[-1][:10]} by {new[:10]}")
            seen.append(new)
        twice = [oid for oid, times in Counter(seen).items() if times > 1 and not self.forced]
        wrong += [f"pushed twice: {oid[:10]}" for oid in twice]
        merged = git(self.bare, "log", "--merges", "--first-parent", "--grep=^Merge #", "--format=%T", "main").split()
        tested = self.place.witness.read_text().split() if self.place.witness.exists() else []
        wrong += [f"the merged tree {tree[:10]} was not tested" for tree in merged if tree not in tested]
        verify = self.place.command("verify", run)
        if verify.returncode:
            wrong.append(f"verify: {verify.stdout[-800:]}{verify.stderr[-400:]}")
        return wrong

    def _is_in(self, old: str, new: str) -> bool:
        return subprocess.run(["git", "-C", str(self.bare), "merge-base", "--is-ancestor", old, new],
                              capture_output=True, check=False).returncode == 0


def rework(name: str) -> str:
    """Return the command of a node that commits something new in each attempt."""
    return (f'set -e; echo "{name} $GARRISON_ATTEMPT" > {name}.txt; git add -A; '
            f'git commit -qm "{name} $GARRISON_ATTEMPT" || git diff --quiet HEAD')


def files_with(folder: Path, text: str) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and text.encode() in path.read_bytes():
                found.append(str(path.relative_to(folder)))
    return found
