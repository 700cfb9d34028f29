"""The demonstration as a user starts it: with chaos to its end, interrupted in the middle, and refused.

What happened is read from git and from the files, not from what garrison says of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from garrison.testing import isolation
from support import DEADLINE, Place, git, landed_subjects, load, wait_for

ROOT = Path(__file__).resolve().parents[2]
NODES = {"rename_between", "add_monthly", "add_csv_export", "add_stats", "add_currency", "convert_report",
         "annotate_returns"}
isolated = pytest.mark.skipif(isolation.refusal() is not None, reason=f"nothing isolates: {isolation.refusal()}")


@pytest.fixture
def demo_place(place: Place) -> Place:
    """A place that has the temporary directory, so that all the demonstration does is seen there."""
    temporary = place.root / "tmp"
    temporary.mkdir()
    place.env = {name: value for name, value in place.env.items() if not name.startswith("GARRISON_")}
    place.env |= {"TMPDIR": str(temporary), "GIT_DIR": "/nowhere", "GARRISON_HOME": "/nowhere"}  # neither may matter
    return place


def start(place: Place, *options: str, **env: str) -> subprocess.Popen[bytes]:
    with (place.root / "demo.out").open("wb") as output:
        child = subprocess.Popen([sys.executable, str(ROOT / "scripts/demo.py"), *options], cwd=ROOT,
                                 env={**place.env, **env}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                 start_new_session=True)
    place.started.append(child)
    return child


def output_of(place: Place) -> str:
    return (place.root / "demo.out").read_text()


def folders(place: Place) -> list[Path]:
    return list((place.root / "tmp").iterdir())


def inside_of(place: Place, folder: Path) -> Place:
    """The demonstration's own repository and home, to look into."""
    inside = dataclasses.replace(place, started=[])
    inside.repo, inside.home, inside.trees = folder / "ledger", folder / "home", folder / "trees"
    return inside


def test_everything_promised_happens(demo_place):
    child = start(demo_place, "--keep")
    assert child.wait(DEADLINE) == 0, output_of(demo_place)
    (folder,) = folders(demo_place)
    inside = inside_of(demo_place, folder)
    check_history(inside)
    check_rework(inside)
    check_deaths(inside)
    assert "NOT SHOWN" not in output_of(demo_place)
    for log in inside.home.glob("runs/demo/nodes/*/*/output.log"):
        assert "not seen in time" not in log.read_text(errors="replace"), f"{log} waited in vain"
    assert not inside.living_processes()
    assert not [path for path in folder.rglob("*") if path.is_socket()]
    assert not list(inside.trees.rglob("*.py")), "a worktree or a slot is left"
    check_proposals(demo_place, folder, more=5)


def check_tests_pass(inside: Place) -> None:
    tested = subprocess.run([sys.executable, "-m", "unittest", "discover", "-s", "tests", "-t", "."], cwd=inside.repo,
                            capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr


def check_history(inside: Place) -> None:
    """Check that each node is merged into main once, and that main's tests pass."""
    begin = git(inside.repo, "rev-list", "--max-parents=0", "main")
    assert sorted(landed_subjects(inside.repo, begin)) == sorted(f"Merge garrison/demo/{name} into main"
                                                                 for name in NODES)
    check_tests_pass(inside)
    text = (inside.repo / "ledger/cli.py").read_text()
    assert [text.count(f"def run_{name}(") for name in ("export", "stats", "monthly")] == [1, 1, 1]
    assert ".within(" in (inside.repo / "ledger/monthly.py").read_text()


def check_rework(inside: Place) -> None:
    """Check that one attempt was red merged, one met a conflict, and the second of each was told why and landed."""
    (queue,) = inside.home.glob("merge-queue/*/main/journal.jsonl")
    records = [json.loads(line) for line in queue.read_text().splitlines()]
    ends = {(record["data"]["entry"].rpartition("-")[0], record["data"]["status"]) for record in records
            if record["data"].get("status") in ("rejected", "conflict", "landed")}
    assert {("add_monthly-1", "rejected"), ("add_stats-1", "conflict")} <= ends, ends
    reasons = {"add_monthly": "has no attribute 'between'", "add_stats": "conflict in README.md, ledger/cli.py"}
    for node, why in reasons.items():
        assert inside.nodes("demo")[node]["attempt"] == 2
        assert why in (inside.home / f"runs/demo/nodes/{node}/2/prompt.md").read_text()
    alone = git(inside.repo, "show", "refs/garrison/rescue/demo/add_monthly/1:ledger/monthly.py")
    assert ".between(" in alone


def check_deaths(inside: Place) -> None:
    """Check that an incarnation of each role was found dead by its supervisor and has a successor that ended
    gracefully; an orchestrator that had left its result needs none."""
    deaths = inside.deaths("demo")
    lives = [record["data"] for record in inside.journal("demo", "launch") if record["kind"] == "open"]
    assert [life["incarnation"] for life in lives] == [1, 2]
    for role in ("guardian", "runner", "orchestrator", "processor"):
        dead = [stem for stem in deaths if stem.startswith(role)]
        assert dead, f"no {role} died: {deaths}"
        successors = 0
        for stem in dead:
            identity = inside.identity(stem, "demo")
            if identity["incarnation"] > max(deaths[stem]):
                successors += 1
                assert identity["status"] == "terminated"
            else:
                assert role == "orchestrator", stem
                node = stem.partition("-")[2]
                folder = inside.home / "runs/demo/nodes" / node / str(inside.nodes("demo")[node]["attempt"])
                assert load(folder / "result.json")["incarnation"] == identity["incarnation"]
        assert successors, f"no {role} had a successor: {deaths}"


def check_proposals(place: Place, folder: Path, *, more: int) -> None:
    """Each of the `more` or more commands that are proposed works as it stands; the last one removes the folder."""
    _, _, rest = output_of(place).partition("What to try next\n")
    commands = [line.strip() for line in rest.partition("\n\n")[0].splitlines()]
    assert len(commands) >= more
    env = {name: value for name, value in place.env.items() if name != "GIT_DIR"}
    for command in commands:
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, check=False,
                              timeout=DEADLINE)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout or command.startswith("rm "), command
    assert not folder.exists() or not commands[-1].startswith("rm ")


@pytest.mark.parametrize(("option", "shown"), [
    pytest.param("--terminal=process", "guardian-demo is back", marks=pytest.mark.slow),
    pytest.param("--claude", ": working", marks=isolated)])
def test_ctrl_c_leaves_nothing(demo_place, option, shown):
    child = start(demo_place, option)
    wait_for(f"{shown} is shown", lambda: shown in output_of(demo_place) or child.poll() is not None)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(DEADLINE) == 130, output_of(demo_place)
    assert "stopping run demo gracefully" in output_of(demo_place)
    assert "run stopped" in output_of(demo_place)
    assert "had to be killed" not in output_of(demo_place)
    assert not demo_place.living_processes()
    assert folders(demo_place) == []


@pytest.mark.slow
def test_an_interrupted_demonstration_that_was_kept_can_be_resumed(demo_place):
    child = start(demo_place, "--keep", "--no-chaos")
    wait_for("the agents work", lambda: ": working" in output_of(demo_place) or child.poll() is not None)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(DEADLINE) == 130, output_of(demo_place)
    (folder,) = folders(demo_place)
    check_proposals(demo_place, folder, more=2)
    check_history(inside_of(demo_place, folder))


def test_a_demonstration_that_cannot_start_is_kept(demo_place):
    """The gate cannot run, for PATH has no mv: exit 1, and the folder stays and is named."""
    programs = demo_place.root / "bin"
    programs.mkdir()
    for name in ("git", "sh", "cat", "rm", "bwrap"):
        (programs / name).symlink_to(str(shutil.which(name)))
    child = start(demo_place, PATH=str(programs))
    assert child.wait(DEADLINE) == 1, output_of(demo_place)
    (folder,) = folders(demo_place)
    assert "NOT SHOWN: no run started" in output_of(demo_place)
    assert f"Kept: {folder}" in output_of(demo_place)
    check_proposals(demo_place, folder, more=2)


def test_a_real_model_is_not_asked_without_a_key(demo_place):
    assert start(demo_place, "--claude", "--live").wait(DEADLINE) == 1
    assert output_of(demo_place) == (
        "garrison: --live asks a real model: set ANTHROPIC_API_KEY, or log in with `garrison login`\n")
    assert start(demo_place, "--live").wait(DEADLINE) == 2
    assert "--claude" in output_of(demo_place)
    assert folders(demo_place) == []


@isolated
@pytest.mark.slow
def test_with_claude_sessions_everything_promised_happens(demo_place):
    """Offline, a script plays the model: two deaths in mid-tool, a question, a refusal; all four land."""
    child = start(demo_place, "--claude", "--keep", ANTHROPIC_API_KEY="not to be passed on")
    assert child.wait(DEADLINE) == 0, output_of(demo_place)
    (folder,) = folders(demo_place)
    inside = inside_of(demo_place, folder)
    assert {node["status"] for node in inside.nodes("demo").values()} == {"validated"}
    assert len(inside.nodes("demo")) == 4
    assert "only noted" in (folder / "requests.jsonl").read_text()
    assert {stem: len(lives) for stem, lives in inside.deaths("demo").items()} == {
        "orchestrator-payees": 1, "orchestrator-account_tree": 1}
    assert inside.nodes("demo")["exit_codes"]["attempt"] == 2
    assert "NOT SHOWN" not in output_of(demo_place)
    assert output_of(demo_place).count("continues, resumed by its id") == 2
    assert not inside.living_processes()
    check_tests_pass(inside)
    check_proposals(demo_place, folder, more=5)
