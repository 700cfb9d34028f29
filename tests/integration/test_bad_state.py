"""Torn, foreign, newer and misplaced files in a home: every command names them, shows the rest, changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from garrison.cli import hooks, identities, signals
from garrison.cli.main import main
from support import Node, Place

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that calls one command in this process: its exit code, stdout and stderr."""
    doors = {"identity": identities.main, "hook": hooks.main, "signal": signals.main}

    def run(*words: object) -> tuple[int, str, str]:
        first, *rest = map(str, words)
        code = doors[first](rest) if first in doors else main([first, *rest])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def newer(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "torn": lambda path: path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2]),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "list": lambda path: path.write_bytes(b"[1]"),
    "newer": newer,
    "directory": directory,
}


@pytest.mark.parametrize("ways", [("torn", "garbage", "directory"),
                                  pytest.param(tuple(DAMAGE), marks=pytest.mark.slow)])
def test_every_kind_of_record_damaged_in_every_way(place: Place, call: Call, monkeypatch: pytest.MonkeyPatch,
                                                   ways: tuple[str, ...]) -> None:
    place.enter(monkeypatch)
    graph = place.graph(Node("a"))
    assert place.finish(place.launch(graph), "r1") == 0, place.logs()
    held = place.graph(Node("y"), Node("z", after=("y",), before=place.hold("z")), name="held")
    child = place.launch(held, "r3")
    place.wait_until_held("z")
    assert place.command("stop", "r3").returncode == 0
    assert place.finish(child, "r3") == 130

    home = place.home
    queue = next(home.glob("merge-queue/*/*/journal.jsonl"))
    taken = next(home.glob("signals/guardian-crew@r1/taken/*.json"))
    listing = (("status",), ("agents", "list"), ("signals", "list"), ("merge-queue", "list"),
               ("identity", "find-stale"))
    enqueue = ("merge-queue", "enqueue", "n", "main", "--repo-root", place.repo)
    named: dict[Path, tuple[tuple[object, ...], ...]] = {
        home / "identities/launch@r3.json": (("identity", "show", "launch", "launch", "--run", "r3"),
                                             ("identity", "update-liveness", "launch", "launch", "--run", "r3")),
        home / "hooks/runner-a@r1.json": (("hook", "read", "runner", "a", "--run", "r1"),
                                          ("hook", "update-phase", "runner", "a", "merged", "--run", "r1")),
        home / "runs/r3/launch.json": (("stop", "r3"),),
        home / "runs/r3/journal.jsonl": (("stop", "r3"),),
        queue: (enqueue,),
        taken: (("signal", "read", taken),),
    }
    for path, refused in named.items():
        good, other = path.read_bytes(), "r1" if "r3" in str(path.relative_to(home)) else "r3"
        for way, damage in ((way, DAMAGE[way]) for way in ways):
            if path.suffix == ".jsonl" and way in ("empty", "newer", "torn"):
                continue  # an empty one is new, a torn one is whole up to its tail, a newer one is the contract tests'
            damage(path)
            bad = path.read_bytes() if path.is_file() else None
            for words in listing:
                code, out, err = call(*words)
                lists_it = (path == queue and words[0] == "merge-queue") or (
                    path.parent.name == "identities" and words[0] == "identity")  # cron must not see health
                assert code == (1 if lists_it else 0), (path, way, words, err)
                assert not lists_it or str(path) in err, (way, err)
                assert other in out or words[0] in ("merge-queue", "identity"), (path, way, words, out)
                assert "fault" not in err, (path, way, words, err)
            for words in refused:
                code, out, err = call(*words)
                assert (code, out) == (1, ""), (path, way, words, out, err)
                assert str(path) in err, (path, way, words, err)
                assert len(err.splitlines()) == 1, (path, way, words, err)
            assert (path.read_bytes() if path.is_file() else None) == bad, (path, way)
            if path.is_dir():
                path.rmdir()
            path.write_bytes(good)
    check_another_run_can_start(place, call, graph)
    check_folders_that_are_files(home, call)


def check_another_run_can_start(place: Place, call: Call, graph: Path) -> None:
    """An unreadable run is reported, and does not keep a new run of the same pipeline from starting."""
    path = place.home / "runs/r1/launch.json"
    good = path.read_bytes()
    path.write_bytes(b"{")
    code, out, err = call("launch", graph, "--target-dir", place.repo, "--no-gate", "--dry-run")
    assert (code, "pre-flight passed" in out) == (0, True), err
    assert f"run r1 is skipped: corrupt record {path}" in err
    for lose in (lambda: None, path.unlink):
        lose()
        code, _, err = call("status")
        assert (code, f"{path} is damaged or gone; `garrison resume r1` restores it" in err) == (0, True), err
    path.write_bytes(good)


def check_folders_that_are_files(home: Path, call: Call) -> None:
    for name, words in (("identities", ("agents", "list")), ("runs", ("status",)), ("signals", ("signals", "list"))):
        (home / name).rename(home / "aside")
        (home / name).write_text("a file")
        _, _, err = call(*words)
        assert f"cannot use {home / name}: not a directory; it was left in place" in err
        assert "fault" not in err
        (home / name).unlink()
        (home / "aside").rename(home / name)


def test_invalid_names_are_refused_in_one_line_by_every_script(
        place: Place, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    place.enter(monkeypatch)
    graph, repo = place.graph(Node("a")), ("--target-dir", place.repo)
    for text in ("a/b", "..", "a b", "é😀", "a\nb", "", "x" * 300):
        refuses_name(place, call, graph, repo, text)
    assert not list(place.home.glob("*/*")), "nothing was made for it"


def refuses_name(place: Place, call: Call, graph: Path, repo: tuple[object, ...], text: str) -> None:
    for words in (("launch", graph, *repo, "--no-gate", "--run", text),
                  *([("resume", text)] if text not in ("a/b", "..") else []),  # these may be directories
                  ("launch", graph, *repo, "--no-gate", "--pipeline-id", text),
                  ("merge-queue", "enqueue", text, "main", "--repo-root", place.repo),
                  ("identity", "create", "runner", text), ("hook", "create", "runner", text),
                  ("signal", "write", "runner", text, "GUIDANCE")):
        code, out, err = call(*words)
        assert (code, out) == (2, ""), (words, out, err)
        assert len(err.splitlines()) == 1, (words, err)
        assert len(err) < 300, (words, err)
    if text:
        code, _, err = call("merge-queue", "enqueue", "n", "main", "--repo-root", place.repo, "--run", text)
        assert (code, len(err.splitlines())) == (2, 1), err


def test_a_typo_gets_a_suggestion(call: Call) -> None:
    for words, near in ((("statsu",), "status"), (("luanch",), "launch")):
        code, out, err = call(*words)
        assert (code, out) == (2, "")
        assert f"id you mean '{near}'?" in err
