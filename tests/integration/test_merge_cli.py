from __future__ import annotations

import json
import os
import threading

import pytest
from click.testing import CliRunner
from merge_support import World, check, drive, git, until

from garrison.cli.merge_queue_cmd import enqueue, merge_queue, process_next
from garrison.merge.processor import Wait
from garrison.merge.state import Config
from garrison.records import signals
from garrison.records.names import Key


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    monkeypatch.setenv("GARRISON_HOME", str(world.home))
    monkeypatch.setenv("GARRISON_TREES", str(world.trees))
    monkeypatch.chdir(world.repo)
    return world


def call(*arguments):
    result = CliRunner().invoke(merge_queue, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


EMPTY = {"success": True, "entry": None, "error": None}


def test_an_empty_queue_is_processed_with_success_even_without_a_gate(world):
    git(world.repo, "branch", "other")
    assert json.loads(call("process").stdout) == EMPTY
    result = call("process", "--target", "other")
    assert (result.exit_code, json.loads(result.stdout)) == (0, EMPTY)
    assert process_next() == EMPTY


def test_enqueue_list_process_show(world):
    world.branch("one", {"one.txt": "1\n"})
    world.branch("bad", {"bad": "x\n"})
    told = json.loads(call("enqueue", "one", "one").stdout)
    assert (told["status"], told["entry"]["node_id"], told["entry"]["status"]) == ("ok", "one", "queued")
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
    assert "exit code 1" in json.loads(done.stdout)["error"]
    assert json.loads(call("show", told["entry"]["id"]).stdout)["status"] == "landed"
    assert call("show", "nothing").exit_code == 1
    assert "landed" in call("list").stdout
    listed = json.loads(call("list", "--json", "--repo-root", str(world.repo)).stdout)
    assert listed["entries"][1]["status"] == "rejected"
    check(world)


def test_a_failed_branch_is_enqueued_again_by_hand(world):
    world.branch("bad", {"bad": "x\n"})
    first = enqueue("bad", "bad")["entry"]
    assert process_next()["success"] is False
    second = enqueue("bad", "bad")["entry"]
    assert (first["attempt"], second["attempt"], second["status"]) == (1, 2, "queued")


def test_without_a_gate_process_fails_says_so_and_leaves_the_entry(world):
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


def test_errors_are_one_line_and_usage_is_2(world):
    assert call("enqueue", "one", "no-such-branch").exit_code == 1
    assert "no branch no-such-branch" in call("enqueue", "one", "no-such-branch").stderr
    assert call("enqueue", "bad name", "main").exit_code == 2
    assert call("process", "--once", "--drain").exit_code == 2
    assert call("enqueue", "one", "main", "--target", "nowhere").exit_code == 1


def test_a_living_processor_is_waited_for_and_named(world):
    open_ = world.home / "open"
    world.queue.configure(Config(f"until test -e {open_}; do sleep 0.02; done"))
    world.branch("one", {"one.txt": "1\n"})
    enqueue("one", "one")
    processor = world.processor()
    until(lambda: isinstance(step := processor.step(), Wait) and step.kind == "gate", "a running gate")
    refused = process_next(wait=False)
    assert refused["success"] is False
    assert "test works this queue" in refused["error"]
    said, found = [], []
    waiter = threading.Thread(target=lambda: found.append(process_next(say=said.append)))
    waiter.start()
    until(lambda: said, "it says who works")
    open_.touch()
    drive(processor)
    waiter.join(30)
    processor.close()
    assert said[0].startswith("test works this queue")
    assert found[0]["entry"]["status"] == "landed"


def test_by_hand_the_runner_is_told_too(world):
    world.branch("one", {"one.txt": "1\n"})
    world.enqueue("one")
    assert process_next(say=lambda line: None)["success"]
    told = [posted.signal for posted in signals.pending(world.home, Key("runner", "one", "r"))]
    assert [signal.signal_type for signal in told] == ["VALIDATION_PASSED", "MERGE_COMPLETE"]
    assert (told[1].node_id, told[1].attempt, told[1].id) == ("one", 1, f"mq-{world.queue.state.seq}-MERGE_COMPLETE")
    assert os.environ["GARRISON_HOME"] == str(world.home)
