"""Runs of one node by hand: a dead runner is started again by `up` and `find-stale --respawn`, or named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import Place, wait_for

SCRIPTS = Path(__file__).parents[2] / "scripts"
RUN = "adhoc-n-1"


def script(place: Place, name: str, *words: object) -> dict[str, Any]:
    done = subprocess.run([sys.executable, SCRIPTS / name, *map(str, words)], env=place.for_scripts, check=True,
                          capture_output=True, text=True, cwd=place.root)
    return dict(json.loads(done.stdout))


def kill(place: Place, pid: int, full: str) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(f"{full} is dead", lambda: not Path(f"/proc/{pid}").exists())


def test_a_dead_runner_is_started_again_in_its_attempt(places) -> None:
    place = places()
    place.configure('[agents.gone]\nargv = ["no-such-program"]\n')
    words = ["--node", "n", "--prd", "P", "--target-dir", place.repo]
    refused = subprocess.run([sys.executable, SCRIPTS / "spawn_runner.py", *map(str, words), "--agent", "gone"],
                             env=place.for_scripts, check=False, capture_output=True, text=True, cwd=place.root)
    assert refused.returncode == 1
    assert "agent gone runs no-such-program, which is not on the PATH" in refused.stderr
    assert not (place.home / "runs").exists()
    work = f"while ! test -e {place.root}/go; do sleep 0.05; done; echo done > f"
    first = script(place, "spawn_runner.py", *words, "--command", work, "--terminal", "process")
    wait_for("the agent works", lambda: "orchestrator-n" in str(place.living_processes()))
    running = place.command("up", "--json")
    assert json.loads(running.stdout)[0] == {"run": RUN, "state": "tended",
                                             "why": f"its runner is alive (pid {first['runner_pid']})"}
    kill(place, first["runner_pid"], "the runner")
    by_cron = subprocess.run([sys.executable, SCRIPTS / "identity_registry.py", "find-stale", "--respawn"],
                             env=place.for_scripts, check=True, capture_output=True, text=True, cwd=place.root)
    assert by_cron.stderr == f"run {RUN} is started: its runner, incarnation 2\n"
    second = wait_for("the second is active", lambda: active(place, 2))
    kill(place, second["pid"], "its successor")
    by_hand = place.command("up")
    assert (by_hand.returncode, by_hand.stdout) == (0, f"{RUN}\n")
    (place.root / "go").touch()
    wait_for("the branch is enqueued", lambda: place.identity("runner-n", RUN)["status"] == "terminated")
    identity = place.identity("runner-n", RUN)
    assert (identity["incarnation"], identity["metadata"]["reason"]) == (3, "done")
    over = json.loads(place.command("up", "--json").stdout)
    assert over == [{"run": RUN, "state": "over", "why": "done"}]
    wait_for("nobody is left", lambda: not place.living_processes())


def active(place: Place, incarnation: int) -> dict[str, Any] | None:
    identity = place.identity("runner-n", RUN)
    return identity if (identity["status"], identity["incarnation"]) == ("active", incarnation) else None


@pytest.mark.slow
def test_an_orchestrator_without_a_runner_is_named_with_the_command_that_continues_it(places) -> None:
    place = places()
    work = f"while ! test -e {place.root}/go; do sleep 0.05; done; echo done > f"
    first = script(place, "spawn_orchestrator.py", "--node", "n", "--prd", "P", "--repo-root", place.repo, "--command",
                   work, "--terminal", "process")
    kill(place, first["pid"], "the orchestrator")
    told = place.command("up")
    assert told.returncode == 1
    assert f"run {RUN} is not resumed: its orchestrator was started by hand, without a runner, and died" in told.stderr
    assert f"`spawn_orchestrator.py --repo-root {place.repo} --run {RUN} --node n --prd P` continues it" in told.stderr
    again = script(place, "spawn_orchestrator.py", "--repo-root", place.repo, "--run", RUN, "--node", "n", "--prd", "P")
    assert again["incarnation"] == 2
    (place.root / "go").touch()
    wait_for("nobody is left", lambda: not place.living_processes())
