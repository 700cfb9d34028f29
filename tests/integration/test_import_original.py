"""`garrison import`: what the original's scripts recorded is continued, and their files stay as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from garrison.cli import import_original
from garrison.errors import GarrisonError
from support import Place, git

AT = "2026-02-26T12:00:00Z"


def write(path: Path, body: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=2))


@pytest.fixture
def old(place: Place) -> Path:
    """Return a repository in which the original worked: whole-second times, no runs, roles without names, no ids."""
    repo, state = place.repo, place.repo / ".claude/state"
    git(repo, "branch", "worktree-impl_auth")
    git(repo, "worktree", "add", "-q", str(place.root / "w"), "worktree-impl_auth")
    (place.root / "w/auth.txt").write_text("auth\n")
    git(place.root / "w", "add", "-A")
    git(place.root / "w", "commit", "-qm", "Add auth")
    identity = {"role": "runner", "name": "impl_auth", "session_id": "runner-impl_auth", "worktree": "w",
                "status": "active", "created_at": AT, "last_heartbeat": "2026-02-26T12:05:00Z", "crashed_at": None,
                "terminated_at": None, "predecessor_id": None, "metadata": {}}
    write(state / "identities/runner-impl_auth.json", {**identity, "agent_id": "runner-impl_auth-20260226T120000Z"})
    write(state / "identities/guardian-crew.json", {**identity, "role": "guardian", "name": "crew",
                                                    "status": "crashed", "crashed_at": AT})
    write(state / "identities/runner-odd.json", {**identity, "name": "a/b"})
    write(state / "hooks/runner-impl_auth.json", {
        "hook_id": "runner-impl_auth-20260226T120000Z", "role": "runner", "name": "impl_auth", "phase": "impl_complete",
        "last_committed_node": "impl_auth", "resumption_instructions": "Only the tests are missing",
        "predecessor_hook_id": None, "created_at": AT, "updated_at": AT, "merged_at": None})
    signals = repo / ".claude/attractor/signals"
    for target, kind in (("guardian", "MERGE_READY"), ("orchestrator", "GUIDANCE"), ("terminal", "APPROVED")):
        write(signals / f"20260226T120500Z-runner-{target}-{kind}.json", {
            "source": "runner", "target": target, "signal_type": kind, "timestamp": "20260226T120500Z",
            "payload": {"node_id": "impl_auth", "branch": "worktree-impl_auth"}})
    write(signals / "processed/20260226T120000Z-runner-guardian-NODE_COMPLETE.json", {})
    entry = {"entry_id": "mq-impl_auth-1772107200", "node_id": "impl_auth", "branch": "worktree-impl_auth",
             "repo_root": str(repo), "enqueued_at": "2026-02-26T12:05:00.123456+00:00", "status": "in_progress",
             "started_at": None, "completed_at": None, "error": None}
    write(state / "merge-queue.json", {"last_updated": AT, "entries": [
        entry, {**entry, "node_id": "done", "status": "completed"}, {**entry, "node_id": "gone", "branch": "no-such"}]})
    return repo


def test_records_of_the_original_are_imported_once_and_continued(place: Place, old: Path) -> None:
    before = {path: path.read_bytes() for path in (old / ".claude").rglob("*.json")}
    done = place.command("import", old, "--json")
    assert done.returncode == 0, done.stderr
    results = {(each["what"], each["name"].rpartition("-")[2]): each["result"] for each in json.loads(done.stdout)}
    left = {key: why for key, why in results.items() if why != "imported"}
    assert set(left) == {("identity", "odd"), ("signal", "APPROVED"), ("entry", "done"), ("entry", "gone")}, results
    assert "no branch no-such" in left["entry", "gone"] and "'APPROVED' is unknown" in left["signal", "APPROVED"]
    shown = json.loads(place.command("agents", "show", "runner", "impl_auth").stdout)
    assert (shown["status"], shown["created_at"]) == ("active", "2026-02-26T12:00:00.000000Z")
    assert {path: path.read_bytes() for path in (old / ".claude").rglob("*.json")} == before

    again = json.loads(place.command("import", old, "--json").stdout)
    assert {each["result"] for each in again if not each["result"].startswith("skipped")} == {"known"}
    [waiting] = [each for each in json.loads(place.command("signals", "list", "--json").stdout)
                 if each["signal_type"] == "MERGE_READY"]
    assert (waiting["to"], waiting["node_id"], waiting["state"]) == ("guardian-crew", "impl_auth", "waiting")

    landed = place.command("merge-queue", "process", "--repo-root", old, "--gate", "test -f auth.txt")
    assert landed.returncode == 0, landed.stderr
    assert git(old, "show", "main:auth.txt") == "auth"
    heard = json.loads(place.command("signals", "list", "--unacked", "--json").stdout)
    assert ("runner-impl_auth", "MERGE_COMPLETE") in {(each["to"], each["signal_type"]) for each in heard}
    git(old, "worktree", "remove", "--force", str(place.root / "w"))


def test_a_folder_without_records_is_refused_in_one_line(place: Place, tmp_path: Path) -> None:
    refused = place.command("import", tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert "has no identities" in refused.stderr


def test_the_originals_times() -> None:
    for text in ("2026-02-26T12:00:00Z", "20260226T120000Z", "2026-02-26T12:00:00+00:00", "2026-02-26T13:00:00+01:00",
                 "2026-02-26T12:00:00"):
        assert import_original.to_time(text) == "2026-02-26T12:00:00.000000Z"


@pytest.mark.parametrize("body", [
    {}, {"role": "runner"}, {"role": "runner", "name": "a", "created_at": "soon"},
    {"role": "x", "name": "a", "created_at": AT}, {"role": "runner", "name": "../a", "created_at": AT},
    {"role": "runner", "name": "a", "created_at": AT, "status": "odd"},
    {"role": "runner", "name": "a", "created_at": AT, "metadata": 7}])
def test_an_invalid_identity_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, GarrisonError)):
        import_original.to_identity(body)
