"""Whole runs in the sandbox: work, kills, rework, validation of set-up, acceptance and gate, each in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.sandbox.probe import machine
from support import Place, git, wait_for

pytestmark = pytest.mark.skipif(not machine().bubblewrap, reason=machine().refusal or "bubblewrap works")

SECRET = "the user's secret"
LOOK = "test ! -e $GARRISON_HOME/identities && test ! -e {repo}/README.md && test ! -e {secret} && ! touch /usr/local/x"


def confine(place: Place, settings: str = "") -> None:
    """Configure the home to confine everything."""
    place.home.mkdir(exist_ok=True, mode=0o700)
    (place.home / "config.toml").write_text(f'[sandbox]\nmode = "bubblewrap"\nnetwork = "none"\n{settings}')
    place.env.pop("GARRISON_SANDBOX")


def graph(place: Path, nodes: str) -> Path:
    path = place / "crew.dot"
    path.write_text("digraph crew { flow=dag; start [shape=Mdiamond]; exit [shape=Msquare];\n" + nodes + "}\n")
    return path


def test_a_run_lands_from_inside_the_sandbox_and_sees_nothing_else(place: Place) -> None:
    secret = place.user / "secret"
    secret.write_text(SECRET)
    confine(place)
    script = place.root / "gate.sh"
    script.write_text("git rev-parse HEAD && ls && test ! -e ~/mine && touch ~/mine\n")
    look = LOOK.format(repo=place.repo, secret=secret)
    nodes = "".join(
        f'{name} [shape=box, setup="echo tool > ~/tool && {look}", acceptance="cat ~/tool && grep {name} {name}.txt && '
        f'git log -1 && {look}", command="{look} && cat ~/tool && echo {name} > {name}.txt && git add -A && '
        f'git commit -qm {name} && git stash list && test -d $HOME && touch $HOME/mine && cat $GARRISON_PROMPT_FILE"]; '
        f"start -> {name} -> exit;\n"
        for name in ("one", "two"))
    child = place.launch(graph(place.root, nodes), "r1", "--setup", "true",
                         gate=f"sh {script}")
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:one.txt") == "one"
    assert git(place.repo, "show", "main:two.txt") == "two"
    assert "sandbox: bubblewrap" in (place.root / "out").read_text()
    assert "sandbox: bubblewrap" in place.command("status", "r1").stdout
    assert not list(place.trees.rglob(".*.sandbox/agent*")), "what the agents had of their own is left"


def test_a_successor_continues_what_a_killed_orchestrators_agent_committed(place: Place) -> None:
    confine(place)
    command = ('if test -e first.txt; then echo second > second.txt; else echo first > first.txt; git add -A; '
               'git commit -qm first; touch committed; sleep 600; fi; git add -A; git commit -qm second')
    child = place.launch(graph(place.root, f'one [shape=box, command="{command}"]; start -> one -> exit;'), gate="true")
    wait_for("the agent has committed", lambda: next(place.trees.glob("*/r1/one/committed"), None))
    place.kill("orchestrator-one")
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:first.txt") == "first"
    assert git(place.repo, "show", "main:second.txt") == "second"
    assert place.deaths() == {"orchestrator-one": [1]}


def test_a_mode_that_cannot_be_held_refuses_the_launch_in_one_line(place: Place) -> None:
    confine(place)
    (place.root / "bin").mkdir()
    for name in ("git", "sh", "tmux", "timeout"):
        program = Path("/usr/bin", name)
        if program.exists():
            (place.root / "bin" / name).symlink_to(program)
    child = place.begin("launch", graph(place.root, 'one [shape=box, command="true"]; start -> one -> exit;'),
                        "--target-dir", place.repo, "--run", "r1", "--no-gate", PATH=str(place.root / "bin"))
    assert place.finish(child) == 1
    [line] = [line for line in (place.root / "out").read_text().splitlines() if "no sandbox" in line]
    assert "agent command: no sandbox: bubblewrap is not installed; install it with `" in line
    assert line.endswith('or set mode = "none" in [sandbox] of config.toml')
