from __future__ import annotations

import contextlib
import io
import json
import threading
from types import SimpleNamespace

import pytest
from merge_support import await_gate, check, drive, git, until

from garrison.cli import merge_queue_process, original_calls
from garrison.cli.main import main
from garrison.launch.launch import describe_foreign_entries, foreign_entries_note
from garrison.merge.config import QueueConfig
from garrison.merge.records import LandingStarted, StatusChanged
from garrison.processes.runtime import Runtime as Outside
from garrison.records import hook as hooks
from garrison.records import run as run_records
from garrison.records import signals
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.run import Launch, RunFiles
from garrison.records.store import Store
from garrison.values import replace
from support import DEADLINE


@pytest.fixture
def world(world_of_user):
    return world_of_user


def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["merge-queue", *map(str, arguments)])
    return SimpleNamespace(exit_code=code, stdout=out.getvalue(), stderr=err.getvalue())


enqueue, process_next = map(original_calls.as_original, (merge_queue_process.enqueue, merge_queue_process.process_next))


def test_an_empty_queue_is_processed_with_success_even_without_a_gate(world):
    git(world.repo, "branch", "other")
    for result in (call("process"), call("process", "--target", "other")):
        assert (result.exit_code, json.loads(result.stdout)) == (0, {"success": True, "entry": None, "error": None})
    assert process_next() == {"success": True, "entry": {}, "error": None}


def test_enqueue_list_process_show(world):
    world.branch("one", {"one.txt": "1\n"})
    world.branch("bad", {"bad": "x\n"})
    enqueued = json.loads(call("enqueue", "one", "one").stdout)
    assert (enqueued["status"], enqueued["entry"]["node_id"], enqueued["entry"]["status"]) == ("ok", "one", "queued")
    json.loads(call("enqueue", "bad", "bad", "--repo-root", str(world.repo), "--target", "main").stdout)
    listed = json.loads(call("list", "--json").stdout)
    assert [entry["node"] for entry in listed["entries"]] == ["one", "bad"]
    assert listed["last_updated"].endswith("Z")
    done = call("process")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["entry"]["status"] == "landed"
    done = call("process")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["success"] is False
    assert "failed (exit 1)" in json.loads(done.stdout)["error"]
    assert json.loads(call("show", enqueued["entry"]["id"]).stdout)["status"] == "landed"
    assert call("show", "nothing").exit_code == 1
    assert "landed" in call("list").stdout
    listed = json.loads(call("list", "--json", "--repo-root", str(world.repo)).stdout)
    assert (listed["entries"][1]["status"], listed["entries"][1]["attempt"]) == ("rejected", 1)
    again = enqueue("bad", "bad")["entry"]
    assert (again["attempt"], again["status"]) == (2, "queued"), "a failed branch is enqueued again by hand"
    check(world)


def test_without_a_gate_process_fails_with_a_message_and_leaves_the_entry(world):
    git(world.repo, "branch", "other")
    world.branch("one", {"one.txt": "1\n"})
    call("enqueue", "one", "one", "--target", "other")
    result = call("process")
    assert result.exit_code == 1
    assert "--gate" in json.loads(result.stdout)["error"]
    assert "--gate" in result.stderr
    assert json.loads(call("list", "--json").stdout)["entries"][0]["status"] == "queued"
    assert json.loads(call("process", "--no-gate").stdout)["entry"]["status"] == "landed"


def test_drain_works_all_and_another_gate_is_refused(world):
    for name in ("one", "bad", "two"):
        world.branch(name, {name: "x\n"})
        enqueue(name, name)
    refused = call("process", "--gate", "make")
    assert refused.exit_code == 1
    assert "test ! -e bad" in json.loads(refused.stdout)["error"]
    result = call("process", "--drain")
    assert result.exit_code == 1
    assert [json.loads(part + "}")["success"] for part in result.stdout.split("\n}") if part.strip()] == [
        True, False, True]
    assert "garrison: the gate `test ! -e bad" in result.stderr and result.stderr.endswith("` failed (exit 1)\n")
    ids = []
    for name in ("worse", "worst"):
        world.branch(name, {name: "x\n", "bad": f"{name}\n"})
        ids.append(enqueue(name, name)["entry"]["id"])
    assert call("process", "--drain").stderr.endswith(f"garrison: 2 entries did not land: {', '.join(ids)}\n")


def test_process_waits_for_a_running_processor_and_names_it(world):
    open_ = world.witness.with_name("open")
    world.queue.configure(QueueConfig(f"until test -e {open_}; do sleep 0.02; done"))
    world.branch("one", {"one.txt": "1\n"})
    enqueue("one", "one")
    processor = world.processor()
    await_gate(processor)
    refused = process_next(wait=False)
    assert refused["success"] is False
    assert "test is processing this queue" in refused["error"]
    said, found = [], []
    waiter = threading.Thread(target=lambda: found.append(process_next(report=said.append)))
    waiter.start()
    until(lambda: said, "it says who works")
    open_.touch()
    drive(processor)
    waiter.join(DEADLINE)
    processor.close()
    assert said[0].startswith("test is processing this queue")
    assert found[0]["entry"]["status"] == "landed"


def test_processing_by_hand_signals_the_runner_too(world):
    world.add("one")
    assert process_next(report=lambda line: None)["success"]
    signalled = [posted.signal for posted in signals.list_pending(world.home, Key("runner", "one", "r"))]
    assert [signal.signal_type for signal in signalled] == ["VALIDATION_PASSED", "MERGE_COMPLETE"]
    landed = signalled[1]
    assert (landed.node_id, landed.attempt, landed.id) == ("one", 1, f"mq-{world.queue.state.seq}-MERGE_COMPLETE")


def test_an_entry_is_withdrawn_while_it_waits_and_not_later(world, tmp_path):
    for name in ("one", "two"):
        world.branch(name, {name: "x\n"})
    one, two = (enqueue(name, name)["entry"]["id"] for name in ("one", "two"))
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "-q")
    git(tmp_path / "other", "commit", "-q", "--allow-empty", "-m", "x")
    elsewhere = call("cancel", one, "--repo-root", tmp_path / "other")
    assert (elsewhere.exit_code, "leave --repo-root out" in elsewhere.stderr) == (1, True)
    done = call("cancel", one, "--repo-root", world.repo)
    assert (done.exit_code, json.loads(done.stdout)["entry"]["status"]) == (0, "cancelled")
    assert process_next()["entry"]["id"] == two
    for entry, why in ((one, "is cancelled"), (two, "is landed"), ("nothing", "no merge entry nothing")):
        refused = call("cancel", entry)
        assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
        assert why in refused.stderr
    assert git(world.repo, "rev-parse", "--verify", "one"), "its branch stays"
    check(world)


def test_a_landing_entry_is_not_withdrawn(world):
    world.branch("one", {"one": "x\n"})
    entry = enqueue("one", "one")["entry"]["id"]
    tip = world.tip()
    with world.queue.locked():
        world.queue.append(StatusChanged((entry,), "candidate", base=tip, trees=("t",), commits=(tip,)))
        world.queue.append(LandingStarted((entry,), tip, tip, (tip,)))
    refused = call("cancel", entry)
    assert (refused.exit_code, "is landing" in refused.stderr) == (1, True)


def adhoc(world, node, status):
    """Create what an ad-hoc run leaves whose runner is `status`: its records and its enqueued branch."""
    run = f"adhoc-{node}"
    store, key, at = Store(world.home), Key("runner", node, run), "2026-01-01T00:00:00.000000Z"
    run_records.save(RunFiles(world.home, run).launch,
                     Launch(run, f"adhoc-{node}", str(world.repo), "main", at, str(world.trees), adhoc=True))
    store.update(Identity, key, lambda _: Identity("id", "runner", node, run, at, status=status,
                                                   last_heartbeat="2999-01-01T00:00:00.000000Z"))
    store.update(Hook, key, lambda _: Hook("h", "runner", node, run, at, at, phase="validating"))
    world.branch(f"garrison/{run}/{node}", {node: "x\n"})
    return world.queue.enqueue(run, node, 1, f"garrison/{run}/{node}", recipient=key.full), store, key


def test_an_ad_hoc_run_is_cleaned_up_once_it_landed_and_its_runner_ended(world):
    entry, store, key = adhoc(world, "n", "active")
    assert process_next(report=lambda line: None)["success"]
    assert git(world.repo, "rev-parse", f"refs/heads/{entry.branch}") == entry.oid, "its runner is alive"
    store.update(Identity, key, lambda old: replace(old, status="terminated"))
    assert process_next() == {"success": True, "entry": {}, "error": None}
    assert git(world.repo, "for-each-ref", "--format=%(refname)", "refs/heads/garrison", "refs/garrison/archive") == (
        "refs/garrison/archive/adhoc-n/n")
    assert store.get(Hook, key).phase == "merged"
    assert hooks.PHASES["merged"] == frozenset()
    moved, store, key = adhoc(world, "m", "terminated")
    world.branch(moved.branch, {"more": "x\n"}, start=moved.branch)
    assert process_next(report=lambda line: None)["success"]
    assert git(world.repo, "rev-parse", "--verify", f"refs/heads/{moved.branch}"), "it went on after it was enqueued"


def test_a_launch_names_foreign_entries_that_will_land_with_it(world):
    entry, store, key = adhoc(world, "n", "active")
    launch = Launch("r9", "p", str(world.repo), "main", "", str(world.trees))
    outside = Outside.real(world.home)
    assert foreign_entries_note(outside, launch) == "", "that run is in progress"
    store.update(Identity, key, lambda old: replace(old, status="terminated"))
    told = foreign_entries_note(outside, launch)
    assert told.count("\n") == 0
    assert f"{entry.id} ({entry.branch})" in told
    assert "merge-queue cancel" in told
    assert foreign_entries_note(outside, replace(launch, run_id=entry.run)) == "", "its own"
    assert "and 2 more" in describe_foreign_entries([entry] * 7)
