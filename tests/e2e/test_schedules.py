"""Schedules: `garrison up` starts a run once for each due time, also if called twice at once and after kills."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support import PROGRAM, Place, git, processes, wait_for

MINUTES = 60.0


def make_due(place: Place, name: str, minutes: float = 1) -> None:
    """Move a schedule's start into the past."""
    path = place.home / "schedules" / name / "schedule.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "since": time.time() - minutes * MINUTES}))


def add(place: Place, *words: str, times: str = "@yearly", name: str = "often",
        command: str = "date +%N > made.txt") -> None:
    done = place.command("schedule", "add", times, "--name", name, "--target-dir", place.repo, *words, "--",
                         "run", "Make a file", f"--command={command}", "--no-gate", "--terminal=process")
    assert done.returncode == 0, done.stderr
    assert "nothing calls `garrison up` here" in done.stderr


def starts(place: Place, *states: str) -> list[dict[str, Any]]:
    """Return the starts in these states, or in any."""
    shown = json.loads(place.command("schedule", "history", "--json").stdout)
    return [each for each in shown if not states or each["state"] in states]


def starting(place: Place) -> list[int]:
    return [each.pid for each in processes("garrison.schedules.starts") if str(place.home) in each.argv]


def test_a_due_time_starts_one_run_over_concurrent_calls_and_kills(place: Place) -> None:
    wait_for("a minute with enough left of it", lambda: time.time() % MINUTES < 45)
    add(place, times="* * * * *")
    make_due(place, "often", (time.time() % MINUTES + 1) / MINUTES)  # this minute's time, and no other
    calls = [place.begin("up") for _ in range(2)]
    assert [call.wait(60) for call in calls] == [0, 0]
    place.command("schedule", "pause", "often")  # so that the next minute is not due
    for pid in starting(place):  # before it knows of a run
        os.kill(pid, signal.SIGKILL)
    wait_for("the start to be free", lambda: not starting(place))
    place.command("up")
    wait_for("a run", lambda: starts(place, "started"))
    place.command("up")
    found = starts(place)
    assert len({each["due"] for each in found}) == len(found)
    run = starts(place, "started")[0]["runs"][0]
    wait_for("its end", lambda: place.status(run) == "done")
    landed = git(place.repo, "log", "--format=%s", f"{place.start}..main", "--", "made.txt")
    assert landed.splitlines() == ["Make a file"]


def test_overlap_condition_and_failures(place: Place) -> None:
    told = place.root / "told"
    place.configure(f'\n[notify]\ncommand = ["sh", "-c", "cat >> {told}"]\n')
    add(place, "--overlap", "skip", name="slow", command="sleep 600")
    assert place.command("schedule", "run-now", "slow").returncode == 0
    wait_for("the first run", lambda: starts(place, "started"))
    run = starts(place, "started")[0]["runs"][0]
    assert place.command("schedule", "run-now", "slow").returncode == 0
    wait_for("the second to be skipped", lambda: starts(place, "skipped"))
    assert starts(place, "skipped")[0]["why"] == f"run {run} is not over"
    assert place.command("stop", run).returncode == 0

    add(place, "--if", "test -e no-such-file", name="idle")
    place.command("schedule", "run-now", "idle")
    wait_for("nothing to do", lambda: len(starts(place, "skipped")) == 2)
    assert "nothing to do: `test -e no-such-file` failed (exit code 1)" in starts(place, "skipped")[-1]["why"]

    add(place, name="broken")
    path = place.home / "schedules/broken/schedule.json"
    path.write_text(path.read_text().replace("--no-gate", "--gate=false"))
    for number in range(1, 4):
        place.command("schedule", "run-now", "broken")
        wait_for("a failure", lambda number=number: len(starts(place, "failed")) == number)
    place.command("up")
    shown = json.loads(place.command("schedule", "list", "--json").stdout)
    assert [each["name"] for each in shown if "its last 3 starts failed" in each["paused"]] == ["broken"]
    assert "schedule broken is paused" in told.read_text()
    assert place.command("schedule", "unpause", "broken").returncode == 0
    assert place.command("schedule", "remove", "broken").returncode == 0
    assert place.command("schedule", "run-now", "broken").stderr == (
        "garrison: there is no schedule broken; there is idle, slow\n")


MANAGER = """
mount -t tmpfs none /run && mkdir -p /run/systemd/system -m 755 && mkdir -p -m 700 /run/user/$(id -u) || exit 77
export XDG_RUNTIME_DIR=/run/user/$(id -u)
{systemd} --user --log-target=console &
manager=$!
for _ in $(seq 100); do test -S $XDG_RUNTIME_DIR/systemd/private && break; sleep 0.1; done
test -S $XDG_RUNTIME_DIR/systemd/private || exit 77
{garrison} schedule add '* * * * *' --name often --target-dir {repo} -- run 'Make a file' \
  --command 'date > made.txt' --no-gate --terminal=process
for _ in $(seq 180); do test -s {home}/runs/often-*/launch.json && break; sleep 0.5; done
{garrison} schedule pause often
for _ in $(seq 120); do {garrison} schedule history | grep -q started && break; sleep 0.5; done
kill $manager
"""


@pytest.mark.slow
def test_a_real_user_manager_starts_a_due_run_within_seconds(place: Place) -> None:
    """systemd runs in namespaces of its own; only its transient timer calls `garrison up`."""
    systemd = next((path for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if Path(path).exists()), None)
    if systemd is None or os.geteuid() != 0 or not all(map(shutil.which, ("systemctl", "systemd-run", "unshare"))):
        pytest.skip("needs systemd, and root for namespaces of its own")
    script = MANAGER.format(systemd=systemd, garrison=shlex.join(PROGRAM), repo=place.repo, home=place.home)
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--cgroup", "sh", "-c", script],
                          env=place.env, capture_output=True, text=True, check=False, timeout=200)
    if done.returncode == 77:
        pytest.skip(f"a user manager does not run here: {done.stderr.strip()[-200:]}")
    [start] = [json.loads(path.read_text()) for path in (place.home / "schedules/often").glob("*/*Z.json")]
    late = start["at"] - start["due"]
    print(f"recorded {late:.2f} s after it was due")
    assert 0 <= late < 10, "2 s where the machine is idle"
    assert start["runs"], done.stdout + done.stderr
