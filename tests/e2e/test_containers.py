"""Runs whose set-up, agent, acceptance and gate work in a container. Skipped without Podman."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from container_support import IMAGE, container_engine
from garrison.sandbox import container
from garrison.testing.isolation import SKIPPED
from support import DEADLINE, PROGRAM, Place, git, wait_for

ROOT = Path(__file__).parents[2]
__all__ = ["container_engine"]
DESCRIBED = """\
{
  // what agents may change
  "build": {"dockerfile": "Dockerfile", "args": {"WORD": "built"}},
  "containerEnv": {"COLOUR": "red"},
  "workspaceFolder": "/workspaces/project",
  "postCreateCommand": "mkdir -p made && cp /etc/word made/by-set-up && echo $COLOUR >> made/by-set-up",
}
"""
AGENT = """
[ -e first ] || { touch first; sleep 5; }
rm first
{ cat made/by-set-up; pwd; git log --format=%s -1; ls /sys/class/net; } > seen
git add seen && git commit -qm "In a container"
"""


def lines(*words: str) -> list[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def labels(run: str, *names: str, more: tuple[str, ...] = ("--all",)) -> list[str]:
    """Return these labels of each container of a run."""
    shown = " ".join(f'{{{{index .Labels "garrison.{name}"}}}}' for name in names or ("node", "role"))
    return lines("podman", "ps", *more, "--filter", f"label=garrison.run={run}", "--format", shown)


@pytest.mark.parametrize("victim", ["runner", "orchestrator"])
def test_a_killed_node_continues_in_a_new_container_and_none_is_left(place: Place, victim: str) -> None:
    place.commit("Describe a container", {
        ".devcontainer/devcontainer.json": DESCRIBED, ".gitignore": "made\n",
        ".devcontainer/Dockerfile": f"FROM {IMAGE}\nARG WORD\nRUN echo $WORD > /etc/word\n"})
    (place.home / "config.toml").write_text(
        f'[sandbox]\nmode = "container"\n[agents.double]\nargv = ["sh", "-c", {json.dumps(AGENT)}]\n')
    run = f"r-{victim}-{os.getpid()}"
    child = subprocess.Popen(
        [*PROGRAM, "run", "look", "around", "--agent", "double", "--run", run, "--terminal", "process", "--acceptance",
         "grep -q built seen", "--gate", "test -f made/by-set-up && test -f /etc/word && test ! -w /etc/word"],
        cwd=place.repo, env=place.env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True)
    wait_for("the agent's container", lambda: child.poll() is not None or (
        labels(run) == ["look_around agent"] and list(place.trees.glob("*/*/look_around/first"))))
    assert child.poll() is None, child.communicate()[0]
    pid = json.loads((place.home / "identities" / f"{victim}-look_around@{run}.json").read_text())["pid"]
    pids = [pid]
    if victim == "orchestrator":  # and all that would remove its container, as a power cut ends it
        [launcher] = [int(line.split()[0]) for line in labels(run, "owner", more=())]
        monitor = next(int(line.split()[0]) for line in lines("ps", "--ppid", str(launcher), "-o", "pid=,comm=")
                       if line.endswith("conmon"))
        pids = [launcher, monitor, pid]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    out, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 0, out
    assert "sandbox: container of localhost/garrison-devcontainer:" in out
    assert "agent double: /usr/bin/sh comes from the image" in out
    assert git(place.repo, "show", "main:seen").splitlines() == [
        "built", "red", "/workspaces/project", "Describe a container", "lo"]
    if victim == "orchestrator" and labels(run):  # the monitor may have removed it before it was killed
        assert labels(run) == ["look_around agent"]
        done = place.command("doctor", "--fix")
        assert "of look_around of run " in done.stdout and not labels(run), done.stdout
    assert not labels(run)
    assert not [left for left in container.list_left() if left.run == run]


def test_a_devcontainer_that_asks_for_more_is_refused_with_what_to_write(place: Place) -> None:
    place.commit("Ask for more", {".devcontainer.json": '{"image": "x",\n "runArgs": ["--pid=host"]}\n'})
    (place.home / "config.toml").write_text('[sandbox]\nmode = "container"\n')
    done = place.command("run", "say hi", "--command", "true", "--gate", "true", "--target-dir", place.repo)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        'garrison: .devcontainer.json:2: agents may change this file, so runArgs needs your consent: add devcontainer '
        '= ["runArgs"] to [sandbox] of config.toml, or name an image yourself: image = "…" in [sandbox] of config.toml')


@pytest.mark.slow
def test_the_real_cli_works_in_containers_as_agent_and_as_validator() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "garrison.testing.isolation", "--by", "root", "--", sys.executable, "-m", "pytest",
         "-q", "-p", "no:cacheprovider", "-rs", "tests/claude/test_containers.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
