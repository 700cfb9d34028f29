"""Odd names of files, branches, homes and attributes: each works, or is refused in one line before anything is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from garrison.cli.main import main
from support import Node, Place, git, make_repository, wait_for

LONG = "h" * 120
"""A socket below a directory of that name has more than the 108 bytes there are."""
BRANCH = "feat/ü/😀"


@pytest.mark.parametrize("terminal", ["process", "tmux"])
def test_a_run_whose_every_name_is_odd_lands(places, terminal):
    place = places(terminal=terminal)
    real = place.root / "it's a \"re\\po\"; $(exit) 😀\nsecond line"
    place.repo.rename(real)
    place.repo.symlink_to(real)
    git(real, "checkout", "-q", "-b", BRANCH)
    named = place.root / (LONG if terminal == "tmux" else "not\nthere 😀")
    place.home.rename(named)
    if terminal == "tmux":
        place.home = named
        place.env["GARRISON_HOME"] = str(named)
    else:
        place.home.symlink_to(named)
    text = place.graph(Node("a")).read_text().replace("digraph crew", "digraph")
    graph = place.root / ("😀 'x\"\n" + "a" * 230 + ".dot")
    graph.write_bytes(b"\xef\xbb\xbf" + text.replace("  ", "\t").replace("\n", "\r\n").encode())
    done = place.command(*place.launch_arguments(graph, "r1", "--base", BRANCH))
    assert done.returncode == 0, done.stderr + place.logs()
    assert git(real, "log", "--format=%s", "--merges", BRANCH) == f"Merge garrison/r1/a into {BRANCH}"
    assert git(real, "status", "--porcelain") == ""
    assert place.command("status", "r1").returncode == 0
    assert not list(place.runtime.iterdir()), "the socket's directory went with the server"


@pytest.fixture
def refused(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that makes a dry launch in this process; it must be refused in the line that it returns."""
    place.enter(monkeypatch)

    def run(pipeline: object, *more: object, repo: object = place.repo, code: int = 1) -> str:
        words = ["launch", "--target-dir", repo, "--no-gate", "--dry-run", *more, "--", pipeline]
        assert main(list(map(str, words))) == code
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1), told
        return told.err

    return run


def test_an_invalid_pipeline_or_branch_is_refused_in_one_line(place: Place, refused, tmp_path: Path) -> None:
    graph = place.graph(Node("a"))
    assert "/dev/stdin" in refused("-", code=2)
    for name in (tmp_path, "x" * 300, tmp_path / "missing\n.dot"):
        assert "cannot read pipeline" in refused(name, code=2)
    (tmp_path / "wide.dot").write_text(graph.read_text(), encoding="utf-16")
    assert "not UTF-8" in refused(tmp_path / "wide.dot", code=2)
    both = place.graph(Node("a"), Node("A"), name="both")
    assert "differ only in case" in refused(both)
    for base in ("", " ", "-x", "HEAD", "main~0", "main^{}", "main@{0}", "refs/heads/main", "a\nb", "m" * 300, "😀"):
        assert "has no branch" in refused(graph, f"--base={base}")
    foreign = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff")
    make_repository(Path(foreign))
    assert "is not UTF-8" in refused(graph, repo=foreign)
    assert not (place.home / "runs").exists()


def test_misspelt_names_are_refused_and_unknown_ones_reported(place: Place, refused,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    typo = place.graph(Node("a", attributes='acceptanc="make test"'), name="typo")
    assert refused(typo).startswith(f"garrison: {typo}:4:")
    assert "a: acceptanc is not an attribute of nodes; did you mean acceptance?" in refused(typo)
    graph = place.graph(Node("a", attributes="milestone=7"))
    config = place.home / "config.toml"
    config.write_text('[agents.gone]\nargv = ["no-such-program"]\nsucess = "result_file"\n')
    assert f"{config}:3: [agents.gone] sucess is not a setting; did you mean success?" in refused(graph, code=2)
    config.write_text('[agents.gone]\nargv = ["no-such-program"]\ncolour = "red"\n')
    words = ["launch", "--target-dir", place.repo, "--no-gate", "--dry-run", graph]
    assert main(list(map(str, words))) == 0
    notes = capsys.readouterr().err
    assert f"note: {config}:3: [agents.gone] colour is not a setting; there are kind, env, " in notes
    assert f"note: {graph}:4:" in notes
    assert "a: garrison does not read milestone; name it x_milestone" in notes
    gone = place.graph(Node("a", attributes="agent=gone"), name="gone")
    assert main(list(map(str, [*words[:-1], gone]))) == 1
    assert "agent gone runs no-such-program, which is not on the PATH" in capsys.readouterr().err
    assert not (place.home / "runs").exists()


def test_a_tmux_server_started_by_hand_ends_with_its_last_session(place: Place) -> None:
    """`spawn_orchestrator` has no supervisor: session and server end with its work."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    scripts = Path(__file__).parents[2] / "scripts"
    prd = "x" * 10_000 + "\n'second'"
    words = ["--node", "n", "--prd", prd, "--repo-root", place.repo, "--command", "echo done > f", "--terminal", "tmux"]
    done = subprocess.run([sys.executable, scripts / "spawn_orchestrator.py", *words], env=place.for_scripts,
                          check=False, capture_output=True, text=True, cwd=place.root)
    assert (done.returncode, done.stderr) == (0, "")
    wait_for("no process is left, nor the tmux server", lambda: not place.living_processes())
    identity = place.identity("orchestrator-n", "adhoc-n-1")
    assert (identity["status"], identity["metadata"]["reason"]) == ("terminated", "done")
