"""Branches whose trees or commits git itself trips over: each is refused or lands, and the entries after it land."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from merge_support import World, drive, git, until

from garrison.merge.entry import EntryOptions
from garrison.records import journal
from garrison.system.git import Git, GitError
from garrison.system.git.landable import explain_refusal

LINE = "[submodule \"sub\"]\n\tpath = sub\n\turl = ./x\n"


def blob(world: World, data: bytes) -> str:
    return raw(world, "blob", data)


def raw(world: World, kind: str, data: bytes) -> str:
    """Write an object as it is, even one that git would not write."""
    whole = f"{kind} {len(data)}\0".encode() + data
    name = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
    path = world.repo / ".git/objects" / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(whole, 1))
    return name


def tree(world: World, *more: tuple[str, str, str], base: str = "main") -> str:
    """Write the tree of `base` with more (mode, name, oid) at its top; git's own order, no check of names."""
    lines = git(world.repo, "ls-tree", "-z", base).split("\0")
    entries = {line.split("\t", 1)[1]: (line.split(" ")[0], line.split("\t")[0].split(" ")[2])
               for line in lines if line}
    entries |= {name: (mode, oid) for mode, name, oid in more}
    ordered = sorted(entries.items(), key=lambda each: each[0] + ("/" if each[1][0] in ("40000", "040000") else ""))
    return raw(world, "tree", b"".join(mode.lstrip("0").encode() + b" " + name.encode() + b"\0" + bytes.fromhex(oid)
                                       for name, (mode, oid) in ordered))


def commit(world: World, content: str, head: bytes = b"author A <a@x> 1700000000 +0000\n"
           b"committer A <a@x> 1700000000 +0000\n", message: bytes = b"\nhostile\n", parent: str = "") -> str:
    oid = raw(world, "commit", f"tree {content}\nparent {parent or git(world.repo, 'rev-parse', 'main')}\n".encode()
              + head + message)
    git(world.repo, "update-ref", "refs/heads/hostile", oid)
    return oid


def plain(world: World, *head: bytes, **more: Any) -> str:
    """Commit a file `x`, with this head, message or parent."""
    return commit(world, tree(world, ("100644", "x", blob(world, b"x"))), *head, **more)


def file(name: str, data: bytes, mode: str = "100644", times: int = 1) -> Callable[[World], object]:
    return lambda world: commit(world, tree(world, (mode, name, blob(world, data * times))))


def huge_line(world: World) -> None:
    file(".gitattributes", b"* " + b"a" * 5_000_000 + b"\n")(world)


def modules(text: str, mode: str = "100644", more: int = 0) -> Callable[[World], object]:
    def make(world: World) -> None:
        link = ("160000", "sub", git(world.repo, "rev-parse", "main"))
        whole = text + "".join(f"[submodule \"s{n}\"]\n\tpath = p{n}\n" for n in range(more))
        commit(world, tree(world, link, (mode, ".gitmodules", blob(world, whole.encode()))))
    return make


def deep(world: World, levels: int = 3000) -> None:
    content = tree(world, ("100644", "x", blob(world, b"x")))
    for _ in range(levels):
        content = raw(world, "tree", b"40000 d\0" + bytes.fromhex(content))
    commit(world, tree(world, ("40000", "d", content)))


def many(world: World, levels: int = 7) -> None:
    content, mode = blob(world, b"x"), b"100644"
    for _ in range(levels):
        content = raw(world, "tree", b"".join(b"%s %d\0" % (mode, n) + bytes.fromhex(content) for n in range(10)))
        mode = b"40000"
    commit(world, content)


def missing(mode: str) -> Callable[[World], object]:
    return lambda world: commit(world, tree(world, (mode, "gone", "1" * 40)))


def doubled(world: World) -> None:
    name = bytes.fromhex(blob(world, b"x"))
    commit(world, raw(world, "tree", b"100644 a\0" + name + b"100644 a\0" + name))


def inner(name: str) -> Callable[[World], object]:
    def make(world: World) -> None:
        folder = raw(world, "tree", b"100644 config\0" + bytes.fromhex(blob(world, b"[core]\n\tfsmonitor = x\n")))
        commit(world, tree(world, ("40000", name, folder)))
    return make


def entry(name: str, mode: str = "100644") -> Callable[[World], object]:
    return lambda world: commit(world, tree(world, (mode, name, blob(world, b"x\n"))))


HOSTILE: dict[str, Callable[[World], object]] = {
    "update is a command": modules(LINE + "\tupdate = !touch x\n"),
    "gitmodules is a link": modules("/etc/passwd", "120000"),
    "gitmodules is a folder": inner(".gitmodules"),
    "gitmodules is a submodule": lambda world: commit(world, tree(world, (
        "160000", ".gitmodules", git(world.repo, "rev-parse", "main")))),
    "gitmodules is not configuration": modules("[submodule \"sub\n\tpath"),
    "gitmodules is huge": modules(LINE, more=200_000),
    "gitmodules has one name twice": modules(LINE + LINE.replace("path = sub", "path = other")),
    "gitmodules has an unknown value": modules(LINE + "\tfetchRecurseSubmodules = perhaps\n\tignore = never\n"),
    "gitmodules has an option for a path": modules(LINE.replace("path = sub", "path = -u./evil")),
    "gitmodules has an option for an address": modules(LINE.replace("./x", "-u./evil")),
    "gitmodules leads out": modules(LINE.replace("\"sub\"", "\"../../sub\"")),
    "gitmodules in capitals": entry(".GITMODULES", "120000"),
    "gitattributes is a link": file(".gitattributes", b"/etc/passwd", "120000"),
    "gitattributes names no driver": file(".gitattributes", b"* merge=nothing filter=nothing diff=nothing\n"),
    "gitattributes has a huge line": huge_line,
    "gitattributes is huge": file(".gitattributes", b"*.txt text\n", times=10_000_000),
    "gitattributes has an unknown encoding": file(".gitattributes", b"*.txt working-tree-encoding=UTF-99\n"),
    "gitignore is a link": file(".gitignore", b"/etc/passwd", "120000"),
    "git folder": inner(".git"),
    "git folder in capitals": inner(".GIT"),
    "git folder as NTFS": inner("git~1"),
    "git folder as HFS": inner(".g\u200cit"),
    "file .git": entry(".git"),
    "file ..": entry(".."),
    "file .": entry("."),
    "name with a slash": entry("a/b"),
    "name with a slash up": entry("../evil"),
    "name without letters": entry(""),
    "name of 5,000 letters": entry("n" * 5000),
    "name with a backslash": entry("..\\evil"),
    "name of a new line": entry("a\nb"),
    "mode that git does not know": entry("odd", "100600"),
    "mode of a socket": entry("odd", "140000"),
    "3,000 levels": deep,
    "ten million files": many,
    "a message of 20 MB": lambda world: plain(world, message=b"\n" + b"x" * 20_000_000),
    "a name twice": doubled,
    "blob missing": missing("100644"),
    "tree missing": missing("40000"),
    "a blob as a tree": lambda world: commit(world, tree(world, ("40000", "odd", blob(world, b"x")))),
    "a tree as a blob": lambda world: commit(world, tree(world, ("100644", "odd", git(
        world.repo, "rev-parse", "main^{tree}")))),
    "parent missing": lambda world: plain(world, parent="1" * 40),
    "parent is a blob": lambda world: plain(world, parent=blob(world, b"x")),
    "no author": lambda world: plain(world, b""),
    "broken author": lambda world: plain(world, b"author A a@x> x\ncommitter <\n"),
    "huge date": lambda world: plain(
        world, b"author A <a@x> 99999999999999999999999 +9999\ncommitter A <a@x> -1 +0000\n"),
    "unknown encoding": lambda world: plain(
        world, b"author A <a@x> 1 +0000\ncommitter A <a@x> 1 +0000\nencoding X-99\n"),
    "NUL in the message": lambda world: plain(world, message=b"\nhos\0tile\n"),
    "a submodule for a folder": lambda world: commit(world, tree(world, (
        "160000", "lines.txt", git(world.repo, "rev-parse", "main")))),
    "a folder for a file": inner("lines.txt"),
}


LANDS = {"gitmodules is a folder", "gitmodules is a submodule", "gitmodules is huge", "gitmodules has one name twice",
         "gitattributes is a link", "gitattributes names no driver", "gitattributes has a huge line",
         "gitattributes is huge", "gitattributes has an unknown encoding", "gitignore is a link",
         "name with a backslash", "name of a new line", "mode that git does not know", "mode of a socket",
         "a name twice", "no author", "broken author", "huge date", "unknown encoding", "NUL in the message",
         "a submodule for a folder", "a folder for a file"}
"""Those that do no harm: the rest must be refused."""
UNREADABLE = {"name with a slash", "name with a slash up", "name without letters", "tree missing", "a blob as a tree",
              "parent missing", "parent is a blob", "ten million files", "a message of 20 MB"}
"""Those that git cannot read or merge at all, or that it is not asked to."""
HARMLESS_AND_SLOW = {"gitattributes is huge", "gitmodules is huge"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return World(tmp_path_factory.mktemp("hostile"), gate=None)


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in UNREADABLE | HARMLESS_AND_SLOW])
def test_a_tree_that_git_would_trip_over_is_refused_before_it_lands(shared, name):
    repository = shared.queue.git
    HOSTILE[name](shared)
    why = explain_refusal(repository, repository.tree_of(shared.start), repository.tree_of(
        git(shared.repo, "rev-parse", "hostile")), missing=True)
    assert bool(why) == (name not in LANDS), why
    assert str(shared.repo) not in why
    assert "\n" not in why


class ImpatientWorld(World):
    bounds: ClassVar[dict[str, float]] = {"git_retry": 0.01}


@pytest.fixture
def world(tmp_path):
    return ImpatientWorld(tmp_path, gate="true")


def test_entries_at_which_git_fails_block_none_of_those_after_them(world):
    refused = {"update is a command": "gitmodulesUpdate", "name with a slash": "Aborted",
               "tree missing": "bad tree object", "blob missing": "unable to read",
               "ten million files": "too large to be tested",
               "a message of 20 MB": "has 19.1 MiB, more than 1 MiB", "3,000 levels": "more than 200 levels"}
    for number, name in enumerate(refused):
        HOSTILE[name](world)
        world.enqueue(f"bad{number}", branch="hostile")
    world.add("good")
    world.land("good")
    for number, said in enumerate(refused.values()):
        entry = world.entry(f"bad{number}")
        assert entry.status == "conflict"
        assert said in entry.reason
    told = [each.data.get("reason", "") for each in journal.read_all(world.queue.path) if each.kind == "hindered"]
    assert any("git fails at bad1" in why for why in told)
    assert told[-1] == world.queue.state.hindrance == ""


def test_a_batch_at_which_git_fails_is_judged_one_by_one(world):
    world.bounds = {**world.bounds, "short_gate": 0.0}
    world.add("zero")
    world.drain()
    HOSTILE["blob missing"](world)
    for name in ("one", "two", "three", "four"):
        world.branch(name, {f"{name}.txt": "1\n"})
    world.enqueue("one")
    world.enqueue("bad", branch="hostile")
    for name in ("two", "three", "four"):
        world.enqueue(name)
    world.drain()
    assert {entry.node: entry.status for entry in world.queue.entries() if entry.status != "landed"} == {
        "bad": "conflict"}


def test_while_git_fails_at_the_target_itself_nothing_is_set_aside(world, monkeypatch):
    world.add("one")

    def fail(*_, **__):
        raise GitError(("merge-tree",), 128, "fatal: not today")

    with monkeypatch.context() as broken:
        broken.setattr(Git, "merge_tree", fail)
        made = world.processor()
        until(lambda: made.step() and "at main itself" in world.queue.state.hindrance, "the queue says why it waits")
        assert world.entry("one").status == "queued"
    drive(made)
    made.close()
    assert (world.entry("one").status, world.queue.state.hindrance) == ("landed", "")


def test_a_landing_at_which_git_fails_is_given_up(world, monkeypatch):
    world.add("one")
    world.add("two")
    real = Git.changes

    def fail(self, old, new):
        if new == world.queue.state.entries[world.entry("one").id].commit:
            raise GitError(("diff-tree",), 128, "fatal: not this one")
        return real(self, old, new)

    monkeypatch.setattr(Git, "changes", fail)
    assert world.results() == ["conflict", "landed"]
    assert "not this one" in world.entry("one").reason


def test_a_target_whose_gitmodules_git_refuses_gets_what_merges_into_it(world):
    world.branch("good", {"good.txt": "1\n"})
    commit(world, tree(world, ("160000", "sub", git(world.repo, "rev-parse", "good"))))
    git(world.repo, "branch", "other", "hostile")
    HOSTILE["update is a command"](world)
    git(world.repo, "reset", "-q", "--hard", "hostile")
    world.start = world.tip()
    world.enqueue("other")
    world.enqueue("good")
    assert world.results() == ["conflict", "landed"]
    assert world.entry("other").files == ("sub",)


def test_a_tree_that_only_another_strategy_accepts_blocks_no_other_entry(world):
    for name, strategy in (("name with a slash", "ff-only"), ("blob missing", "rebase")):
        HOSTILE[name](world)
        world.queue.enqueue("r", strategy, 1, "hostile", options=EntryOptions(strategy=strategy))
    world.add("good")
    assert world.results() == ["conflict", "conflict", "landed"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["merge", "squash", "rebase", "ff-only"])
@pytest.mark.parametrize("name", HOSTILE)
def test_entries_after_a_hostile_branch_land(world, name, strategy):
    HOSTILE[name](world)
    world.queue.enqueue("r", "hostile", 1, "hostile", recipient="runner-hostile@r",
                        options=EntryOptions(strategy=strategy))
    world.add("good")
    world.drain()
    world.add("late")
    world.drain()
    assert (world.entry("good").status, world.entry("late").status) == ("landed", "landed")
    assert world.entry("hostile").status in (("landed", "conflict") if name in LANDS else ("conflict", "rejected"))
