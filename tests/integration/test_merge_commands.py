"""The queue's commands as a person or an agent of another tool uses them: on any repository, with only a home."""

from __future__ import annotations

import json

import pytest
from merge_support import World, check, git
from test_merge_cli import call

from garrison.cli.merge_queue_process import process
from garrison.merge import commands, recovery
from garrison.merge.queue import PINS
from garrison.merge.records import LandingStarted, VerdictGiven


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    monkeypatch.setenv("GARRISON_HOME", str(world.home))
    monkeypatch.setenv("GARRISON_TREES", str(world.trees))
    monkeypatch.chdir(world.repo)
    for name in ("one", "two", "three"):
        world.branch(name, {f"{name}.txt": "x\n"})
    return world


def told(*arguments, code=0):
    """What a command prints as JSON."""
    done = call(*arguments)
    assert done.exit_code == code, done.stderr
    return json.loads(done.stdout)


def refused(*arguments, code=1):
    """The one line on stderr of a command that is refused."""
    done = call(*arguments)
    assert (done.exit_code, done.stdout) == (code, ""), done.stderr
    assert code == 2 or done.stderr.count("\n") == 1
    return done.stderr


def test_an_entrys_whole_way_by_hand(world):
    one = told("enqueue", "one", "one", "--priority", "2", "--strategy", "squash", "--json")["entry"]
    two = told("enqueue", "two", "two", "--depends-on", "one")["entry"]
    three = told("enqueue", "three", "three")["entry"]
    assert (one["priority"], one["strategy"], two["depends_on"]) == (2, "squash", [one["id"]])
    assert told("hold", "one", "--reason", "wait for\nit")["entry"]["reason"] == "wait for it"
    listed = call("list").stdout
    assert "[priority 2, squash] wait for it" in listed
    assert f"waits for {one['id']} (held)" in listed
    assert told("show", "two")["waits_for"] == [one["id"]]
    assert told("pause", "--reason", "lunch")["pause"]["detail"] == "lunch"
    assert told("list", "--json")["queues"][0]["pause"] == {"reason": "asked", "detail": "lunch", "log": ""}
    assert "paused: lunch" in told("process", code=1)["error"]
    assert told("resume")["was"]["detail"] == "lunch"
    assert "was not paused" in call("resume").stderr
    assert told("process")["entry"]["id"] == three["id"]
    assert f"{two['id']} waits for {one['id']} (held)" in told("process", code=1)["error"]
    assert told("release", one["id"])["entry"]["status"] == "queued"
    assert "queued" in refused("retry", "one")
    drained = call("process", "--drain")
    assert (drained.exit_code, drained.stdout.count('"landed"')) == (0, 2)
    log = told("log", "--json")["landed"]
    assert [row["node"] for row in log] == ["two", "one", "three"]
    assert all(git(world.repo, "rev-parse", f"{row['commit']}^{{tree}}") == row["tested"]["tree"] for row in log
               if row["together"] == 1)
    assert len(call("log", "-n", "1").stdout.splitlines()) == 2
    assert call("log").stdout.count(" by ") == 3


def test_what_failed_is_retried_and_a_conflict_is_told_before_it_happens(world):
    world.branch("a", {"lines.txt": "a\n"})
    world.branch("b", {"lines.txt": "b\n"})
    for name in ("a", "b", "one"):
        told("enqueue", name, name)
    ids = [entry["id"] for entry in told("list", "--json")["entries"]]
    matrix = told("conflicts", "--json")
    assert (matrix["entries"], matrix["tip"]) == (ids, world.tip())
    assert [(one["entry"], one["against"], one["files"]) for one in matrix["conflicts"]] == [
        (ids[1], ids[0], ["lines.txt"])]
    assert "lines.txt" in call("conflicts").stdout
    call("process", "--drain")
    assert told("show", "b")["files"] == ["lines.txt"]
    again = told("retry", "b")["entry"]
    assert (again["attempt"], again["status"]) == (2, "queued")
    assert [one["against"] for one in told("conflicts", "--json")["conflicts"]] == ["main"]
    assert told("cancel", "b")["entry"]["id"] == again["id"]
    assert "no conflicts among 0 waiting" in call("conflicts").stderr


def test_who_has_nothing_in_common_is_named_once(world):
    world.branch("strange", {"strange.txt": "x\n"}, start="")
    for name in ("strange", "one", "two"):
        call("enqueue", name, name)
    pairs = told("conflicts", "--json")["conflicts"]
    assert [(one["entry"].split("-")[0], one["against"]) for one in pairs if not one["files"]] == [("strange", "main")]
    assert "no commit in common" in pairs[0]["reason"]
    check(world)


def test_the_configuration_is_shown_and_said(world):
    assert told("config", "--json")["strategy"] == "merge"
    assert "gate_cores" in call("config").stdout
    said = told("config", "--strategy", "rebase", "--timeout", "9", "--clean", "none", "--keep", "*.o", "--setup",
                "true", "--lock-file", "a.lock", "--gate-cores", "1")
    assert (said["strategy"], said["timeout"], said["clean"], said["keep"], said["setup"], said["lock_files"]) == (
        "rebase", 9.0, "none", ["*.o"], "true", ["a.lock"])
    assert told("config", "--keep", "", "--setup", "")["keep"] == []
    assert told("enqueue", "one", "one")["entry"]["strategy"] == "rebase"
    assert told("config", "--no-gate")["gate"] is None
    assert told("process")["entry"]["status"] == "landed"
    assert call("log").stdout.splitlines()[1].endswith("no gate")


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (("enqueue", "n", "one", "--strategy", "octopus"), 2, "octopus"),
    (("enqueue", "n", "one", "--priority", "99"), 2, "99"),
    (("enqueue", "n", "one", "--depends-on", "nobody"), 1, "no node nobody"),
    (("enqueue", "n", "one", "--target", "nowhere:main"), 1, "no remote nowhere"),
    (("enqueue", "n", "one", "--target", ":main"), 2, "not a branch"),
    (("hold", "nobody"), 1, "no merge entry nobody"), (("release", "nobody"), 1, "no merge entry nobody"),
    (("retry", "nobody"), 1, "no merge entry nobody"), (("lits",), 2, "did you mean 'list'"),
    (("config", "--gate", "a", "--no-gate"), 2, "exclude"), (("config", "--timeout", "0"), 2, "timeout"),
    (("process", "--watch", "--drain"), 2, "exclude"), (("process", "--watch", "--no-wait"), 2, "leave --no-wait out"),
    (("log", "-n", "0"), 2, "-n"), (("conflicts", "--target", "nowhere"), 1, "does not exist")])
def test_misuse_is_one_clear_line(world, arguments, code, words):
    assert words in refused(*arguments, code=code)


def test_several_queues_of_a_repository_are_told_apart(world):
    git(world.repo, "branch", "next")
    told("enqueue", "one", "one")
    told("enqueue", "one", "one", "--target", "next")
    assert "several entries" in refused("cancel", "one")
    assert "main, next" in refused("pause")
    assert told("pause", "--target", "next")["target"] == "next"
    assert told("process")["success"]
    assert "paused" in told("process", code=1)["error"]


def test_watching_goes_on_after_the_queue_was_empty(world, monkeypatch):
    said = []
    told("enqueue", "one", "one")
    commands.pause(world.queue)

    def nap(_seconds):
        if commands.resume(world.queue) is None:
            told("enqueue", "two", "two")

    monkeypatch.setattr("garrison.cli.merge_queue_process.time.sleep", nap)
    results = process(watch=True, report=said.append)
    assert [next(results)["entry"]["node"] for _ in range(2)] == ["one", "two"]
    assert "paused" in said[0]
    results.close()
    assert not world.queue.processor_alive()


def test_doctor_mends_what_a_crash_left_and_says_so(world):
    one = world.enqueue("one")
    tip = world.tip()
    processor = world.processor()
    processor.step()
    candidate = world.entry("one").commit
    with world.queue.locked():
        world.queue.append(VerdictGiven((one.id,), "entry", world.entry("one").tree, "k", "green", "", ""))
        world.queue.append(LandingStarted((one.id,), tip, candidate, (candidate,)))
    processor.close()
    two = world.enqueue("two")
    git(world.repo, "update-ref", "-d", f"{PINS}/{two.id}/head")
    with world.queue.path.open("ab") as journal:
        journal.write(b'{"seq":99,"torn')
    found = told("doctor", "--json")["findings"]
    assert [one["mended"] for one in found] == [True, True, True]
    assert "an incomplete record" in found[0]["what"]
    assert f"pinned {two.id}" in found[1]["what"]
    assert f"settled the landing of {one.id}: landed" in found[2]["what"]
    assert world.tip() == candidate
    assert "no problems in the queue" in call("doctor").stderr
    (world.repo / ".git/refs/heads/main.lock").touch()
    world.queue.clock.time = lambda: 4e9
    assert [one.repaired for one in recovery.repair(world.queue, world.trees)] == [False]
    (world.repo / ".git/refs/heads/main.lock").unlink()
    whole = world.queue.path.read_bytes()
    world.queue.path.write_bytes(whole.replace(b'"seq":2,', b'"seq":3,', 1))
    listed = call("list")
    assert (listed.exit_code, listed.stdout) == (1, "")
    assert "damaged" in listed.stderr
    assert "`garrison merge-queue doctor`" in listed.stderr
    done = call("doctor")
    assert done.exit_code == 1
    assert "rebuilt the journal of main" in done.stdout
    assert "no problems in the queue" in call("doctor").stderr
