"""Commands of the queue as users and other tools use them: on any repository, with only a home."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from click.testing import CliRunner
from merge_support import check, git
from test_merge_cli import call

from garrison.cli.doctor import doctor as garrison_doctor
from garrison.cli.main import main
from garrison.cli.merge_queue_process import process
from garrison.merge import commands, recovery
from garrison.merge.queue import PINS
from garrison.merge.records import LandingStarted, VerdictGiven


@pytest.fixture
def world(world_of_user):
    for name in ("one", "two", "three"):
        world_of_user.branch(name, {f"{name}.txt": "x\n"})
    return world_of_user


def run_json(*arguments, code=0):
    done = call(*arguments)
    assert done.exit_code == code, done.stderr
    return json.loads(done.stdout)


def doctor(*arguments):
    return json.loads(CliRunner().invoke(garrison_doctor, list(arguments)).stdout)


def refused(*arguments, code=1):
    """Return the one line on stderr of a refused command."""
    done = call(*arguments)
    assert (done.exit_code, done.stdout) == (code, ""), done.stderr
    assert code == 2 or (done.stderr.startswith("garrison: ") and done.stderr.count("\n") == 1)
    return done.stderr


def test_an_entry_from_enqueue_to_landed_by_hand(world):
    one = run_json("enqueue", "one", "one", "--priority", "2", "--strategy", "squash", "--json")["entry"]
    two = run_json("enqueue", "two", "two", "--depends-on", "one")["entry"]
    three = run_json("enqueue", "three", "three")["entry"]
    assert (one["priority"], one["strategy"], two["depends_on"]) == (2, "squash", [one["id"]])
    assert run_json("hold", "one", "--reason", "wait for\nit")["entry"]["reason"] == "wait for it"
    listed = call("list").stdout
    assert "[priority 2, squash] wait for it" in listed
    assert f"waits for {one['id']} (held)" in listed
    assert run_json("show", "two")["waits_for"] == [one["id"]]
    assert run_json("pause", "--reason", "lunch")["pause"]["detail"] == "lunch"
    assert run_json("list", "--json")["queues"][0]["pause"] == {
        "reason": "asked", "detail": "lunch", "log": "", "retry_at": None}
    assert "paused: lunch" in run_json("process", code=1)["error"]
    assert run_json("unpause")["was"]["detail"] == "lunch"
    assert "was not paused" in call("unpause").stderr
    assert run_json("process")["entry"]["id"] == three["id"]
    assert f"{two['id']} waits for {one['id']} (held)" in run_json("process", code=1)["error"]
    assert run_json("release", one["id"])["entry"]["status"] == "queued"
    assert "queued" in refused("retry", "one")
    drained = call("process", "--drain")
    assert (drained.exit_code, drained.stdout.count('"landed"')) == (0, 2)
    log = run_json("log", "--json")["landed"]
    assert [row["node"] for row in log] == ["two", "one", "three"]
    assert all(git(world.repo, "rev-parse", f"{row['commit']}^{{tree}}") == row["tested"]["tree"] for row in log
               if row["together"] == 1)
    assert len(call("log", "-n", "1").stdout.splitlines()) == 2
    assert call("log").stdout.count(" by ") == 3


def test_at_a_terminal_commands_answer_in_sentences(world, monkeypatch, capsys):
    """The commands that the sentences offer can be typed as they are."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    def told(*words):
        assert main(["merge-queue", *words]) == 0
        return capsys.readouterr().out.removesuffix("\n")

    enqueued = told("enqueue", "one")
    entry = enqueued.split(" as ")[1].partition(";")[0]
    assert enqueued == (f"one waits to land on main as {entry}; `garrison merge-queue process --target main` tests and "
                        "lands it")
    assert told("show", "one").splitlines() == [f"{entry}: one at {git(world.repo, 'rev-parse', 'one')[:10]} for main",
                                                "queued"]
    held = told("hold", "one")
    assert held == f"one ({entry}) is held; `garrison merge-queue release {entry}` lets it land"
    assert told(*shlex.split(held.split("`")[1])[2:]) == f"one ({entry}) waits for its turn again"
    paused = told("pause")
    assert told(*shlex.split(paused.split("`")[1])[2:]) == "landings on main continue"
    landed = told(*shlex.split(enqueued.split("`")[1])[2:])
    assert landed == f"one has landed on main as {world.tip()[:10]}"
    assert told("show", "one").splitlines()[1] == f"landed as {world.tip()[:10]}"
    assert told("process") == "nothing waits to land"


def test_a_failed_entry_is_retried_and_conflicts_are_shown_in_advance(world):
    world.branch("a", {"lines.txt": "a\n"})
    world.branch("b", {"lines.txt": "b\n"})
    for name in ("a", "b", "one"):
        run_json("enqueue", name, name)
    ids = [entry["id"] for entry in run_json("list", "--json")["entries"]]
    matrix = run_json("conflicts", "--json")
    assert (matrix["entries"], matrix["tip"]) == (ids, world.tip())
    assert [(one["entry"], one["against"], one["files"]) for one in matrix["conflicts"]] == [
        (ids[1], ids[0], ["lines.txt"])]
    assert "lines.txt" in call("conflicts").stdout
    call("process", "--drain")
    assert run_json("show", "b")["files"] == ["lines.txt"]
    again = run_json("retry", "b")["entry"]
    assert (again["attempt"], again["status"]) == (2, "queued")
    assert [one["against"] for one in run_json("conflicts", "--json")["conflicts"]] == ["main"]
    assert run_json("cancel", "b")["entry"]["id"] == again["id"]
    assert "no conflicts among 0 waiting" in call("conflicts").stderr


def test_a_branch_with_an_unrelated_history_is_listed_once(world):
    world.branch("strange", {"strange.txt": "x\n"}, start="")
    for name in ("strange", "one", "two"):
        call("enqueue", name, name)
    pairs = run_json("conflicts", "--json")["conflicts"]
    assert [(one["entry"].split("-")[0], one["against"]) for one in pairs if not one["files"]] == [("strange", "main")]
    assert "no commit in common" in pairs[0]["reason"]
    check(world)


def test_the_configuration_is_shown_and_changed(world):
    assert run_json("config", "--json")["strategy"] == "merge"
    assert "gate_cores" in call("config").stdout
    config = run_json("config", "--strategy", "rebase", "--timeout", "9", "--clean", "none", "--keep", "*.o", "--setup",
                      "true", "--lock-file", "a.lock", "--gate-cores", "1")
    expected = {"strategy": "rebase", "timeout": 9.0, "clean": "none", "keep": ["*.o"], "setup": "true",
                "lock_files": ["a.lock"]}
    assert {key: config[key] for key in expected} == expected
    assert run_json("config", "--keep", "", "--setup", "")["keep"] == []
    assert run_json("enqueue", "one", "one")["entry"]["strategy"] == "rebase"
    assert run_json("config", "--no-gate")["gate"] is None
    assert run_json("process")["entry"]["status"] == "landed"
    assert call("log").stdout.splitlines()[1].endswith("no gate")


def test_misuse_is_one_clear_line(world):
    for arguments, code, words in (
            (("enqueue", "one", "no-such-branch"), 1, "no branch no-such-branch"),
            (("enqueue", "bad name", "main"), 2, "bad name"), (("process", "--once", "--drain"), 2, "mutually"),
            (("enqueue", "one", "main", "--target", "nowhere"), 1, "nowhere"),
            (("enqueue", "n", "one", "--strategy", "octopus"), 2, "octopus"),
            (("enqueue", "n", "one", "--priority", "99"), 2, "99"),
            (("enqueue", "n", "one", "--depends-on", "unknown"), 1, "no node unknown"),
            (("enqueue", "n", "one", "--target", "nowhere:main"), 1, "no remote nowhere"),
            (("enqueue", "n", "one", "--target", ":main"), 2, "not a branch"),
            (("hold", "unknown"), 1, "no merge entry unknown"), (("release", "unknown"), 1, "no merge entry unknown"),
            (("retry", "unknown"), 1, "no merge entry unknown"), (("lits",), 2, "did you mean 'list'"),
            (("config", "--gate", "a", "--no-gate"), 2, "mutually exclusive"),
            (("config", "--timeout", "0"), 2, "timeout"),
            (("process", "--watch", "--drain"), 2, "mutually exclusive"),
            (("process", "--watch", "--no-wait"), 2, "omit --no-wait"),
            (("log", "-n", "0"), 2, "-n"), (("conflicts", "--target", "nowhere"), 1, "does not exist")):
        assert words in refused(*arguments, code=code)


def test_several_queues_of_a_repository_are_distinguished(world):
    git(world.repo, "branch", "next")
    run_json("enqueue", "one", "one")
    run_json("enqueue", "one", "one", "--target", "next")
    assert "several entries" in refused("cancel", "one")
    assert "main, next" in refused("pause")
    assert run_json("pause", "--target", "next")["target"] == "next"
    assert run_json("process")["success"]
    assert "paused" in run_json("process", code=1)["error"]


def test_watching_continues_after_the_queue_was_empty(world, monkeypatch):
    config = []
    run_json("enqueue", "one", "one")
    commands.pause(world.queue)

    def nap(_seconds):
        if commands.resume(world.queue) is None:
            run_json("enqueue", "two", "two")

    monkeypatch.setattr("garrison.cli.merge_queue_process.time.sleep", nap)
    results = process(watch=True, report=config.append)
    assert [next(results).entry.node for _ in range(2)] == ["one", "two"]
    assert "paused" in config[0]
    results.close()
    assert not world.queue.is_processor_running()


def test_doctor_repairs_what_a_crash_left_and_reports_it(world):
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
    problems = [finding["finding"] for finding in doctor("--json") if finding["check"] == "merge queue"]
    assert [text.partition(": ")[2] for text in problems] == [
        "an incomplete record at the end of the journal", f"{two.id} is not pinned at {two.oid[:10]}",
        f"the landing of {one.id} is not settled, and no processor runs"]
    found = run_json("doctor", "--json")["findings"]
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
    assert "`garrison doctor --fix`" in listed.stderr
    assert [(finding["remedy"], finding["outcome"]) for finding in doctor("--fix", "--json", "--repo", str(world.repo))
            if finding["check"] == "files"] == [("rebuild", "fixed")]
    assert "no problems in the queue" in call("doctor").stderr
