"""An independent checker of a merge queue: compares its journal, the refs, the history and what users were shown.

Nothing of the queue is imported: the journal is read here from its bytes, git is asked by subprocess, and processes
come from /proc, as in the checker of whole runs.
`examine` returns one line a finding, its class first (`journal`, `lost`, `doubled`, `untested`, `history`,
`told`, `turn`, `pin`, `left`); an empty list means that nothing was lost, landed twice, landed untested, landed in
another's turn, or recorded otherwise than it happened. test_queue_checker.py shows that each forgery is caught.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from garrison.testing.checker.promises import living_processes
from queue_journal import FINAL, Record, fold, read_journal

PROXY_SECONDS = 15.0
"""Seconds in which a proxy notices that no one uses it any more, on a loaded machine."""
OF_PROXY = {"layers", "proxy.lock"}
"""What the proxy of a gate without a run leaves alongside its jobs."""
PINS = "refs/garrison/mq/"
TRAILERS = "%(trailers:key=Merge-Queue-Entry,valueonly,separator=%x2C)"


def git(path: Path, *words: str, check: bool = True) -> str:
    """Run one git command and return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(["git", *words], cwd=path, env=env, capture_output=True, check=False,
                          stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, (words, done.stderr.decode(errors="replace"))
    return done.stdout.decode(errors="surrogateescape").strip("\n")


@dataclass(frozen=True)
class Commit:
    """One commit of the target's first-parent history."""

    oid: str
    tree: str
    parents: tuple[str, ...]
    names: tuple[str, ...]


@dataclass
class Case:
    """The facts to compare. `start` is the target's value before the queue started."""

    repo: Path
    home: Path
    start: str
    target: str = "main"
    upstream: Path | None = None
    """The remote's repository, if the target is there (`origin:main`)."""
    foreign: Collection[str] = ()
    """Values that someone else gave the target, known to the test."""
    told: Mapping[str, str] | None = None
    """Entry → status, as users were shown."""
    enqueued: Collection[str] = ()
    """Entries whose enqueue returned."""
    witness: Path | None = None
    """File in which the gate itself wrote each tree that passed."""
    reds: Path | None = None
    """File in which the gate itself wrote each tree that failed."""
    resting: bool = True
    """Whether the queue was worked until it was idle, so that nothing may be in progress or left."""
    edits: Mapping[str, str] | None = field(default_factory=dict)
    """Checkout of the target → expected `git status --porcelain` (default: empty); None: not checked."""
    trees: Collection[str] = ()
    """Worktrees of the test's own."""
    slots: int = 8
    """Gate slots that may exist."""
    logged: bool = True
    """Whether the target's reflog is complete (`git reflog expire` shortens it)."""


def examine(case: Case) -> list[str]:
    """Return all findings, empty if all is well."""
    return _Checker(case).findings()


def judge(case: Case) -> None:
    """Raise AssertionError with all findings, if there is one."""
    found = examine(case)
    assert not found, "\n".join(found)


# --------------------------------------------------------------------------------------------------------- the checker


class _Checker:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.common = (case.repo / git(case.repo, "rev-parse", "--git-common-dir")).resolve()
        self.at = case.upstream or case.repo
        self.ref = f"refs/heads/{case.target.rpartition(':')[2]}"
        folders = list((case.home / "merge-queue").glob(f"*/{quote(case.target, safe='')}"))
        self.folder = folders[0] if folders else case.home / "none"
        self.records, self.wrong = read_journal(self.folder / "journal.jsonl")
        self.status, wrong = fold(self.records)
        self.wrong += wrong
        self.enq = self._enqueued()
        self.tip = git(self.at, "rev-parse", self.ref)
        self.values = self._values()
        self.chain = self._chain(f"{self.case.start}..{self.ref}")
        self.own = self._own()
        self.landings = [record for record in self.records if record.kind == "landing"]
        self.landed = [record for record in self.records if record.kind == "landed"]

    def findings(self) -> list[str]:
        for check in (self._told, self._entries, self._landed, self._moved, self._tested, self._history, self._failed,
                      self._turns, self._pins, self._objects, self._left, self._checkouts):
            self.wrong += check()
        return list(dict.fromkeys(self.wrong))

    def _enqueued(self) -> dict[str, Mapping[str, Any]]:
        """Return the data of each entry's enqueue, with later amendments."""
        found: dict[str, Mapping[str, Any]] = {}
        for record in self.records:
            if record.kind in ("enq", "amend"):
                found |= {name: {**found.get(name, {}), **record.data} for name in record.names}
        return found

    def _values(self) -> list[str]:
        """Return every value of the target after `start`, oldest first, by its reflog, else by its history."""
        log = (self.case.upstream or self.common) / "logs" / self.ref
        lines = log.read_text(errors="replace").splitlines() if self.case.logged and log.exists() else []
        values = [line.split(" ", 1)[0] for line in lines[:1]] + [line.split(" ", 2)[1] for line in lines]
        if self.case.start in values:
            values = values[values.index(self.case.start) + 1:]
            if (values or [self.case.start])[-1] != self.tip:
                self.wrong.append("history: the reflog's last value is not the target's")
            return values
        mine = {record.data["new"] for record in self.records if record.kind == "landing"}
        known = mine | set(self.case.foreign)
        line = self._chain(f"{self.case.start}..{self.ref}")
        return [commit.oid for commit in line if commit.oid in known or commit.oid == self.tip]

    def _own(self) -> list[Commit]:
        """Return the entries' own commits: those of the line, and those that a batch's merge has below it."""
        found: list[Commit] = []
        for commit in self.chain:
            inner = self._chain(f"{commit.parents[0]}..{commit.parents[1]}") if len(commit.names) > 1 else [commit]
            if len(commit.names) > 1:
                named = [name for one in inner for name in one.names]
                if sorted(named) != sorted(commit.names) or (inner and inner[-1].tree != commit.tree):
                    self.wrong.append(f"history: {commit.oid} is not the merge of what it names")
            found += inner
        return found

    def _chain(self, commits: str) -> list[Commit]:
        told = git(self.at, "log", "--first-parent", "--reverse", commits, f"--format=%H %T %P|{TRAILERS}", check=False)
        found = []
        for line in told.splitlines():
            head, _, names = line.partition("|")
            oid, tree, *parents = head.split()
            found.append(Commit(oid, tree, tuple(parents), tuple(name.strip() for name in names.split(",") if name)))
        return found

    def _ancestor(self, old: str, new: str) -> bool:
        return subprocess.run(["git", "merge-base", "--is-ancestor", old, new], cwd=self.at, check=False,
                              capture_output=True).returncode == 0

    def _tree(self, commit: str) -> str:
        known = {one.oid: one.tree for one in self.chain}
        return known.get(commit) or git(self.case.repo, "rev-parse", f"{commit}^{{tree}}", check=False)

    # --- entries -------------------------------------------------------------------------------------------------

    def _told(self) -> Iterator[str]:
        """Users were shown what the journal says, and no enqueue that returned is missing."""
        for name in self.case.enqueued:
            if name not in self.enq:
                yield f"lost: {name} was enqueued and is not in the journal"
        if self.case.told is None:
            return
        for name, said in self.case.told.items():
            is_so = self.status.get(name, "absent")
            if said != is_so and (said in FINAL or is_so in FINAL or is_so == "absent"):
                yield f"told: {name} is shown as {said} and is {is_so}"
        yield from (f"lost: {name} is in the journal and not shown" for name in self.enq if name not in self.case.told)

    def _entries(self) -> Iterator[str]:
        """When idle every entry is over; a superseded one has a successor of its own node."""
        keys = {name: (data["run"], data["node"]) for name, data in self.enq.items()}
        heirs = {old: name for name, data in self.enq.items() for old in data.get("supersedes", ())}
        for name, status in self.status.items():
            if status == "superseded" and keys.get(heirs.get(name, "")) != keys.get(name):
                yield f"lost: {name} is superseded by nothing of its own node"
            if self.case.resting and status not in FINAL | {"held"}:
                yield f"lost: {name} is {status} though the queue is idle"

    def _landed(self) -> Iterator[str]:
        """Each landed entry is in the history once, with the commit that was enqueued."""
        named: dict[str, list[Commit]] = {}
        for commit in self.own:
            for name in commit.names:
                named.setdefault(name, []).append(commit)
        for name, commits in named.items():
            strategy = self.enq.get(name, {}).get("strategy") or "merge"
            if len(commits) > 1 and strategy != "rebase":
                yield f"doubled: {name} is in the history {len(commits)} times"
            if self.status.get(name) not in ("landed", "landing"):
                yield f"told: {name} is in the history and recorded as {self.status.get(name, 'absent')}"
            if name in self.enq and strategy == "merge" and self.enq[name]["oid"] not in commits[0].parents[1:]:
                yield f"history: {commits[0].oid} is not a merge of what {name} enqueued"
        for record in self.landed:
            for name in record.names:
                yield from self._one_landed(name, record, named)

    def _one_landed(self, name: str, record: Record, named: dict[str, list[Commit]]) -> Iterator[str]:
        data = record.data
        if name not in self.enq:
            return
        oid = self.enq[name]["oid"]
        settled = [one for one in self.landings if name in one.names and one.seq < record.seq]
        if name in named:
            if not settled:
                yield f"history: {name} landed without a recorded intent"
            return
        if self.status.get(name) == "undone":
            return
        if settled and self.status.get(name) == "landed" and not self.case.foreign and oid != data["commit"]:
            yield f"told: {name} is recorded as landed and its commit {data['commit']} is not in the history"
        elif not self._ancestor(oid, self.ref) and not (settled and self.case.foreign):
            yield f"told: {name} is recorded as landed and its commit {oid} is not in {self.case.target}"

    # --- the target ----------------------------------------------------------------------------------------------

    def _moved(self) -> Iterator[str]:
        """Every value came by a recorded landing, in order; each recorded landing is a value."""
        intended = {(record.data["old"], record.data["new"]) for record in self.landings}
        before = self.case.start
        for value in self.values:
            if value not in self.case.foreign and (before, value) not in intended:
                yield f"untested: the target went from {before} to {value}, which no landing records"
            before = value
        took = set(self.values) | {commit.oid for commit in self.chain}
        for record in self.landed:
            known = [one for one in self.landings if set(one.names) & set(record.names) and one.seq < record.seq]
            if known and known[-1].data["new"] not in took:
                yield f"told: {record.names} are recorded as landed by {known[-1].data['new']}, which never was a value"

    def _tested(self) -> Iterator[str]:
        """Before each landing there is a green verdict of exactly its tree, by the command recorded then."""
        green: set[tuple[str, str]] = set()
        commands: set[str] = set()
        gate, no_gate, run = None, False, self._witnessed(self.case.witness)
        is_line_tested = False
        took = set(self.values)
        for record in self.records:
            data = record.data
            if record.kind == "config":
                no_gate = bool(data.get("no_gate"))
                is_line_tested = data.get("batch_history") == "tip"
                commands = commands if gate == (data["gate"], data["setup"]) else set()
                gate = (data["gate"], data["setup"])
            elif record.kind == "test" or (record.kind == "verdict" and (data.get("reused") or not record.names)):
                commands.add(data["command"])
            if record.kind == "verdict" and data["result"] == "green":
                green.add((data["tree"], data["command"]))
                if run is not None and data["tree"] not in run and not data.get("reused"):
                    yield f"told: record {record.seq} says that {data['tree']} passed; the gate never passed it"
            elif record.kind == "landing" and data["new"] in took and not no_gate:
                passed = {tree for tree, command in green if command in commands}
                yield from self._landing_tested(record, passed, is_line_tested and not self._is_straight(record))

    def _landing_tested(self, record: Record, passed: Collection[str], is_line_tested: bool) -> Iterator[str]:
        new, run = record.data["new"], self._witnessed(self.case.witness)
        tree = self._tree(new)
        if tree not in passed:
            yield f"untested: {new} landed and no verdict on its tree {tree} stands before it"
        if run is not None and tree not in run:
            yield f"untested: {new} landed and the gate never passed its tree {tree}"
        for commit in self._chain(f"{record.data['old']}..{new}") if is_line_tested else ():
            if commit.tree not in passed:
                yield f"untested: {commit.oid} is on the target's line and its tree was not tested"

    def _is_straight(self, record: Record) -> bool:
        """Return whether a landing puts the branch's own commits on the line, by the strategy that its user chose."""
        return any(self.enq.get(name, {}).get("strategy") in ("ff-only", "rebase") for name in record.names)

    def _history(self) -> Iterator[str]:
        """Each commit between two values of the target names its entry, which landed then."""
        mine = {record.data["new"]: record for record in self.landings}
        waiting: list[Commit] = []
        for commit in self.chain:
            waiting.append(commit)
            if commit.oid in self.case.foreign:
                waiting = []
            if commit.oid not in mine:
                continue
            for inner in waiting:
                owners = inner.names or tuple(name for name, data in self.enq.items() if data["oid"] == inner.oid)
                if not owners and not self._of_a_landing(inner, mine[commit.oid]):
                    yield f"history: {inner.oid} came with a landing and names no entry"
                for name in owners:
                    if self.status.get(name) not in ("landed", "landing"):
                        yield f"told: {name} is in the history and recorded as {self.status.get(name, 'absent')}"
            waiting = []
        rest = [commit.oid for commit in waiting if commit.oid not in self.case.foreign]
        if rest and not self._under_foreign(rest):
            yield f"untested: {rest[0]} is in the history and came by no landing"

    def _of_a_landing(self, commit: Commit, record: Record) -> bool:
        """Return whether a commit without a name is part of an entry's own history (ff-only, rebase)."""
        return self._is_straight(record) or any(
            self._ancestor(commit.oid, self.enq[name]["oid"]) for name in record.names if name in self.enq)

    def _under_foreign(self, oids: list[str]) -> bool:
        return any(self._ancestor(oids[-1], value) for value in self.case.foreign)

    def _witnessed(self, path: Path | None) -> set[str] | None:
        if path is None:
            return None
        return set(path.read_text().split()) if path.exists() else set()

    # --- failures ------------------------------------------------------------------------------------------------

    def _failed(self) -> Iterator[str]:
        """A rejected entry had a red run of its own, and a conflict is one, in exactly those files."""
        red = self._witnessed(self.case.reds)
        for name, status in self.status.items():
            if status == "rejected":
                yield from self._rejected(name, red)
        for record in self.records:
            if record.kind == "state" and record.data["status"] == "conflict":
                for name in record.names:
                    yield from self._conflict(name, record.data)

    def _rejected(self, name: str, red: set[str] | None) -> Iterator[str]:
        own = [record.data for record in self.records if record.kind == "verdict" and record.names == (name,)
               and record.data.get("of", "entry") == "entry" and record.data["result"] != "green"]
        if not own:
            yield f"told: {name} is rejected and had no red run of its own"
        elif red is not None and all(data["result"] == "red" for data in own) and not (
                {data["tree"] for data in own} & red):
            yield f"told: {name} is rejected and the gate never failed its tree"
        for data in own[-1:]:
            tested = [record for record in self.records if record.kind == "test" and name in record.names]
            if tested and data["tree"] not in {record.data["tree"] for record in tested}:
                yield f"told: {name} is rejected by a verdict on a tree that was not tested for it"

    def _conflict(self, name: str, data: Mapping[str, Any]) -> Iterator[str]:
        base, files = data.get("base"), set(data.get("files", ()))
        oid, strategy = self.enq.get(name, {}).get("oid", ""), self.enq.get(name, {}).get("strategy")
        if not base or not oid or strategy in ("rebase", "ff-only"):
            return
        done = subprocess.run(["git", "merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", base, oid],
                              cwd=self.case.repo, capture_output=True, check=False)
        really = {part.removesuffix(f"~{oid}").removesuffix(f"~{base}")
                  for part in done.stdout.decode(errors="replace").split("\0")[1:] if part}
        if done.returncode == 0:
            yield f"told: {name} is said to conflict with {base} and merges cleanly"
        elif done.returncode == 1 and not really <= files:
            yield f"told: {name} conflicts in {sorted(really)}, told are {sorted(files)}"

    # --- turns ---------------------------------------------------------------------------------------------------

    def _turns(self) -> Iterator[str]:
        """While a node that lost a conflict has its turn, no other lands on a file of it; no loss is free twice."""
        turns: dict[tuple[str, str], tuple[int, set[str]]] = {}
        free: dict[tuple[str, str], set[str]] = {}
        for record in self.records:
            data, keys = record.data, [self._key(name) for name in record.names if name in self.enq]
            if record.kind == "landing" and data["new"] in set(self.values):
                for name in record.names:
                    yield from self._lands_in_turn(name, data["old"], turns)
            if record.kind == "state" and data.get("turn"):
                number, files = turns.get(keys[0], (record.seq, set()))
                turns[keys[0]] = (number, files | set(data["files"]))
            if record.kind == "state" and data.get("moved"):
                if set(data["files"]) <= free.setdefault(keys[0], set()):
                    yield f"turn: {record.names[0]} lost in {data['files']} for the second time, at no cost"
                free[keys[0]] |= set(data["files"])
            for key in self._out_of_turn(record, keys):
                turns.pop(key, None)
            for key in keys if record.kind == "landed" else ():
                free.pop(key, None)

    def _out_of_turn(self, record: Record, keys: list[tuple[str, str]]) -> list[tuple[str, str]]:
        if record.kind == "turn_over":
            return [(record.data["run"], record.data["node"])]
        return keys if record.kind in ("landed", "cancel") or record.data.get("status") == "held" else []

    def _key(self, name: str) -> tuple[str, str]:
        return (str(self.enq[name].get("run")), str(self.enq[name].get("node")))

    def _lands_in_turn(self, name: str, old: str, turns: Mapping[tuple[str, str], tuple[int, set[str]]],
                       ) -> Iterator[str]:
        own, oid = turns.get(self._key(name), (sys.maxsize, set()))[0], str(self.enq[name]["oid"])
        for key, (number, files) in turns.items():
            needed = {need for other, data in self.enq.items() if self._key(other) == key
                      for need in data.get("depends_on", ())}
            if key == self._key(name) or own < number or name in needed:
                continue
            base = git(self.case.repo, "merge-base", old, oid)
            changed = git(self.case.repo, "diff", "--name-only", "-z", "--no-renames", base, oid).split("\0")
            if shared := files.intersection(changed):
                yield f"turn: {name} landed on {sorted(shared)} in the turn of {key[1]}"

    # --- what stays ----------------------------------------------------------------------------------------------

    def _pins(self) -> Iterator[str]:
        """Exactly the commits that are needed are pinned, as they were enqueued."""
        pins = dict(line.split(" ", 1) for line in git(
            self.case.repo, "for-each-ref", "--format=%(refname) %(objectname)", PINS).splitlines())
        for name, status in self.status.items():
            head = pins.get(f"{PINS}{name}/head")
            if status == "landed" and head and self.case.resting:
                yield f"pin: {name} landed and its head is still pinned"
            if status not in ("landed", "superseded") and head is None and name in self.enq:
                yield f"pin: {name} is {status} and nothing keeps its commit"
            if head and name in self.enq and head != self.enq[name]["oid"]:
                yield f"pin: {name} pins {head} instead of what was enqueued"
        for ref in pins:
            name, _, what = ref.removeprefix(PINS).partition("/")
            if self.case.resting and what != "head":
                yield f"pin: {ref} is left though nothing is in progress"
            if self.case.resting and what == "head" and name not in self.enq:
                yield f"pin: {ref} belongs to no entry"

    def _objects(self) -> Iterator[str]:
        """No referenced object is missing."""
        done = subprocess.run(["git", "fsck", "--connectivity-only", "--no-dangling", "--no-progress"],
                              cwd=self.case.repo, capture_output=True, check=False)
        if done.returncode:
            yield f"lost: git fsck: {(done.stderr + done.stdout).decode(errors='replace').strip()[:200]}"

    def _left(self) -> Iterator[str]:
        """No lock, job, worktree or process is left behind."""
        if not self.case.resting:
            return
        for path in self._locks():
            yield f"left: {path}"
        for job in {path.name for path in (self.folder / "tests").glob("*")} - OF_PROXY:
            yield f"left: the job {job}"
        own = {str(self.case.repo.resolve()), *(str(Path(path).resolve()) for path in self.case.trees)}
        slots = 0
        for line in git(self.case.repo, "worktree", "list", "--porcelain").splitlines():
            if line.startswith("worktree ") and line[9:] not in own:
                slots += Path(line[9:]).name.startswith("slot-")
                if not Path(line[9:]).name.startswith("slot-"):
                    yield f"left: the worktree {line[9:]}"
        if slots > self.case.slots:
            yield f"left: {slots} slots, more than {self.case.slots}"
        give_up = time.monotonic() + PROXY_SECONDS
        while any(":proxy-" in marker for _, marker in living_processes(self.case.home)) and time.monotonic() < give_up:
            time.sleep(0.05)
        for pid, marker in living_processes(self.case.home):
            yield f"left: process {pid} of {marker}"

    def _locks(self) -> Iterator[Path]:
        yield from self.common.glob("*.lock")
        yield from self.common.glob("garrison-i*")
        yield from (self.common / "refs").rglob("*.lock")
        for own in (self.common / "worktrees").glob("*"):
            yield from own.glob("*.lock")
            yield from own.glob("garrison-i*")
        yield from self.folder.glob("*.new")

    def _checkouts(self) -> Iterator[str]:
        """Every checkout of the target shows its tip, with the user's own edits and no others."""
        told = self.case.edits
        if not self.case.resting or told is None or self.case.upstream:
            return
        path = ""
        for line in git(self.case.repo, "worktree", "list", "--porcelain").splitlines():
            path = line[9:] if line.startswith("worktree ") else path
            if line == f"branch {self.ref}":
                edits = git(Path(path), "status", "--porcelain")
                if edits != told.get(path, ""):
                    yield f"left: {path} shows {edits!r} instead of {told.get(path, '')!r}"
