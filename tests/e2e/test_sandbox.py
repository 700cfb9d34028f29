"""Whole runs in the sandbox: work, kills, rework, validation of set-up, acceptance and gate, each in its place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from garrison.sandbox.probe import machine
from screen_support import Screen
from support import Place, git, wait_for

pytestmark = pytest.mark.skipif(not machine().bubblewrap, reason=machine().refusal or "bubblewrap works")

SECRET = "the user's secret"
LOOK = "test ! -e $GARRISON_HOME/identities && test ! -e {repo}/README.md && test ! -e {secret} && ! touch /usr/local/x"


def confine(place: Place, settings: str = "") -> None:
    """Configure the home to confine everything."""
    place.configure(f'mode = "bubblewrap"\nnetwork = "none"\n{settings}')


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
    assert "sandbox: bubblewrap" in place.command("status", "r1", "-v").stdout
    assert not list(place.trees.rglob(".*.sandbox/agent*")), "what the agents had of their own is left"


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


def test_a_resumed_run_names_the_sandbox_that_it_has_from_then_on(place: Place) -> None:
    """One whose sandbox cannot be held any more is not resumed."""
    confine(place)
    command = "test -e going || { touch going; sleep 600; }; echo x > one.txt; git add -A; git commit -qm one"
    place.launch(graph(place.root, f'one [shape=box, command="{command}"]; start -> one -> exit;'), "r1",
                 gate="true", GARRISON_SANDBOX="none")
    wait_for("the agent works", lambda: next(place.trees.glob("*/r1/one/going"), None))
    assert place.command("stop", "r1").returncode == 0
    wait_for("the run has stopped", lambda: place.identity("launch").get("status") == "terminated")
    assert "sandbox: none" in place.command("status", "r1").stdout
    (place.root / "bin").mkdir()
    (place.root / "bin/git").symlink_to("/usr/bin/git")
    done = place.command("resume", "r1", PATH=str(place.root / "bin"), GARRISON_SANDBOX="bubblewrap")
    assert done.returncode == 1
    assert "agent command: no sandbox: bubblewrap is not installed" in done.stderr
    (place.root / "out").write_text("")
    assert place.finish(place.resume(GARRISON_SANDBOX="bubblewrap")) == 0, place.logs()
    assert "sandbox: bubblewrap" in (place.root / "out").read_text()
    assert "sandbox: bubblewrap" in place.command("status", "r1", "-v").stdout


def test_pipeline_run_tells_its_sandbox_and_what_a_tool_missed(place: Place) -> None:
    confine(place)
    outside = place.folder / "outside.txt"
    outside.write_text("x")
    (place.root / "tools.dot").write_text("digraph tools { start [shape=Mdiamond]; exit [shape=Msquare]; "
                                          'work [command="test -f calc.py"]; '
                                          f'look [shape=parallelogram, tool_command="cat {outside}"]; '
                                          "start -> work -> look -> exit; }")
    workdir = os.path.relpath(place.repo, place.root)
    done = place.command("pipeline", "run", "tools.dot", "--workdir", workdir, "--run-dir", "run")
    assert done.returncode == 1
    assert "work: success" in done.stderr, "its directory is given relative to ours"
    assert "sandbox: bubblewrap\n" in done.stderr
    assert "add the path to read = [...] in [sandbox.tool] of config.toml" in done.stderr


def test_a_gate_that_was_refused_a_host_says_so(place: Place) -> None:
    confine(place, '[sandbox.gate]\nnetwork = "allow"\n')
    gate = "python3 -c 'import urllib.request as u; u.urlopen(\"http://mirror.example/\")'"
    child = place.launch(graph(place.root, 'one [shape=box, command="true"]; start -> one -> exit;'), gate=gate)
    assert place.finish(child) == 1
    assert "mirror.example:80 was refused: not among the allowed hosts" in (place.root / "out").read_text()


# ------------------------------------------------------------------------------------ machines without bubblewrap


TRY_SOCKETS = """import os, socket, subprocess, sys
for folder, _, names in os.walk(sys.argv[1]):
    for path in (os.path.join(folder, name) for name in names):
        try:
            socket.socket(socket.AF_UNIX).connect(path)
        except OSError:
            continue
        subprocess.run(["tmux", "-S", path, "run-shell", "touch " + sys.argv[2]])
"""


def without_bubblewrap(place: Place) -> str:
    """Return a PATH with every program of this machine but bubblewrap."""
    folder = place.root / "bin"
    folder.mkdir()
    for each in (each for place in ("/usr/bin", "/bin") for each in Path(place).iterdir()):
        if each.name != "bwrap" and not (folder / each.name).exists():
            (folder / each.name).symlink_to(each)
    return str(folder)


needs_landlock = pytest.mark.skipif(not machine().landlock, reason="Landlock is not enabled in this kernel")


@needs_landlock
def test_landlock_is_asked_for_once_and_gives_its_agents_no_terminal_server(place: Place) -> None:
    path, escaped = without_bubblewrap(place), place.user / "escaped"
    (place.root / "sockets.py").write_text(TRY_SOCKETS)
    command = (f"/usr/bin/python3 {place.root}/sockets.py {place.folder} {escaped}; echo x > one.txt; "
               f"cat {place.repo}/.git/config >> one.txt; git config --list >> one.txt; git add -A; git commit -qm x")
    git(place.repo, "config", "remote.up.url", "https://ada:s3cret@host.example/x")
    arguments = ["launch", str(graph(place.root, f'one [shape=box, command="{command}"]; start -> one -> exit;')),
                 "--target-dir", str(place.repo), "--run", "r1", "--gate", "true"]
    refused = place.command(*arguments, PATH=path)
    offered = "`--sandbox landlock`, which leaves gaps" in refused.stderr
    assert (refused.returncode, offered) == (1, True), refused.stderr
    config = (place.home / "config.toml").read_text()
    install = Screen(place, *arguments, PATH=path)
    assert "servers behind Unix sockets" in install.until("Your choice")
    install.type("1\n")
    code, shown = install.end()
    assert (code, "bubblewrap`, then type the same command again" in shown) == (1, True), shown
    assert (place.home / "config.toml").read_text() == config
    asked = Screen(place, *arguments, PATH=path)
    asked.until("Your choice")
    asked.type("2\n")
    code, shown = asked.end()
    assert (code, "sandbox: landlock" in shown) == (0, True), shown
    assert 'mode = "landlock"' in (place.home / "config.toml").read_text()
    read = git(place.repo, "show", "main:one.txt")
    assert ("remote.up.url=https://host.example/x" in read, "s3cret" in read) == (True, False), read
    assert not escaped.exists()
    tmux = place.command(*arguments, "--new", "--run", "r2", "--terminal", "tmux", PATH=path)
    assert (tmux.returncode, "use --terminal process" in tmux.stderr) == (1, True), tmux.stderr
    (place.repo / ".gitmodules").write_text('[submodule "sub"]\n\tpath = sub\n\turl = ./x\n')
    git(place.repo, "add", ".gitmodules")
    git(place.repo, "update-index", "--add", "--cacheinfo", f"160000,{git(place.repo, 'rev-parse', 'HEAD')},sub")
    git(place.repo, "commit", "-qm", "a submodule")
    told = place.command(*arguments, "--new", "--run", "r2", PATH=path)
    assert (told.returncode, "has submodules (sub)" in told.stderr) == (1, True), told.stderr


@needs_landlock
def test_a_run_of_an_earlier_version_keeps_landlock_without_tmux(place: Place) -> None:
    """Its `auto` was Landlock where bubblewrap was missing, and its agents' terminal was tmux."""
    path = without_bubblewrap(place)
    command = "test -e going || { touch going; sleep 600; }; echo x > one.txt; git add -A; git commit -qm one"
    place.launch(graph(place.root, f'one [shape=box, command="{command}"]; start -> one -> exit;'), gate="true",
                 GARRISON_SANDBOX="landlock", PATH=path)
    wait_for("the agent works", lambda: next(place.trees.glob("*/r1/one/going"), None))
    assert place.command("stop", "r1").returncode == 0
    record = place.home / "runs/r1/launch.json"
    launch = json.loads(record.read_text())
    record.write_text(json.dumps({**launch, "sandbox_mode": "", "terminal": "auto"}))
    assert place.finish(place.resume(PATH=path)) == 0, place.logs()
    told = (place.root / "out").read_text()
    assert "an earlier version chose it, and this run keeps it" in told
    assert git(place.repo, "show", "main:one.txt") == "x"
    assert not list(place.home.glob("run/tmux*"))
