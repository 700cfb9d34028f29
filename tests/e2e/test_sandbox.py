"""Whole runs in the sandbox: agent, set-up, acceptance and gate; what an agent commits and reports arrives."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from garrison.sandbox.probe import machine
from screen_support import Screen
from support import Node, Place, git, wait_for

pytestmark = pytest.mark.skipif(not machine().bubblewrap, reason=machine().refusal or "bubblewrap works")

SECRET = "the user's secret"
LOOK = "test ! -e $GARRISON_HOME/identities && test ! -e {repo}/README.md && test ! -e {secret} && ! touch /usr/local/x"


def confine(place: Place, settings: str = "") -> None:
    """Configure the home to confine everything."""
    place.configure(f'mode = "bubblewrap"\nnetwork = "none"\n{settings}')


def graph(place: Place, command: str) -> Path:
    """Write a graph whose only node is `one`."""
    return place.graph(Node("one", command=command))


def without_bubblewrap(place: Place, names: Sequence[str] = ()) -> str:
    """Return a PATH with these programs, or with every program of this machine but bubblewrap."""
    folder = place.root / "bin"
    folder.mkdir()
    for each in (each for place in ("/usr/bin", "/bin") for each in Path(place).iterdir()):
        if (each.name in names or not names) and each.name != "bwrap" and not (folder / each.name).exists():
            (folder / each.name).symlink_to(each)
    return str(folder)


def launch_and_stop(place: Place, **env: str) -> None:
    """Launch a run, and stop it once its agent works; when it is resumed, the agent ends."""
    command = "test -e going || { touch going; sleep 600; }; echo x > one.txt; git add -A; git commit -qm one"
    place.launch(graph(place, command), gate="true", **env)
    wait_for("the agent works", lambda: next(place.trees.glob("*/r1/one/going"), None))
    assert place.command("stop", "r1").returncode == 0
    wait_for("the run has stopped", lambda: place.identity("launch").get("status") == "terminated")


def test_a_run_lands_from_inside_the_sandbox_and_sees_nothing_else(place: Place) -> None:
    secret = place.user / "secret"
    secret.write_text(SECRET)
    confine(place)
    look = LOOK.format(repo=place.repo, secret=secret)
    nodes = [Node(name, command=f"{look} && cat ~/tool && echo {name} > {name}.txt && git add -A && "
                  f"git commit -qm {name} && git stash list && test -d $HOME && touch $HOME/mine && "
                  "cat $GARRISON_PROMPT_FILE", attributes=f'setup="echo tool > ~/tool && {look}", '
                  f'acceptance="cat ~/tool && grep {name} {name}.txt && git log -1 && {look}"')
             for name in ("one", "two")]
    place.run(place.graph(*nodes), "r1", "--setup", "true",
              gate="git rev-parse HEAD && ls && test ! -e ~/mine && touch ~/mine")
    assert git(place.repo, "show", "main:one.txt") == "one"
    assert git(place.repo, "show", "main:two.txt") == "two"
    assert "sandbox: bubblewrap" in (place.root / "out").read_text()
    assert "sandbox: bubblewrap" in place.command("status", "r1", "-v").stdout
    assert not list(place.trees.rglob(".*.sandbox/agent*")), "the agents' own files are left"


def test_an_impossible_mode_refuses_the_launch_in_one_line(place: Place) -> None:
    confine(place)
    refused = place.command("launch", graph(place, "true"), "--target-dir", place.repo, "--run", "r1", "--no-gate",
                            PATH=without_bubblewrap(place, ("git", "sh", "tmux", "timeout")))
    assert refused.returncode == 1
    [line] = [line for line in refused.stderr.splitlines() if "no sandbox" in line]
    assert "agent command: no sandbox: bubblewrap is not installed; install it with `" in line
    assert line.endswith('or set mode = "none" in [sandbox] of config.toml')


def test_a_resumed_run_names_the_sandbox_that_it_has_from_then_on(place: Place) -> None:
    """One whose sandbox has become impossible is not resumed."""
    confine(place)
    launch_and_stop(place, GARRISON_SANDBOX="none")
    assert "sandbox: none" in place.command("status", "r1").stdout
    done = place.command("resume", "r1", PATH=without_bubblewrap(place, ("git",)), GARRISON_SANDBOX="bubblewrap")
    assert done.returncode == 1
    assert "agent command: no sandbox: bubblewrap is not installed" in done.stderr
    (place.root / "out").write_text("")
    assert place.finish(place.resume(GARRISON_SANDBOX="bubblewrap")) == 0, place.logs()
    assert "sandbox: bubblewrap" in (place.root / "out").read_text()
    assert "sandbox: bubblewrap" in place.command("status", "r1", "-v").stdout


def test_pipeline_run_names_its_sandbox_and_what_a_tool_could_not_read(place: Place) -> None:
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
    assert "work: success" in done.stderr, "its directory is relative"
    assert "sandbox: bubblewrap\n" in done.stderr
    assert "add the path to read = [...] in [sandbox.tool] of config.toml" in done.stderr


def test_the_refused_host_of_a_gate_is_named(place: Place) -> None:
    confine(place, '[sandbox.gate]\nnetwork = "allow"\n')
    gate = "python3 -c 'import urllib.request as u; u.urlopen(\"http://mirror.example/\")'"
    place.run(graph(place, "true"), gate=gate, code=1)
    assert "mirror.example:80 was refused: not among the allowed hosts" in (place.root / "out").read_text()


TRY_SOCKETS = """import os, socket, subprocess, sys
for folder, _, names in os.walk(sys.argv[1]):
    for path in (os.path.join(folder, name) for name in names):
        try:
            socket.socket(socket.AF_UNIX).connect(path)
        except OSError:
            continue
        subprocess.run(["tmux", "-S", path, "run-shell", "touch " + sys.argv[2]])
"""


needs_landlock = pytest.mark.skipif(not machine().landlock, reason="Landlock is not enabled in this kernel")


@needs_landlock
def test_landlock_is_asked_for_once_and_gives_its_agents_no_terminal_server(place: Place) -> None:
    path, escaped = without_bubblewrap(place), place.user / "escaped"
    (place.root / "sockets.py").write_text(TRY_SOCKETS)
    command = (f"/usr/bin/python3 {place.root}/sockets.py {place.folder} {escaped}; echo x > one.txt; "
               f"cat {place.repo}/.git/config >> one.txt; git config --list >> one.txt; git add -A; git commit -qm x")
    git(place.repo, "config", "remote.up.url", "https://ada:s3cret@host.example/x")
    arguments = ["launch", str(graph(place, command)), "--target-dir", str(place.repo), "--run", "r1", "--gate", "true"]
    refused = place.command(*arguments, PATH=path)
    offered = "`--sandbox landlock`, which leaves gaps" in refused.stderr
    assert (refused.returncode, offered) == (1, True), refused.stderr
    config = (place.home / "config.toml").read_text()
    install = Screen(place, *arguments, PATH=path)
    assert "servers behind Unix sockets" in install.until("Your choice")
    install.type("1\n")
    code, shown = install.end()
    assert (code, "bubblewrap`, then run the same command again" in shown) == (1, True), shown
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
    launch_and_stop(place, GARRISON_SANDBOX="landlock", PATH=path)
    record = place.home / "runs/r1/launch.json"
    launch = json.loads(record.read_text())
    record.write_text(json.dumps({**launch, "sandbox_mode": "", "terminal": "auto"}))
    assert place.finish(place.resume(PATH=path)) == 0, place.logs()
    told = (place.root / "out").read_text()
    assert "an earlier version chose it, and this run keeps it" in told
    assert git(place.repo, "show", "main:one.txt") == "x"
    assert not list(place.home.glob("run/tmux*"))


WORK = """set -e
echo one > one.txt; git add one.txt; git commit -qm one; git commit -q --amend -m "one, amended"
git branch mine; git tag mine; echo x >> calc.py; git stash -q; git update-ref refs/heads/main HEAD
folder=$(dirname "$GARRISON_PROMPT_FILE"); ls "$folder" > seen.txt; cat "$GARRISON_CONTEXT_FILE" > context.txt
echo forged > "$folder/result.json" 2>/dev/null || true
echo forged > "$GARRISON_PROMPT_FILE" 2>/dev/null || echo "prompt kept" >> seen.txt
echo "half is done" > "$GARRISON_NOTES_FILE"; echo '{"notes": "reported"}' > "$GARRISON_RESULT_FILE"
"""


def test_what_a_confined_agent_commits_and_leaves_lands_and_nothing_else(place: Place) -> None:
    place.run(place.graph(Node("a", command=WORK)), gate="test -f calc.py")
    assert git(place.repo, "show", "main:one.txt") == "one"
    assert "one, amended" in git(place.repo, "log", "--format=%s", "main")
    seen = git(place.repo, "show", "main:seen.txt").splitlines()
    assert sorted(seen[:-1]) == ["agent", "context.json", "prompt.md", "signals.jsonl"]
    assert seen[-1] == "prompt kept"
    refs = git(place.repo, "for-each-ref", "--format=%(refname)").splitlines()
    assert not [ref for ref in refs if "mine" in ref or "stash" in ref]
    assert place.hook("orchestrator-a")["resumption_instructions"].strip() == "half is done"
    assert "forged" not in (place.home / "runs/r1/nodes/a/1/result.json").read_text()
    assert not list(place.trees.rglob("*")), "no worktree, no git view and no home of the agent's is left"


@pytest.mark.slow
def test_a_death_at_any_step_of_a_collection_loses_and_doubles_no_commit(place: Place) -> None:
    steps = [f"collect:{step}" for step in ("imported", "pending", "moved", "followed", "indexed")]
    commits = "; ".join(f"git log --format=%s | grep -qx {name} || {{ echo {name} > {name}; git add -A; "
                        f"git commit -qm {name}; }}" for name in ("c1", "c2", "c3"))
    graph = place.graph(Node("a", command=f"set -e; {commits}; echo left > left.txt"))
    place.run(graph, gate="test -f calc.py", resumes=20, GARRISON_FAILPOINT=",".join(steps))
    subjects = git(place.repo, "log", "--format=%s", "--no-merges", "main").splitlines()
    assert [subjects.count(name) for name in ("c1", "c2", "c3", "a")] == [1, 1, 1, 1]
    assert git(place.repo, "show", "main:left.txt") == "left"
    assert set(place.failpoint_kills()) == set(steps)
    git(place.repo, "fsck", "--strict")
