"""The checker of whole runs finds every way to spoil a valid history, written by hand."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from garrison.testing.checker import (
    CheckedRepository,
    Promise,
    UnreadableAttestations,
    UnreadableHistory,
    UnreadableSpending,
    check,
    read_attestations,
    read_events,
    read_spending,
)

WHO = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@x",
       "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
SINCE = "2026-01-01T00:00:00Z"


@dataclass
class Story:
    """A run of three nodes: `a` lands, `b` and `c` land as one batch; `b`'s agent was killed once, `c` was reworked."""

    root: Path
    lines: list[dict[str, Any]] = field(default_factory=list)
    attested: list[str] = field(default_factory=list)
    commits: dict[str, str] = field(default_factory=dict)
    costs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def repo(self) -> Path:
        return self.root / "repo"

    def git(self, *words: str, text: str = "") -> str:
        env = {**os.environ, **WHO, "GIT_INDEX_FILE": str(self.root / "index")}
        return subprocess.run(["git", *words], cwd=self.repo, env=env, input=text, text=True, check=True,
                              capture_output=True).stdout.strip()

    def commit(self, name: str, content: str, *parents: str, entries: tuple[str, ...] = ()) -> str:
        blob = self.git("hash-object", "-w", "--stdin", text=content)
        tree = self.git("mktree", text=f"100644 blob {blob}\tfile\n")
        words = [word for parent in parents for word in ("-p", parent)]
        message = "\n\n".join([name, "\n".join(f"Merge-Queue-Entry: {entry}" for entry in entries)])
        self.commits[name] = self.git("commit-tree", tree, *words, "-m", message)
        return self.commits[name]

    def tree(self, name: str) -> str:
        return self.git("rev-parse", f"{self.commits[name]}^{{tree}}")

    def add(self, journal: str, by: str, kind: str, node: str = "", /, *, queue: str = "main", **data: Any) -> None:
        queue = queue if journal == "merge-queue" else ""
        seq = 1 + sum((line["journal"], line["queue"]) == (journal, queue) for line in self.lines)
        at = f"2026-01-02T00:00:{len(self.lines):02}Z"
        self.lines.append({"at": at, "run": "r", "journal": journal, "by": by, "seq": seq, "kind": kind, "node": node,
                           "about": "", "data": {name.rstrip("_"): value for name, value in data.items()},
                           "queue": queue})

    def find(self, kind: str, /, **wanted: Any) -> dict[str, Any]:
        """Return the first line of that kind with these data."""
        return next(line for line in self.lines if line["kind"] == kind
                    and all(line["data"].get(name.rstrip("_")) == value for name, value in wanted.items()))

    def drop(self, kind: str, /, **wanted: Any) -> None:
        self.lines.remove(self.find(kind, **wanted))

    def after(self, line: dict[str, Any], /, **data: Any) -> None:
        """Write the same record once more, with other data, at the end of its journal."""
        self.add(line["journal"], line["by"], line["kind"], line["node"], **{**line["data"], **data})

    def findings(self) -> list[str]:
        attested = f"since {SINCE}\n" + "\n".join(self.attested)
        found = check(read_events(map(json.dumps, self.lines)), CheckedRepository(self.repo),
                      read_attestations([attested]),
                      spending=read_spending(map(json.dumps, self.costs)))
        return [str(finding) for finding in found]

    def land(self, old: str, new: str, *entries: str) -> None:
        proc, tree = "processor-r@r#1", self.tree(new)
        common = {"entry": entries[0], "entries": list(entries)}
        self.add("merge-queue", proc, "test", entries[0], **common, of="entry", tree=tree, command="key")
        self.add("merge-queue", proc, "verdict", entries[0], **common, tree=tree, command="key", result="green")
        self.attested.append(f"{self.commits[new]} {tree} 0 0")
        self.add("merge-queue", proc, "landing", entries[0], **common, old=self.commits[old], new=self.commits[new])
        for entry in entries:
            self.add("merge-queue", proc, "landed", entry, entry=entry, commit=self.commits[new])

    def pay(self, node: str, session: str, *usd: float, kind: str = "call") -> None:
        """Add calls of a session at these prices, under a limit of 1 dollar for the node and 3 for the run."""
        for amount in usd:
            number = len(self.costs)
            self.costs.append({"node": node, "attempt": "1", "session": session, "kind": kind, "usd": amount,
                               "at": f"2026-01-02T00:00:{number:02}Z", "message": f"m{number}",
                               "limits": {"node": 1.0, "run": 3.0}})

    def enqueue(self, node: str, attempt: int, oid: str) -> None:
        self.add("merge-queue", f"runner-{node}@r#1", "enq", node, entry=f"{node}-{attempt}", run="r", node=node,
                 attempt=attempt, oid=oid, target="main")


def tell(tmp: Path) -> Story:
    """Return the valid story."""
    story = Story(tmp)
    story.repo.mkdir()
    story.git("init", "-q", "-b", "main")
    base = story.commit("base", "0")
    work = {"a": story.commit("work a", "a", base), "b": story.commit("work b", "b", base),
            "c1": story.commit("work c1", "c1", base), "c": story.commit("work c", "c", base)}
    tip_a = story.commit("merge a", "a", base, work["a"], entries=("a-1",))
    inner_b = story.commit("merge b", "ab", tip_a, work["b"], entries=("b-1",))
    inner_c = story.commit("merge c", "abc", inner_b, work["c"], entries=("c-2",))
    tip = story.commit("batch", "abc", tip_a, inner_c, entries=("b-1", "c-2"))
    story.git("update-ref", "refs/heads/main", tip)
    story.git("update-ref", "refs/garrison/mq/c-1/head", work["c1"])
    story.git("update-ref", "refs/garrison/rescue/r/c/1", work["c1"])
    launch = json.dumps({"run_id": "r", "repo": str(story.repo), "base": "main", "base_oid": base, "max_rework": 2,
                         "max_respawn": 3, "trees": str(tmp / "trees")})
    guardian, runner = "guardian-r@r#1", "runner-b@r#1"
    story.add("launch", "launch@r#1", "launch", launch=launch)
    story.add("launch", "launch@r#1", "spawn", full="guardian-r@r", incarnation=1)
    story.add("guardian", guardian, "run", status="running")
    for node in "abc":
        story.add("guardian", guardian, "node", node, node=node, status="pending", attempt=1)
        story.add("guardian", guardian, "node", node, node=node, status="active", attempt=1, step=f"{node}#1:1")
        story.add("guardian", guardian, "spawn", node, full=f"runner-{node}@r", incarnation=1, attempt=1)
    spawn = {"full": "orchestrator-b@r", "attempt": 1}
    story.add("runner-b", runner, "spawn", "b", **spawn, incarnation=1)
    story.add("runner-b", runner, "fenced", "b", **spawn, incarnation=1)
    story.add("runner-b", runner, "death", "b", **spawn, incarnation=1, class_="crash")
    story.add("runner-b", runner, "spawn", "b", **spawn, incarnation=2)
    story.add("runner-b", runner, "fact", "b", name="base", value=base, attempt=1)
    story.add("runner-b", runner, "fact", "b", name="change", value="yes", attempt=1)
    story.enqueue("a", 1, work["a"])
    story.land("base", "merge a", "a-1")
    story.enqueue("c", 1, work["c1"])
    story.add("merge-queue", "processor-r@r#1", "state", "c", entry="c-1", status="rejected", reason="red")
    story.add("runner-c", "runner-c@r#1", "rescue", "c", ref="refs/garrison/rescue/r/c/1", attempt=1)
    story.add("guardian", guardian, "signal", "c", id="1", type="RUNNER_EXITED", node="c", attempt=1,
              from_="runner-c@r", incarnation=1,
              effect={"node": "c", "status": "active", "attempt": 2, "reason": "red"})
    story.add("guardian", guardian, "spawn", "c", full="runner-c@r", incarnation=2, attempt=2)
    story.enqueue("b", 1, work["b"])
    story.enqueue("c", 2, work["c"])
    story.land("merge a", "batch", "b-1", "c-2")
    for node in "abc":
        story.add("guardian", guardian, "node", node, node=node, status="validated", attempt=1 + (node == "c"))
    story.add("guardian", guardian, "run", status="done")
    story.pay("a", "s1", 0.4, 0.4, 0.4)  # the last call may pass the limit
    story.pay("b", "s2", 0.9, 0.3)
    story.pay("b", "s2", 0.5, kind="result")  # its own total: the estimates were too high
    story.pay("b", "s2", 0.3, 0.3)
    return story


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return tell(tmp_path_factory.mktemp("story"))


@pytest.fixture
def story(sound: Story) -> Iterator[Story]:
    """Yield the valid story, and restore its refs after each forgery."""
    refs = sound.git("for-each-ref", "--format=%(refname) %(objectname)")
    copy = json.loads(json.dumps(sound.lines))
    yield Story(sound.root, copy, list(sound.attested), dict(sound.commits), json.loads(json.dumps(sound.costs)))
    for line in refs.splitlines():
        sound.git("update-ref", *line.split())


def test_a_valid_run_has_no_finding(story: Story) -> None:
    assert story.findings() == []


def test_two_queues_of_a_run_are_numbered_separately(story: Story) -> None:
    """In the order of numbers, the processor's third incarnation works on one queue before its second on the other."""
    for life in (2, 3):
        for queue in ("garrison/r/integration", "main"):
            story.add("merge-queue", f"processor-r@r#{life}", "lease", queue=queue)
    assert story.findings() == []


def untested_inside(story: Story) -> None:
    """Let a batch land as a chain: the commit in the middle is on the line, and nothing tested it."""
    chained = story.commit("chained b", "ab", story.commits["merge a"], story.commits["work b"], entries=("b-1",))
    tip = story.commit("chained c", "abc", chained, story.commits["work c"], entries=("c-2",))
    story.git("update-ref", "refs/heads/main", tip)
    story.find("landing", entry="b-1")["data"]["new"] = tip


def another_tree(story: Story) -> None:
    tip = story.commit("other", "evil", story.commits["merge a"], story.commits["merge c"], entries=("b-1", "c-2"))
    story.git("update-ref", "refs/heads/main", tip)
    story.find("landing", entry="b-1")["data"]["new"] = tip


def verdict_after_landing(story: Story) -> None:
    verdict, landing = story.find("verdict", entry="a-1"), story.find("landing", entry="a-1")
    verdict["seq"], landing["seq"] = landing["seq"], verdict["seq"]


def landed_after_it_was_withdrawn(story: Story) -> None:
    landing = story.find("landing", entry="a-1")
    story.add("merge-queue", "user", "cancel", "a", entry="a-1")
    for line in story.lines:
        if line["journal"] == "merge-queue" and landing["seq"] <= line["seq"]:
            line["seq"] += 1
    story.find("cancel", entry="a-1")["seq"] = landing["seq"] - 1


def overlapping_attempts(story: Story) -> None:
    """Start the runner of the second attempt before the first one has reported its end."""
    del story.find("signal", node="c")["data"]["incarnation"]


FORGERIES: dict[str, tuple[Promise, str, Callable[[Story], Any]]] = {
    # tested
    "no gate run attested the tip": (Promise.TESTED, "had not passed the gate", lambda s: s.attested.remove(
        next(line for line in s.attested if s.tree("batch") in line))),
    "the gate run of the tip was red": (Promise.TESTED, "had not passed the gate", lambda s: s.attested.__setitem__(
        -1, s.attested[-1].replace(" 0 0", " 1 0"))),
    "the gate run of the tip timed out": (Promise.TESTED, "had not passed the gate", lambda s: s.attested.__setitem__(
        -1, s.attested[-1].replace(" 0 0", " 0 1"))),
    "a batch landed as a chain": (Promise.TESTED, "landed with b-1", untested_inside),
    "another tree landed": (Promise.TESTED, "landed with b-1", another_tree),
    "no verdict is recorded": (Promise.TESTED, "landed with a-1", lambda s: s.drop("verdict", entry="a-1")),
    "the verdict was red": (Promise.TESTED, "landed with a-1", lambda s: s.find("verdict", entry="a-1")["data"].update(
        result="red")),
    "the verdict came after the landing": (Promise.TESTED, "landed with a-1", verdict_after_landing),
    "the gate ran on another commit": (Promise.TESTED, "checked out, whose tree is", lambda s: s.attested.append(
        f"{s.commits['work a']} {s.tree('batch')} 0 0")),
    "the commit that landed is missing": (Promise.TESTED, "is not in the repository", lambda s: s.find(
        "landing", entry="a-1")["data"].update(new="1" * 40)),
    # once
    "an entry landed twice": (Promise.ONCE, "a-1 was recorded as landed 2 times", lambda s: s.after(
        s.find("landed", entry="a-1"))),
    "an entry is twice in the history": (Promise.ONCE, "a-1 is 2 times in the history", lambda s: s.git(
        "update-ref", "refs/heads/main", s.commit("again", "abc", s.commits["batch"], s.commits["work a"],
                                                  entries=("a-1",)))),
    "a node started from the work of another": (Promise.ONCE, "with which a started: no attempt", lambda s: s.add(
        "runner-a", "runner-a@r#1", "fact", "a", name="base", value=s.commits["work a"], attempt=1)),
    "an entry was enqueued twice": (Promise.ONCE, "a-1 was enqueued twice", lambda s: s.after(
        s.find("enq", entry="a-1"))),
    "a landed entry was cancelled": (Promise.ONCE, "a-1 was landed and became cancelled", lambda s: s.add(
        "merge-queue", "user", "cancel", "a", entry="a-1")),
    "a landed entry was tried again": (Promise.ONCE, "a-1 was landed and became queued", lambda s: s.add(
        "merge-queue", "user", "retry", "a", entry="a-1")),
    "a withdrawn entry landed": (Promise.ONCE, "a-1 was cancelled and became landing", landed_after_it_was_withdrawn),
    "landed without an intent": (Promise.ONCE, "a-1 was recorded as landed without an intent", lambda s: s.drop(
        "landing", entry="a-1")),
    "recorded as landed before": (Promise.ONCE, "a-1 was recorded as being on the target already", lambda s: (
        s.drop("landing", entry="a-1"),
        s.find("landed", entry="a-1")["data"].update(old=s.commits["base"], commit=s.commits["base"]))),
    "the target lost a landing": (Promise.ONCE, "which main does not contain", lambda s: s.git(
        "update-ref", "refs/heads/main", s.commits["merge a"])),
    "a landing took back another": (Promise.ONCE, "which landed b-1, lacks", lambda s: s.find(
        "landing", entry="b-1")["data"].update(old=s.commit("beside", "x", s.commits["base"]))),
    "a landing is not recorded": (Promise.ONCE, "its merge entry c-2 is landing", lambda s: s.drop(
        "landed", entry="c-2")),
    "a rejected entry is in the history": (Promise.ONCE, "c-1 is in the history of main and recorded as rejected",
                                           lambda s: s.git("update-ref", "refs/heads/main", s.commit(
                                               "slipped in", "abc", s.commits["batch"], s.commits["work c1"],
                                               entries=("c-1",)))),
    "a node failed without a reason": (Promise.ONCE, "a failed and no reason", lambda s: s.find(
        "node", node="a", status="validated")["data"].update(status="failed")),
    "a node is recorded as landed and its entry is not": (Promise.ONCE, "its merge entry a-1 is rejected", lambda s: (
        s.drop("landed", entry="a-1"), s.add("merge-queue", "x", "state", "a", entry="a-1", status="rejected"))),
    "a node is recorded as landed and was never enqueued": (
        Promise.ONCE, "d is recorded as landed and was never enqueued", lambda s: [
            s.add("guardian", "guardian-r@r#1", "node", "d", node="d", status=status, attempt=1, step="d#1:1")
            for status in ("active", "validated")]),
    "the run is done and a node works": (Promise.ONCE, "the run is done and b is active", lambda s: s.drop(
        "node", node="b", status="validated")),
    "the run is done and an entry waits": (Promise.ONCE, "its merge entry a-2 is queued", lambda s: s.enqueue(
        "a", 2, s.commits["work a"])),
    "the run is done and continues": (Promise.ONCE, "the run was done and became running", lambda s: (
        s.add("guardian", "guardian-r@r#1", "run", status="running"),
        s.add("guardian", "guardian-r@r#1", "run", status="stopped"))),
    # lives
    "a successor before the end": (Promise.LIVES, "orchestrator-b@r got incarnation 2 while 1", lambda s: (
        s.drop("death", incarnation=1), s.drop("fenced", incarnation=1))),
    "the next attempt before the end of the last": (
        Promise.LIVES, "runner-c@r got incarnation 2 while 1 had not ended", overlapping_attempts),
    "the same life twice": (Promise.LIVES, "orchestrator-b@r was started as incarnation 2 after 2", lambda s: s.after(
        s.find("spawn", full="orchestrator-b@r", incarnation=2))),
    "a life came back": (Promise.LIVES, "runner-c@r was started as incarnation 1 after 2", lambda s: s.after(
        s.find("spawn", full="runner-c@r", incarnation=1))),
    "two runners of one node": (Promise.LIVES, "runner-a@r got incarnation 2 while 1", lambda s: s.after(
        s.find("spawn", full="runner-a@r"), incarnation=2)),
    "two guardians": (Promise.LIVES, "guardian-r@r got incarnation 2 while 1", lambda s: s.after(
        s.find("spawn", full="guardian-r@r"), incarnation=2)),
    "a fenced writer wrote": (Promise.LIVES, "guardian-r@r wrote as incarnation 1 after 2 had", lambda s: (
        s.add("guardian", "guardian-r@r#2", "open", incarnation=2), s.add("guardian", "guardian-r@r#1", "note"))),
    "a fenced processor wrote": (Promise.LIVES, "processor-r@r wrote as incarnation 1 after 2 had", lambda s: (
        s.add("merge-queue", "processor-r@r#2", "lease"), s.add("merge-queue", "processor-r@r#1", "resume"))),
    # kept
    "rejected work is gone": (Promise.KEPT, "which c-1 enqueued, is rejected and no ref keeps it", lambda s: (
        s.git("update-ref", "-d", "refs/garrison/mq/c-1/head"),
        s.git("update-ref", "-d", "refs/garrison/rescue/r/c/1"))),
    "an enqueued commit never existed": (Promise.KEPT, "which a-1 enqueued", lambda s: s.find(
        "enq", entry="a-1")["data"].update(oid="2" * 40)),
    "landed work left the target": (Promise.KEPT, "which b-1 enqueued, is landed and no ref keeps it", lambda s: s.git(
        "update-ref", "refs/heads/main", s.commits["merge a"])),
    "saved work of a failed node is gone": (Promise.KEPT, "in which work of c was saved, is gone", lambda s: (
        s.find("node", node="c", status="validated")["data"].update(status="failed", reason="red"),
        s.git("update-ref", "-d", "refs/garrison/rescue/r/c/1"))),
    # limits
    "an agent was restarted too often": (Promise.LIMITS, "orchestrator-b@r died 5 times in attempt 1", lambda s: [
        s.after(s.find("death")) for _ in range(4)]),
    "a node was reworked too often": (Promise.LIMITS, "c was started 5 times", lambda s: [
        s.after(s.find("signal", node="c")) for _ in range(3)]),
    "an attempt went back": (Promise.LIMITS, "c went from attempt 3 back to 1", lambda s: [
        s.after(s.find("node", node="c", status=status), attempt=attempt)
        for status, attempt in (("active", 3), ("validated", 1))]),
    # money
    "a node was called on after its limit": (Promise.MONEY, "a continued to call a model after $1.2000 of its $1.0000",
                                             lambda s: s.pay("a", "s1", 0.1)),
    "a session that was resumed forgot what it had spent": (
        Promise.MONEY, "a continued to call a model after $1.2000", lambda s: s.pay("a", "s9", 0.4, 0.1)),
    "a run was called on after its limit": (Promise.MONEY, "of its $3.0000 were spent", lambda s: [
        s.pay(node, "s", 0.9, 0.1) for node in "cde"]),
    # record
    "a record is doubled": (Promise.RECORD, "guardian has record 1 twice", lambda s: s.lines.append(
        s.find("run", status="running"))),
    "a record of a queue is doubled": (Promise.RECORD, "merge-queue has record 2 twice", lambda s: s.lines.append(
        s.find("test", entry="a-1"))),
    "no launch is recorded": (Promise.RECORD, "no launch is recorded", lambda s: s.drop("launch")),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_broken_promise_is_found_for_its_own_reason(story: Story, forgery: str) -> None:
    promise, reason, spoil = FORGERIES[forgery]
    spoil(story)
    found = story.findings()
    assert [line for line in found if line.startswith(f"{promise.value}: ") and reason in line], found


def test_work_already_on_the_target_lands_without_moving_it(story: Story) -> None:
    there = [story.commits["work a"], story.commit("the same changes", "abc", story.commits["base"])]
    story.git("update-ref", "refs/heads/d", there[1])
    for attempt, oid in enumerate(there, 1):
        story.enqueue("d", attempt, oid)
        tip = story.git("rev-parse", "main")
        story.add("merge-queue", "processor-r@r#1", "landed", "d", entry=f"d-{attempt}", old=tip, commit=tip)
    assert story.findings() == []
    story.git("update-ref", "-d", "refs/heads/d")


def test_a_recorded_undo_of_the_user_is_no_finding(story: Story) -> None:
    story.git("update-ref", "refs/heads/main", story.commits["merge a"])
    for work in ("work b", "work c"):
        story.git("update-ref", f"refs/kept/{work[-1]}", story.commits[work])
    story.add("merge-queue", "guardian-r@r#1", "undone", entry="b-1", entries=["b-1", "c-2"], tip="", reason="moved")
    assert story.findings() == []


def test_every_promise_has_a_forgery() -> None:
    """For leftovers of an ended run there are the tests below."""
    assert {promise for promise, _, _ in FORGERIES.values()} == set(Promise) - {Promise.CLEAN}


def test_a_worktree_of_a_landed_node_is_found(story: Story) -> None:
    tree = story.root / "trees/r/a"
    story.git("worktree", "add", "-q", "--detach", str(tree), story.commits["base"])
    try:
        assert story.findings() == [f"clean: the worktree {tree} of a landed node is still there"]
    finally:
        story.git("worktree", "remove", "--force", str(tree))


def test_a_process_with_the_marker_of_an_ended_run_is_found(story: Story, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"], env={"PATH": os.environ["PATH"], "GARRISON_LIFE":
                                                 f"{tmp_path}:r:orchestrator-a#1"}) as child:
        try:
            found = check(read_events(map(json.dumps, story.lines)), CheckedRepository(story.repo), home=tmp_path)
        finally:
            child.kill()
    assert [str(one) for one in found] == [
        f"clean: process {child.pid} of {tmp_path}:r:orchestrator-a#1 is still there"]


def test_a_start_may_record_the_graceful_end_of_the_previous_incarnation(story: Story) -> None:
    overlapping_attempts(story)
    story.find("spawn", full="runner-c@r", incarnation=2)["data"]["why"] = "attempt 2; it had ended gracefully (done)"
    assert story.findings() == []


def test_without_attestations_the_verdicts_count(story: Story) -> None:
    history = read_events(map(json.dumps, story.lines))
    assert check(history, CheckedRepository(story.repo)) == []
    later = read_attestations(["since 2027-01-01T00:00:00Z\n"])
    assert check(history, CheckedRepository(story.repo), later) == []
    assert check(history, CheckedRepository(story.repo), read_attestations([f"since {SINCE}\n"]))


def test_a_run_in_progress_need_not_be_complete(story: Story) -> None:
    story.drop("run", status="done")
    story.drop("node", node="b", status="validated")
    story.enqueue("a", 2, story.commits["work a"])
    assert story.findings() == []


@pytest.mark.parametrize("spoil", [
    lambda lines, tree: [line[:len(line) // 2] for line in lines],
    lambda lines, tree: ["\0" * len(line) for line in lines],
    lambda lines, tree: [line.replace(f" {tree}", f" {'1' if tree[0] == '0' else '0'}{tree[1:]}") for line in lines],
    lambda lines, tree: [line.replace(tree, tree[:20]) for line in lines]],
    ids=["halved", "zeros", "a letter", "a name"])
def test_damaged_attestations_are_no_finding(story: Story, spoil: Callable[[list[str], str], list[str]]) -> None:
    texts = ["\n".join(spoil([f"since {SINCE}", *story.attested], story.tree("merge a")))]
    damaged = read_attestations([*texts, f"since {SINCE}\n"])
    with pytest.raises(UnreadableAttestations, match="is damaged and cannot tell whether"):
        check(read_events(map(json.dumps, story.lines)), CheckedRepository(story.repo), damaged)


def test_torn_attestations_are_told_apart_and_a_line_that_is_no_event_is_named() -> None:
    attested = read_attestations([f"since {SINCE}\n{'a' * 40} {'b' * 40} 0 0\nabc de", f"since {SINCE}\nx\n"])
    assert (len(attested.runs), attested.damaged) == (1, ("abc de", "x"))
    assert attested.since == SINCE
    with pytest.raises(UnreadableHistory, match="line 2"):
        read_events(['{"at":"","journal":"","by":"","seq":1,"kind":"","node":"","data":{}}', "{}"])
    with pytest.raises(UnreadableSpending, match="line 2"):
        read_spending(['{"node":"a","attempt":1,"session":"s","kind":"call","at":"","usd":1}', '{"node":"a"}'])
