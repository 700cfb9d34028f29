"""The checker of the merge queue finds each kind of forgery of a valid record."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from queue_checker import Case, examine, git

WHO = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@x",
       "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}


@dataclass
class Forgery:
    """A valid record of a queue, written by hand, for a test to spoil."""

    root: Path
    commits: dict[str, str] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)
    case: dict[str, Any] = field(default_factory=dict)

    @property
    def repo(self) -> Path:
        return self.root / "repo"

    @property
    def folder(self) -> Path:
        return self.root / "home/merge-queue/repo-1/main"

    def commit(self, name: str, files: dict[str, str], *parents: str, message: str = "") -> str:
        """Commit without a checkout: the first parent's files with `files` over them."""
        env = {**os.environ, **WHO, "GIT_INDEX_FILE": str(self.root / "index")}

        def run(*words: str, text: str = "") -> str:
            return subprocess.run(["git", *words], cwd=self.repo, env=env, input=text, text=True, check=True,
                                  capture_output=True).stdout.strip()

        run("read-tree", *(parents[:1] or ["--empty"]))
        for path, text in files.items():
            blob = run("hash-object", "-w", "--stdin", text=text)
            run("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
        words = [word for parent in parents for word in ("-p", parent)]
        self.commits[name] = run("commit-tree", run("write-tree"), *words, "-m", message or name)
        return self.commits[name]

    def tree(self, name: str) -> str:
        return git(self.repo, "rev-parse", f"{self.commits[name]}^{{tree}}")

    def say(self, kind: str, **data: Any) -> None:
        self.lines.append({"kind": kind, "data": data, "epoch": 1})

    def find(self, kind: str, entry: str) -> dict[str, Any]:
        """Return a record's data, to be changed."""
        return next(line["data"] for line in self.lines if line["kind"] == kind and line["data"]["entry"] == entry)

    def drop(self, kind: str, entry: str) -> None:
        """Leave a record out."""
        self.lines = [line for line in self.lines if line["kind"] != kind or line["data"].get("entry") != entry]

    def test(self, entry: str, commit: str, result: str, of: str = "entry") -> None:
        self.say("test", entry=entry, of=of, number=1, tree=self.tree(commit), command="c", log="")
        self.say("verdict", entry=entry, of=of, tree=self.tree(commit), command="c", result=result, reason="")

    def land(self, entry: str, old: str, new: str) -> None:
        self.say("landing", entry=entry, old=self.commits[old], new=self.commits[new])
        self.say("landed", entry=entry, old=self.commits[old], commit=self.commits[new], owed=[])

    def write(self) -> None:
        """Write the lines as a journal."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "journal.jsonl").open("wb") as file:
            for seq, line in enumerate(self.lines, 1):
                raw = json.dumps({"seq": seq, "epoch": line["epoch"], "token": "t", "at": "now", "kind": line["kind"],
                                  "data": line["data"]}, separators=(",", ":")).encode()
                file.write(raw[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(raw))

    def findings(self) -> list[str]:
        self.write()
        defaults = {"told": self.told, "enqueued": list(self.told), "witness": self.root / "green",
                    "reds": self.root / "red"}
        return examine(Case(self.repo, self.root / "home", self.commits["start"], **{**defaults, **self.case}))


def _sound(root: Path) -> Forgery:
    """Return a record in which `one` lands alone, `two` and `three` as one batch, `bad` is rejected, `clash` conflicts,
    `old` is superseded by `new` which is cancelled, and `same` was there already."""
    made = Forgery(root)
    made.repo.mkdir()
    git(made.repo, "init", "-q", "-b", "main")
    start = made.commit("start", {"a": "1\n"})
    git(made.repo, "update-ref", "refs/heads/main", start)
    git(made.repo, "reset", "-q", "--hard")
    made.say("config", gate="g", setup=None, no_gate=False, timeout=1, lock_files=[], batch_history="tip")
    for name in ("one", "two", "three", "bad", "clash", "old", "new"):
        made.commit(name, {"a" if name == "clash" else name: f"{name}\n"}, start)
    made.commit("one2", {"a": "2\n"}, made.commits["one"])
    made.commits["one"] = made.commits["one2"]
    made.commits["same"] = start
    for name in ("one", "two", "three", "bad", "clash", "old", "new", "same"):
        made.say("enq", entry=name, run="r", node="old" if name == "new" else name, oid=made.commits[name],
                 supersedes=["old"] if name == "new" else [])
    before = start
    for name in ("one", "two", "three"):
        files = {"a": "2\n", "one": "one\n"} if name == "one" else {name: f"{name}\n"}
        before = made.commit(f"M{name}", files, before, made.commits[name],
                             message=f"Merge {name}\n\nMerge-Queue-Entry: {name}\n")
    made.commit("both", {"two": "two\n", "three": "three\n"}, made.commits["Mone"], before,
                message="Merge 2\n\nMerge-Queue-Entry: two\nMerge-Queue-Entry: three\n")
    made.commit("Mbad", {"bad": "bad\n"}, made.commits["both"], made.commits["bad"])
    made.test("one", "Mone", "green")
    made.land("one", "start", "Mone")
    made.test("two", "Mthree", "green")
    made.say("landing", entry="two", entries=["two", "three"], old=made.commits["Mone"], new=made.commits["both"])
    made.say("landed", entry="two", entries=["two", "three"], old=made.commits["Mone"], commit=made.commits["Mthree"])
    made.test("bad", "Mbad", "red")
    made.say("state", entry="bad", status="rejected", reason="red")
    made.say("state", entry="clash", status="conflict", files=["a"], base=made.commits["both"])
    made.say("cancel", entry="new", reason="by hand")
    made.say("landed", entry="same", old=start, commit=start, reason="already in main")
    for new, old in (("Mone", "start"), ("both", "Mone")):
        git(made.repo, "update-ref", "refs/heads/main", made.commits[new], made.commits[old])
    git(made.repo, "reset", "-q", "--hard")
    for name in ("bad", "clash", "new"):
        git(made.repo, "update-ref", f"refs/garrison/mq/{name}/head", made.commits[name])
    (root / "green").write_text(f"{made.tree('Mone')}\n{made.tree('Mthree')}\n")
    (root / "red").write_text(f"{made.tree('Mbad')}\n")
    made.told = {"one": "landed", "two": "landed", "three": "landed", "bad": "rejected", "clash": "conflict",
                 "old": "superseded", "new": "cancelled", "same": "landed"}
    return made


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Forgery:
    return _sound(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def forgery(sound: Forgery, tmp_path: Path) -> Forgery:
    root = tmp_path / "copy"
    shutil.copytree(sound.root, root)
    return Forgery(root, dict(sound.commits), json.loads(json.dumps(sound.lines)), dict(sound.told))


def test_a_valid_record_has_no_finding_with_or_without_a_reflog(forgery):
    assert forgery.findings() == []
    forgery.case["logged"] = False
    assert forgery.findings() == []
    git(forgery.repo, "update-ref", "refs/heads/main", forgery.commit("x", {"x": "x"}, forgery.commits["Mthree"]))
    assert any(line.startswith("untested") for line in forgery.findings())


def _ref(name: str, commit: str) -> Callable[[Forgery], object]:
    return lambda made: git(made.repo, "update-ref", f"refs/garrison/mq/{name}", made.commits[commit])


def _again(made: Forgery) -> None:
    """Merge again what has landed, otherwise correctly."""
    made.commit("again", {"more": "x\n"}, made.commits["Mthree"], made.commits["one"],
                message="Merge one\n\nMerge-Queue-Entry: one\n")
    made.test("one", "again", "green")
    made.say("landing", entry="one", old=made.commits["Mthree"], new=made.commits["again"])
    _advance(made, "again")
    with (made.root / "green").open("a") as file:
        file.write(made.tree("again") + "\n")


def _advance(made: Forgery, name: str) -> None:
    git(made.repo, "update-ref", "refs/heads/main", made.commits[name])
    git(made.repo, "reset", "-q", "--hard")


def _behind_the_back(made: Forgery) -> None:
    made.commit("x", {"x": "x\n"}, made.commits["Mthree"])
    _advance(made, "x")


def _there_and_back(made: Forgery) -> None:
    """Set an untested value for a moment."""
    _behind_the_back(made)
    _advance(made, "Mthree")


def _landed_though_rejected(made: Forgery) -> None:
    made.commit("Mbad2", {"bad": "bad\n"}, made.commits["Mthree"], made.commits["bad"],
                message="Merge bad\n\nMerge-Queue-Entry: bad\n")
    made.say("landing", entry="bad", old=made.commits["Mthree"], new=made.commits["Mbad2"])
    _advance(made, "Mbad2")


def _swap(made: Forgery, first: str, second: str) -> None:
    """Swap two records of `one`."""
    places = [number for number, line in enumerate(made.lines) if line["data"].get("entry") == "one"
              and line["kind"] in (first, second)]
    one, two = places
    made.lines[one], made.lines[two] = made.lines[two], made.lines[one]


def _append(path: str) -> Callable[[Forgery], object]:
    def act(made: Forgery) -> None:
        (made.root / path).parent.mkdir(parents=True, exist_ok=True)
        (made.root / path).write_text("x\n")
    return act


def _said(kind: str, **data: Any) -> Callable[[Forgery], object]:
    return lambda made: made.say(kind, **data)


def _set(kind: str, entry: str, **data: Any) -> Callable[[Forgery], object]:
    def act(made: Forgery) -> None:
        made.find(kind, entry).update({name: value(made) if callable(value) else value for name, value in data.items()})
    return act


def _drop(kind: str, entry: str) -> Callable[[Forgery], object]:
    return lambda made: made.drop(kind, entry)


def _tell(name: str, status: str | None) -> Callable[[Forgery], object]:
    return lambda made: made.told.update({name: status}) if status else made.told.pop(name)


FORGERIES: dict[str, tuple[str, Callable[[Forgery], object]]] = {
    "an epoch goes back": ("journal", lambda made: made.lines[3].update(epoch=2)),
    "an answered entry is gone": ("lost", _drop("enq", "clash")),
    "an entry is not told": ("lost", _tell("two", None)),
    "an entry never ends": ("lost", _drop("cancel", "new")),
    "superseded by nobody": ("lost", _set("enq", "new", node="other")),
    "its object is gone": ("lost", lambda made: shutil.rmtree(
        made.repo / ".git/objects" / made.commits["clash"][:2])),
    "enqueued twice": ("doubled", lambda made: made.lines.insert(3, dict(made.lines[1]))),
    "landed twice in the journal": ("doubled", _said("landed", entry="one", old="", commit="", owed=[])),
    "landed twice in the history": ("doubled", _again),
    "the target moved behind the queue's back": ("untested", _behind_the_back),
    "an untested value for a moment": ("untested", _there_and_back),
    "no verdict": ("untested", _drop("verdict", "one")),
    "a red verdict": ("untested", _set("verdict", "one", result="red")),
    "the verdict is on another tree": ("untested", _set("verdict", "one", tree=lambda made: made.tree("start"))),
    "the verdict is by another command": ("untested", _set("verdict", "one", command="other")),
    "the verdict comes after the intent": ("untested", lambda made: _swap(made, "verdict", "landing")),
    "the batch's last tree was not tested": ("untested", _set("verdict", "two", tree=lambda made: made.tree("Mtwo"))),
    "an untested tree on the line": ("untested", lambda made: (
        made.find("landing", "two").update(new=made.commits["Mthree"]), _advance(made, "Mone"),
        git(made.repo, "reflog", "expire", "--expire=all", "--all"), _advance(made, "Mthree"),
        made.case.update(logged=False))),
    "a batch's merge names another": ("history", lambda made: (
        made.commit("wrong", {"x": "x"}, made.commits["Mone"], made.commits["Mthree"],
                    message="Merge 2\n\nMerge-Queue-Entry: two\nMerge-Queue-Entry: one\n"),
        made.find("landing", "two").update(new=made.commits["wrong"]), _advance(made, "wrong"))),
    "the gate never ran": ("untested", lambda made: (made.root / "green").write_text(made.tree("Mthree"))),
    "no intent": ("untested", _drop("landing", "one")),
    "the intent is another": ("untested", _set("landing", "one", old="0" * 40)),
    "landed what was not enqueued": ("history", _set("enq", "two", oid=lambda made: made.commits["old"])),
    "landed though recorded as rejected": ("told", _landed_though_rejected),
    "recorded as landed and not there": ("told", lambda made: (
        made.drop("cancel", "new"), made.say("landed", entry="new", old="", commit=made.commits["new"], owed=[]),
        made.told.update(new="landed"))),
    "said to have been there already": ("told", _set("enq", "same", oid=lambda made: made.commits["old"])),
    "told otherwise than recorded": ("told", _tell("bad", "landed")),
    "told what is not": ("told", _tell("nobody", "landed")),
    "goes on after its end": ("told", _said("state", entry="bad", status="queued")),
    "rejected without a red run": ("told", _set("verdict", "bad", result="green")),
    "rejected by the target's red run": ("told", _set("verdict", "bad", of="base")),
    "rejected, and the gate never failed it": ("told", lambda made: (made.root / "red").write_text("")),
    "a green verdict the gate never gave": ("told", lambda made: made.test("same", "start", "green")),
    "a conflict that is none": ("told", _set("enq", "clash", oid=lambda made: made.commits["old"])),
    "a conflict in other files": ("told", _set("state", "clash", files=["b"])),
    "another lands in a turn": ("turn", lambda made: (
        made.drop("state", "clash"),
        made.lines.insert(next(at for at, line in enumerate(made.lines) if line["kind"] == "landing"), {
            "kind": "state", "epoch": 1, "data": {"entry": "clash", "status": "conflict", "files": ["a"], "turn": 9.0,
                                                  "base": made.commits["both"]}}))),
    "a second loss is free": ("turn", lambda made: [made.say(
        "state", entry="clash", status="conflict", files=["a"], base=made.commits["both"], moved=True)
        for _ in range(2)]),
    "the pin of a rejected one is gone": ("pin", lambda made: git(
        made.repo, "update-ref", "-d", "refs/garrison/mq/bad/head")),
    "a pin is moved": ("pin", _ref("bad/head", "start")),
    "the pin of a landed one stays": ("pin", _ref("one/head", "one")),
    "a candidate stays pinned": ("pin", _ref("bad/candidate", "Mbad")),
    "a pin of nobody": ("pin", _ref("stranger/head", "one")),
    "the checkout stays locked": ("left", _append("repo/.git/index.lock")),
    "the ref stays locked": ("left", _append("repo/.git/refs/heads/main.lock")),
    "a copy of an index": ("left", _append("repo/.git/garrison-index-7")),
    "a job's folder": ("left", lambda made: (made.folder / "tests/one.1").mkdir(parents=True)),
    "a worktree": ("left", lambda made: git(made.repo, "worktree", "add", "-q", "--detach", str(made.root / "w"))),
    "more slots than allowed": ("left", lambda made: [git(
        made.repo, "worktree", "add", "-q", "--detach", str(made.root / f"slot-{n}")) for n in range(9)]),
    "the checkout shows an older commit": ("left", lambda made: (made.repo / "three").unlink()),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_each_forgery_is_caught(forgery, name):
    kind, forge = FORGERIES[name]
    forge(forgery)
    found = forgery.findings()
    assert any(line.startswith(f"{kind}:") for line in found), found


@pytest.mark.parametrize("damage", [
    lambda lines: [*lines[:4], lines[4].replace(b'"', b"'", 1), *lines[5:]], lambda lines: [*lines[:4], *lines[5:]],
    lambda lines: [*lines[:5], *lines[4:]]], ids=["changed", "left out", "repeated"])
def test_damaged_lines_are_caught(forgery, damage, monkeypatch):
    forgery.write()
    path = forgery.folder / "journal.jsonl"
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    monkeypatch.setattr(forgery, "write", lambda: None)
    found = forgery.findings()
    assert any(line.startswith("journal:") for line in found), found


def test_a_leftover_process_is_caught(forgery):
    marker = f"{forgery.root / 'home'}:r:gate-one#1"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env={**os.environ, "GARRISON_LIFE": marker})
    try:
        assert f"left: process {child.pid} of {marker}" in forgery.findings()
    finally:
        child.communicate(b"\n")


def test_compacted_records_are_read(forgery):
    forgery.write()
    path = forgery.folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    raw = json.dumps({"seq": 20, "epoch": 1, "token": "t", "at": "now", "kind": "snapshot", "data": {}},
                     separators=(",", ":")).encode()
    path.rename(path.with_name("journal-20.jsonl"))
    path.with_name("journal-20.jsonl").write_bytes(b"".join(lines[:20]))
    path.write_bytes(raw[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(raw) + b"".join(lines[20:]))
    forgery.write = lambda: None
    assert forgery.findings() == []
    path.with_name("journal-20.jsonl").unlink()
    assert any(line.startswith("journal:") for line in forgery.findings())


def test_an_amended_entry_is_checked_by_its_last_request(forgery):
    data = forgery.find("enq", "two")
    data["oid"] = forgery.commits["old"]
    assert any("is not a merge of what two enqueued" in line for line in forgery.findings())
    at = next(number for number, line in enumerate(forgery.lines) if line["data"] is data)
    forgery.lines.insert(at + 1, {"kind": "amend", "data": {"entry": "two", "strategy": "rebase"}, "epoch": 1})
    assert not any("is not a merge of what two enqueued" in line for line in forgery.findings())
