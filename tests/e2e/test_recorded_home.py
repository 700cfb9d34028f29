"""Homes of earlier versions (`recorded_home`), 0.1 and ed856ddb, are read whole, and what is unfinished in them is
finished."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from garrison.delegation.conversation import Conversation
from recorded_home import ARCHIVE, LATER, unpack
from support import CONFIG, Place, checkout_in, git, load, make_repository, wait_for

SCRIPTS = Path(__file__).parents[2] / "scripts"
BEFORE = {"finished": "done", "failed": "failed", "stopped": "stopped", "killed": "running"}
"""Run → its status in the journal."""
SHOWN = {**BEFORE, "killed": "interrupted"}
"""Run → its status in every view: no process of a recorded home is alive."""


def recorded(place: Place) -> Place:
    """Put the recorded home into a place."""
    shutil.rmtree(place.repo)
    unpack(place.root, repo=place.repo, home=place.home, trees=place.trees)
    with (place.home / "config.toml").open("a") as config:  # version 0.1 had no sandbox whose files it could name
        config.write("\n" + CONFIG.format(root=place.root))
    place.start = git(place.repo, "rev-list", "--max-parents=0", "main")
    return place


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield a place whose recorded home is only read."""
    folder = tmp_path_factory.mktemp("read")
    make_repository(checkout_in(folder))
    place = recorded(Place(folder))
    before = records(place.home)
    yield place
    assert records(place.home) == before


def records(home: Path) -> dict[Path, bytes]:
    folders = ("identities", "hooks", "signals", "runs", "merge-queue", "pipelines", "workflows", "conversations")
    return {path: path.read_bytes() for name in folders for path in (home / name).rglob("*") if path.is_file()}


@pytest.fixture
def old(place: Place) -> Place:
    """Return a place whose recorded home is continued."""
    return recorded(place)


def output(place: Place, *words: object, code: int = 0, **env: str) -> str:
    """Return what a command prints; it must end with `code`."""
    done = place.command(*words, **env)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def from_json(place: Place, *words: object) -> Any:
    return json.loads(output(place, *words, "--json"))


def script(place: Place, name: str, *words: str) -> str:
    done = subprocess.run([sys.executable, SCRIPTS / name, *words], env=place.for_scripts, check=False,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def one_line(text: str, *words: str) -> bool:
    """Return whether one line has all these words."""
    return any(all(word in line for word in words) for line in text.splitlines())


def test_status_shows_every_run(read: Place) -> None:
    listed = output(read, "status")
    for run, status in BEFORE.items():
        assert read.status(run) == status
        assert one_line(listed, run, SHOWN[run])
    stopped = from_json(read, "status", "stopped")
    assert (stopped["status"], stopped["total"], stopped["reason"]) == ("stopped", 2, "stopped by a person")
    assert {layer["agent"]: (layer["incarnation"], layer["living"]) for layer in stopped["layers"]}[
        "orchestrator-second@stopped"] == (1, False)
    killed = from_json(read, "status", "killed")
    assert killed["status"] == "interrupted" and "garrison up" in killed["hint"]
    for run in BEFORE:
        assert f"run {run}" in output(read, "status", run)
    assert "exit code 3: no" in output(read, "status", "failed")
    assert "Ship it?" in output(read, "status", "killed")


def test_why_and_events_replay_what_was_recorded(read: Place) -> None:
    lines = from_json(read, "why", "plan", "--run", "finished")
    assert {line["kind"] for line in lines} >= {"node", "spawn", "death", "fenced"}
    replayed = [line for line in lines if line["same"] is not None]
    assert len(replayed) >= 5
    assert all(line["same"] for line in replayed)
    [death] = [line for line in lines if line["kind"] == "death"]
    assert "is gone" in death["text"]
    for run in BEFORE:
        recorded = [json.loads(line) for line in output(read, "events", run, "--json").splitlines()]
        journals = [*read.home.glob(f"runs/{run}/journal.jsonl"), *read.home.glob(f"runs/{run}/layers/*.jsonl")]
        assert len(recorded) >= sum(len(path.read_text().splitlines()) for path in journals)
        assert output(read, "events", run)


def test_queues_of_both_targets_are_listed_and_their_landings_logged(read: Place) -> None:
    assert statuses(read, "main") == {"plan": "landed", "write": "landed", "first": "landed", "make": "landed"}
    assert statuses(read, "release") == {"good": "landed", "broken": "rejected", "later": "queued", "kept": "held"}
    log = output(read, "merge-queue", "log", "--repo-root", read.repo, "--target", "main")
    for node in ("plan", "write", "first", "make"):
        assert node in log
    [rejected] = [entry["id"] for entry in entries(read, "release") if entry["status"] == "rejected"]
    assert "exit code 1" in output(read, "merge-queue", "show", rejected)


def test_agents_signals_costs_logs_and_rescues_are_listed(read: Place) -> None:
    agents = {f"{one['role']}-{one['name']}": one for one in from_json(read, "agents", "list")}
    assert len(agents) >= 18
    assert agents["orchestrator-plan"]["incarnation"] == 2
    assert agents["orchestrator-by_hand"]["status"] == "crashed"
    assert "runner-write@finished" in output(read, "agents", "graph")
    assert from_json(read, "agents", "show", "runner", "by_hand")["worktree"] == "/tree"
    signals = from_json(read, "signals", "list")
    assert {one["state"] for one in signals} == {"taken", "waiting"}
    [waiting] = [one for one in signals if one["state"] == "waiting"]
    assert waiting["payload"]["question"] == "Which parser?"
    assert from_json(read, "cost") == [{"of": "finished/write", "calls": 3, "input": 3000, "output": 150, "usd": 0.015,
                                       "limit": None}]
    assert output(read, "logs", "broken", "--run", "failed").strip().endswith("no")
    [rescue] = from_json(read, "rescue", "list")
    assert (rescue["node"], rescue["files"]) == ("broken", 1)
    assert "half.txt" in output(read, "rescue", "show", rescue["ref"])
    metrics = output(read, "metrics")
    for run, status in SHOWN.items():
        assert f'garrison_run_status{{run="{run}",status="{status}"}} 1.0' in metrics


def test_workflows_sessions_and_conversations_are_shown(read: Place) -> None:
    [listed] = from_json(read, "workflow", "list")
    assert (listed["session_id"], listed["status"]) == ("report-1", "failed")
    assert one_line(output(read, "workflow", "show", "report-1"), "words", "completed", "one two")
    session = from_json(read, "session", "show", "helper")
    assert session["turn_count"] == 2
    assert [message["content"] for message in session["messages"]] == [
        "How are you?", "I am well.", "Really?", "I am well."]
    asked, answered = Conversation(read.home / "conversations").entries
    assert asked.content == "What needs me today?"
    assert answered.content == "One run is stopped."
    assert [delegation.result.agent_type for delegation in answered.delegations] == ["triage"]


def test_the_scripts_read_hooks_identities_and_signals_made_by_hand(read: Place) -> None:
    hook = json.loads(script(read, "hook_manager.py", "read", "runner", "by_hand"))
    assert (hook["phase"], hook["resumption_instructions"]) == ("executing", "Look at the parser first.")
    assert "Look at the parser first." in script(read, "hook_manager.py", "wisdom", "runner", "by_hand")
    assert json.loads(script(read, "identity_registry.py", "show", "runner", "by_hand"))["session_id"] == "s1"
    [path] = (read.home / "signals/guardian-hand").glob("*.json")
    assert json.loads(script(read, "signal_protocol.py", "read", str(path)))["signal_type"] == "NEEDS_INPUT"
    stale = json.loads(script(read, "identity_registry.py", "find-stale"))
    assert "launch" in json.dumps(stale)


def test_doctor_finds_nothing_corrupt(read: Place) -> None:
    found = json.loads(read.command("doctor", "--json").stdout)
    wrong = [finding for finding in found if finding["wrong"]]
    assert {finding["check"] for finding in wrong} <= {"identities", "runs"}, wrong
    assert {finding["severity"] for finding in wrong} == {"warning"}


def test_the_stopped_run_continues_in_the_same_attempt_to_its_end(old: Place) -> None:
    (old.root / "release").touch()
    landed = git(old.repo, "rev-parse", "main")
    assert old.finish(old.resume("stopped", RELEASE=str(old.root / "release")), "stopped") == 0, old.logs()
    assert old.status("stopped") == "done"
    assert {node: data["status"] for node, data in old.nodes("stopped").items()} == {
        "first": "validated", "second": "validated"}
    assert [(node, attempt) for node, attempt, _ in old.finished_work("stopped")] == [("first", 1), ("second", 1)]
    assert old.identity("orchestrator-second", "stopped")["incarnation"] == 2
    assert old.identity("orchestrator-first", "stopped")["incarnation"] == 1
    assert git(old.repo, "rev-parse", "main^1") == landed, "one landing, on top of all that 0.1 landed"
    assert git(old.repo, "show", "main:draft.txt") == "draft"
    assert git(old.repo, "show", "main:rest.txt") == "uncommitted"
    assert {entry["status"] for entry in entries(old, "main")} == {"landed"}
    lines = from_json(old, "why", "second", "--run", "stopped")
    assert all(line["same"] is not False for line in lines)


def test_the_killed_run_is_found_and_takes_its_answer(old: Place) -> None:
    output(old, "up")
    output(old, "answer", "ship", "Yes", "--run", "killed")
    wait_for("the run has ended", lambda: old.identity("launch", "killed")["status"] == "terminated")
    assert old.status("killed") == "done"
    assert [node for node, _, _ in old.finished_work("killed")] == ["make"]
    incarnations = {name: identity["incarnation"] for name, identity in old.identities("killed").items()}
    assert (incarnations["launch"], incarnations["guardian-killed"], incarnations["runner-make"]) == (2, 2, 1)


def test_the_failed_run_tries_again(old: Place) -> None:
    done = old.begin("launch", "--resume", "failed", "--again")
    assert old.finish(done, "failed") == 1, old.logs()
    assert old.nodes("failed")["broken"]["attempt"] == 2
    assert "failed (exit 3): no" in output(old, "status", "failed")


def entries(place: Place, target: str) -> list[dict[str, Any]]:
    return [entry for entry in from_json(place, "merge-queue", "list")["entries"] if entry["target"] == target]


def statuses(place: Place, target: str) -> dict[str, str]:
    return {entry["node"]: entry["status"] for entry in entries(place, target)}


def test_the_queue_lands_queued_and_released_entries(old: Place) -> None:
    process = ("merge-queue", "process", "--drain", "--repo-root", old.repo, "--target", "release")
    output(old, *process)
    assert statuses(old, "release") == {"good": "landed", "broken": "rejected", "later": "landed", "kept": "held"}
    for entry in entries(old, "release"):
        if entry["status"] != "landed":
            word = "release" if entry["status"] == "held" else "retry"
            output(old, "merge-queue", word, entry["id"], "--repo-root", old.repo)
    output(old, *process, code=1)
    assert [(entry["node"], entry["status"]) for entry in entries(old, "release")][-2:] == [
        ("kept", "landed"), ("broken", "rejected")]
    files = set(git(old.repo, "ls-tree", "--name-only", "release").splitlines())
    assert {"good.txt", "later.txt", "kept.txt"} <= files
    assert "broken.txt" not in files


def test_an_engine_run_whose_journal_ends_in_zeros_is_resumed(old: Place) -> None:
    folder, ledger = old.home / "pipelines/build", old.root / "engine-ledger"
    assert (folder / "journal.jsonl").read_bytes().endswith(b"\0" * 100)
    assert from_json(old, "pipeline", "status", folder)["node_outcomes"] == {"start": "success", "first": "success"}
    (old.root / "release").touch()
    done = old.command("pipeline", "resume", folder, "--json", LEDGER=str(ledger), RELEASE=str(old.root / "release"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["completed_nodes"] == ["start", "first", "second", "third", "x"]
    assert ledger.read_text().split() == ["first", "second", "third"]
    assert b"\0" not in (folder / "journal.jsonl").read_bytes()


def test_the_engines_gate_takes_its_answer(old: Place) -> None:
    folder = old.home / "pipelines/ship"
    assert from_json(old, "pipeline", "status", folder)["questions"]["gate"]["options"][0]["key"] == "A"
    output(old, "pipeline", "answer", folder, "gate", "Approve")
    assert from_json(old, "pipeline", "resume", folder)["completed_nodes"] == ["start", "make", "gate", "x"]


def test_the_workflow_continues_where_it_failed(old: Place) -> None:
    (old.repo / "nowhere.txt").write_text("found")
    result = from_json(old, "workflow", "resume", "report-1")
    assert "found" in json.dumps(result["results"]["missing"])


def test_the_script_makes_a_successor_of_an_incarnation_made_by_hand(old: Place) -> None:
    made = json.loads(script(old, "identity_registry.py", "create", "orchestrator", "by_hand"))
    assert made["incarnation"] == 2
    assert load(old.home / "identities/orchestrator-by_hand.json")["incarnation"] == 2


def test_the_later_home_is_read_from_its_snapshots_and_its_killed_run_is_finished(place: Place) -> None:
    shutil.rmtree(place.repo)
    (place.home / "config.toml").unlink()
    unpack(place.root, repo=place.repo, home=place.home, trees=place.trees, archive=LATER)
    place.start = git(place.repo, "rev-list", "--max-parents=0", "main")
    snapshots = [path for path in place.home.rglob("*.jsonl")
                 if path.read_bytes().startswith(b'{"seq"') and b'"kind":"snapshot"' in path.read_bytes()]
    assert {path.parent.name for path in snapshots} == {"finished", "killed", "main", "release"}
    listed = output(place, "status")
    for run, status in {"finished": "done", "failed": "failed", "killed": "interrupted"}.items():
        assert one_line(listed, run, status)
    assert "Ship it?" in output(place, "status", "killed")
    for node, run in (("plan", "finished"), ("works", "killed")):
        assert all(line["same"] is not False for line in from_json(place, "why", node, "--run", run))
    assert statuses(place, "release") == {"good": "landed", "broken": "rejected", "later": "queued", "kept": "held"}
    assert statuses(place, "main") == {"plan": "landed", "write": "landed", "first": "landed", "tested": "testing"}
    found = json.loads(place.command("doctor", "--json").stdout)
    assert {finding["check"] for finding in found if finding["wrong"]} <= {"identities", "runs", "worktrees"}, found

    (place.root / "release").touch()
    output(place, "up", RELEASE=str(place.root / "release"))
    output(place, "answer", "ship", "Yes", "--run", "killed")
    wait_for("the run has ended", lambda: place.identity("launch", "killed")["status"] == "terminated")
    assert place.status("killed") == "done", place.logs()
    assert {(node, attempt) for node, attempt, _ in place.finished_work("killed")} == {
        ("first", 1), ("tested", 1), ("works", 1)}
    assert place.identity("orchestrator-works", "killed")["incarnation"] == 2
    assert git(place.repo, "show", "main:draft.txt", "main:rest.txt") == "draft\nuncommitted"
    assert {entry["status"] for entry in entries(place, "main")} == {"landed"}
    assert all(line["same"] is not False for line in from_json(place, "why", "works", "--run", "killed"))


@pytest.mark.parametrize("archive", [ARCHIVE, LATER])
def test_the_archive_names_no_machine(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            data = tar.extractfile(member)
            text = member.name.encode() + (data.read() if data is not None else b"")
            assert not re.search(rb"(?<![\w@.-])/(tmp|home|root|work|var|mnt)/", text), member.name
