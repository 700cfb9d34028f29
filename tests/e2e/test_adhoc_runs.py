"""Runs of one node started by hand: `up` and `find-stale --respawn` start a dead runner again, or name it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import Place, wait_for

SCRIPTS = Path(__file__).parents[2] / "scripts"
RUN = "adhoc-n-1"


def script(place: Place, name: str, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, SCRIPTS / name, *map(str, words)], env=place.for_scripts, check=False,
                          capture_output=True, text=True, cwd=place.root)
    assert done.returncode == code, done.stderr
    return done


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(f"{pid} is dead", lambda: not Path(f"/proc/{pid}").exists())


def test_a_dead_runner_is_started_again_in_its_attempt(place: Place) -> None:
    place.configure('[agents.gone]\nargv = ["no-such-program"]\n')
    words = ["--node", "n", "--prd", "P", "--target-dir", place.repo]
    refused = script(place, "spawn_runner.py", *words, "--agent", "gone", code=1)
    assert "agent gone runs no-such-program, which is not on the PATH" in refused.stderr
    assert not (place.home / "runs").exists()
    work = f"while ! test -e {place.root}/go; do sleep 0.05; done; echo done > f"
    first = json.loads(script(place, "spawn_runner.py", *words, "--command", work, "--terminal", "process").stdout)
    wait_for("the agent works", lambda: "orchestrator-n" in str(place.living_processes()))
    running = place.command("up", "--json")
    assert json.loads(running.stdout)[0] == {"run": RUN, "state": "tended",
                                             "why": f"its runner is alive (pid {first['runner_pid']})"}
    kill(first["runner_pid"])
    by_cron = script(place, "identity_registry.py", "find-stale", "--respawn")
    assert by_cron.stderr == f"run {RUN} is started: its runner, incarnation 2\n"
    kill(place.pid("runner-n", RUN, incarnation=2))
    by_hand = place.command("up")
    assert (by_hand.returncode, by_hand.stdout) == (0, f"{RUN}\n")
    (place.root / "go").touch()
    wait_for("the branch is enqueued", lambda: place.identity("runner-n", RUN)["status"] == "terminated")
    identity = place.identity("runner-n", RUN)
    assert (identity["incarnation"], identity["metadata"]["reason"]) == (3, "done")
    over = json.loads(place.command("up", "--json").stdout)
    assert over == [{"run": RUN, "state": "over", "why": "done"}]
    wait_for("all processes have ended", lambda: not place.living_processes())


@pytest.mark.slow
def test_an_orchestrator_without_a_runner_is_named_with_the_command_that_continues_it(place: Place) -> None:
    work = f"while ! test -e {place.root}/go; do sleep 0.05; done; echo done > f"
    words = ("--repo-root", place.repo, "--node", "n", "--prd", "P")
    first = script(place, "spawn_orchestrator.py", *words, "--command", work, "--terminal", "process")
    kill(json.loads(first.stdout)["pid"])
    told = place.command("up")
    assert told.returncode == 1
    assert f"run {RUN} is not resumed: its orchestrator was started by hand, without a runner, and died" in told.stderr
    assert f"`spawn_orchestrator.py --repo-root {place.repo} --run {RUN} --node n --prd P` continues it" in told.stderr
    again = script(place, "spawn_orchestrator.py", *words, "--run", RUN)
    assert json.loads(again.stdout)["incarnation"] == 2
    (place.root / "go").touch()
    wait_for("all processes have ended", lambda: not place.living_processes())
