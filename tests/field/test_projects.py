"""Real projects from `garrison init` to one landed task, as a user runs them, with processes killed in between."""

from __future__ import annotations

import shutil

import pytest

from projects import PROJECTS, Project
from support import wait_for
from toolchains import Missing, open_registries, released
from world import COLUMNS, HOME, World, Worlds, in_column

HOLD = """\
if test "$GARRISON_ATTEMPT" != 1; then touch held-1 held-2; fi
if test ! -e held-1; then touch held-1; sleep 86399; fi
if test ! -e held-2; then touch held-2; sleep 86398 || :; fi
set -e
"""
"""Start of each task: it waits to be killed, restarts, and waits until its sleep is killed; a second attempt does not
wait."""


def make_checkout(project: Project, home: World) -> str:
    """Make the user's repository; return its path inside."""
    checkout = HOME / "code" / project.name
    folder = home.outside(checkout)
    if project.source:
        shutil.copytree(released(project.source), folder, symlinks=True)
    for name, text in project.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    home.own()
    home.shell(checkout, f"git init -q; {project.before or ':'}")
    home.shell(checkout, "git add -A; git commit -qm Begin")
    return str(checkout)


def land(project: Project, home: World) -> str:
    """Prepare the repository with `init`, run the task with kills, and check what landed; return the run's output."""
    checkout = make_checkout(project, home)
    begun = home.run(checkout, "garrison", "init", *project.init, seconds=600)
    assert begun.returncode == 0, f"{begun.stdout}\n{begun.stderr}\n{home.logs()}"
    assert "trial: passed on main" in begun.stderr, begun.stderr
    home.shell(checkout, "git add garrison.toml first.dot; git commit -qm 'Add garrison'")
    command = f"{HOLD}{project.task}\nrm -f held-1 held-2"
    words = ["garrison", "run", f"do the task of {project.name}", "--command", command]
    log = home.scratch / "run.log"
    child = home.begin(checkout, *words, *(["--acceptance", project.acceptance] if project.acceptance else []), log=log)

    def seen(name: str) -> bool:
        assert child.poll() is None, f"{log.read_text()}\n{home.logs()}"
        return bool(list(home.home.glob(f".cache/garrison/*/*/*/{name}")))

    try:
        wait_for("the agent works", lambda: seen("held-1"), 60)
        home.kill(*[pid for pid, line in home.processes().items()
                    if "sleep 86399" in line and line.split()[0].rpartition("/")[2] in ("sh", "bash", "sleep")])
        wait_for("it works again", lambda: seen("held-2"), 60)
        [runner] = home.identities("runner")
        home.kill(runner["pid"])
        wait_for("another runner continues", lambda: home.identities("runner")[0]["incarnation"] == 2, 60)
        home.kill(*[pid for pid, line in home.processes().items() if line.startswith("sleep 86398")])
        code = child.wait(300)
    except BaseException as error:
        running = "\n".join(f"{pid} {line[-200:]}" for pid, line in home.processes().items())
        held = sorted(str(path) for name in ("held-1", "held-2")
                      for path in home.home.glob(f".cache/garrison/*/*/*/{name}"))
        raise AssertionError(f"{error}\n{log.read_text()}\n{running}\n{held}\n{home.logs()}") from error
    shown = log.read_text()
    assert code == 0, f"{shown}\n{home.logs()}"
    assert "landed" in shown.strip().splitlines()[-1], shown
    for name, text in project.landed.items():
        assert text in home.shell(checkout, f"git show main:{name}"), shown
    assert home.shell(checkout, "git status --porcelain") == "", shown
    assert not {"held-1", "held-2"} & set(home.shell(checkout, "git ls-tree --name-only main").split())
    wait_for("nothing of it runs", lambda: not home.garrisons(), 30)
    return shown


@pytest.mark.parametrize("project", [pytest.param(each, id=each.name, marks=[] if each.full else [pytest.mark.slow])
                                     for each in PROJECTS])
def test_a_project_is_prepared_and_a_task_lands_in_it(project: Project, worlds: Worlds) -> None:
    home = worlds(*project.tools)
    try:
        open_registries(home, *project.registry)
        land(project, home)
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain-python", "uv-without-network", "npm-without-network", "cargo", "go", "make",
                                  "without-tests"])
@pytest.mark.parametrize("column", COLUMNS)
def test_a_task_lands_for_an_ordinary_user_and_in_other_sandboxes(column: str, name: str, worlds: Worlds) -> None:
    [project] = [each for each in PROJECTS if each.name == name]
    home = in_column(column, worlds, *project.tools)
    shown = land(project, home)
    assert f"sandbox: {'bubblewrap' if column == 'user' else column.removeprefix('user-')}" in shown


def test_an_agent_can_write_next_to_the_output_of_a_setup_in_a_cache(worlds: Worlds) -> None:
    """Row N1 of the newcomer's table, as typed: it failed with "Read-only file system"."""
    home, checkout = worlds(), str(HOME / "code/cache")
    home.shell(HOME, f"git init -q {checkout}; cd {checkout}; echo 1 > a.txt; git add -A; git commit -qm Begin")
    done = home.run(checkout, "garrison", "run", "use the cache", "--setup",
                    "mkdir -p ~/.cache/foo && echo from setup > ~/.cache/foo/file", "--command",
                    "mkdir ~/.cache/bar && cp ~/.cache/foo/file ~/.cache/bar/ && cp ~/.cache/bar/file b.txt && "
                    "rm -r ~/.cache/foo", "--gate", "test -e ~/.cache/foo/file && mkdir ~/.cache/bar")
    assert (done.returncode, done.stdout.strip()[-13:]) == (0, "1 of 1 landed"), f"{done}\n{home.logs()}"
    assert home.shell(checkout, "git show main:b.txt; git status --porcelain") == "from setup"
    assert home.shell(HOME, "ls -A ~/.cache") == "garrison", "the user's own cache is unchanged"
