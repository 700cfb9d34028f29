"""Resolution of names to records, and of the incarnation that a command writes for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from garrison.cli import resolve
from garrison.errors import NotFound, Refused, UsageError
from garrison.records.identity import Identity
from garrison.records.journal import Writer
from garrison.records.names import Key
from garrison.records.run import Launch, RunFiles, save
from garrison.records.store import Store

HERE, THERE = Key("runner", "a", "r1"), Key("runner", "a", "r2")
NOW = "2026-01-31T12:00:00.000000Z"


def never(key: Key) -> bool:
    raise AssertionError(f"whether {key} is alive decides nothing")


def test_the_only_candidate_the_callers_or_the_only_living_one_is_chosen() -> None:
    for run in ("", "r9"):
        assert resolve.choose([HERE], run, never, "none") == HERE, "dead or alive"
        assert resolve.choose([HERE, THERE], run, lambda key: key == THERE, "none") == THERE
    assert resolve.choose([HERE, THERE], "r2", never, "none") == THERE
    with pytest.raises(NotFound, match="none here"):
        resolve.choose([], "r1", never, "none here")


@pytest.mark.parametrize(("living", "marked"), [(set(), set()), ({HERE, THERE}, {HERE, THERE})])
def test_several_candidates_are_refused_with_a_list(living: set[Key], marked: set[Key]) -> None:
    with pytest.raises(Refused) as refusal:
        resolve.choose([HERE, THERE], "", living.__contains__, "none")
    assert "--run" in str(refusal.value)
    for key in (HERE, THERE):
        assert key.run in str(refusal.value)
        assert (f"{key.run} (at work)" in str(refusal.value)) == (key in marked)


@pytest.mark.parametrize(("environ", "expected"), [
    ({}, ""),
    ({"GARRISON_RUN": "r1"}, "r1"),
    ({"GARRISON_LIFE": "/home/with:colon:r2:runner-a#3"}, "r2"),
    ({"GARRISON_RUN": "r1", "GARRISON_LIFE": "/h:r2:runner-a#3"}, "r1"),
    ({"GARRISON_LIFE": "nonsense"}, ""),
])
def test_the_current_run_comes_from_the_environment(environ: dict[str, str], expected: str) -> None:
    assert resolve.current_run(environ) == expected


@pytest.mark.parametrize(("given", "environ", "expected"), [
    (None, {}, None),
    (4, {"GARRISON_INCARNATION": "2"}, 4),
    (None, {"GARRISON_INCARNATION": "2"}, 2),
    (None, {"GARRISON_INCARNATION": "two"}, None),
    (None, {"GARRISON_INCARNATION": "2", "GARRISON_LIFE": "HOME:r1:runner-a#2"}, 2),
    (None, {"GARRISON_INCARNATION": "2", "GARRISON_LIFE": "HOME:r2:runner-a#2"}, None),
    (None, {"GARRISON_INCARNATION": "2", "GARRISON_LIFE": "HOME:r1:orchestrator-a#2"}, None),
    (None, {"GARRISON_INCARNATION": "2", "GARRISON_LIFE": "/elsewhere:r1:runner-a#2"}, None),
])
def test_the_incarnation_of_a_writer(tmp_path: Path, given: int | None, environ: dict[str, str],
                                     expected: int | None) -> None:
    environ = {name: value.replace("HOME", str(tmp_path)) for name, value in environ.items()}
    assert resolve.writer_incarnation(Store(tmp_path), HERE, given, environ) == expected


def test_an_invalid_name_is_a_usage_error(tmp_path: Path) -> None:
    for role, name, run in (("runer", "a", None), ("runner", "../a", None), ("runner", "a", "R!")):
        with pytest.raises(UsageError):
            resolve.find_key(Store(tmp_path), Identity, role, name, run)


def test_not_found_names_similar_records(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.update(Identity, HERE, lambda _: Identity("id", "runner", "a", "r1", NOW, last_heartbeat=NOW))
    assert resolve.find_key(store, Identity, "runner", "a", None) == HERE
    for run in (None, "r2"):
        with pytest.raises(NotFound, match="runner-a@r1"):
            resolve.find_key(store, Identity, "runner", "b", run)


def test_the_latest_attempt_is_the_highest_number(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "r1" / "nodes" / "a"
    assert RunFiles(tmp_path, "r1").latest_attempt("a") == 0
    for name in ("2", "10", "notes"):
        (folder / name).mkdir(parents=True)
    assert RunFiles(tmp_path, "r1").latest_attempt("a") == 10


def test_the_latest_run_is_one_of_the_current_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, mine = Store(tmp_path), tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    for at, (run, repo) in enumerate({"a": mine, "b": mine, "c": tmp_path / "other"}.items()):
        path = RunFiles(tmp_path, run).launch
        path.parent.mkdir(parents=True)
        save(path, Launch(run, run, str(repo), "main", NOW, "/t"))
        os.utime(path, (at, at))
    monkeypatch.chdir(tmp_path)
    assert (resolve.latest_run(store, None), resolve.latest_run(store, "a")) == ("c", "a")
    with pytest.raises(Refused, match=r"no run belongs to .*; name one \(`garrison status --all` lists them\)"):
        resolve.resumable_run(store)
    monkeypatch.chdir(mine / "deep")
    assert resolve.latest_run(store, None) == resolve.resumable_run(store) == "b"
    assert resolve.supervised_run(store, None) == "b", "none is supervised"
    assert resolve.run_at_work(store, ["c"], "name one") == "b", "another repository's run at work is not meant"
    with pytest.raises(Refused, match="several runs are at work, name one: a, b"):
        resolve.run_at_work(store, ["a", "b", "c"], "name one")
    for run in ("b", "a"):
        for each in ("a", "b", "c"):
            RunFiles(tmp_path, each).attempt("n", 1).mkdir(parents=True, exist_ok=True)
        assert resolve.run_of_node(store, "n", None) == "b", "of this repository"
        journal = Writer(RunFiles(tmp_path, run).journal, "guardian-x#1")
        journal.append("run", {"status": "running"}, NOW)
        journal.append("run", {"status": "done" if run == "b" else "failed"}, NOW)
        journal.close()
        if run == "b":
            assert resolve.resumable_run(store) == "a", "one that is done is left alone"
    with pytest.raises(Refused, match=r"have ended; `garrison resume a --retry-failed` retries "):
        resolve.resumable_run(store)
    assert resolve.resumable_run(store, retry_failed=True) == "a"
    monkeypatch.chdir(tmp_path)
    assert resolve.run_at_work(store, ["a"], "name one") == "a", "in no repository, the only one"
