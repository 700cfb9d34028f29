"""The real Claude CLI at default settings in repositories with a set-up, against a scripted model.

A world of these has a network of its own: the model's loopback port, and the registries through a team's proxy.
"""

from __future__ import annotations

import pytest

from garrison.testing.model_server import ModelServer
from garrison.testing.request import Request
from garrison.testing.turn import Turn, say, use
from projects import PROJECTS, Project
from support import git
from test_projects import make_checkout
from toolchains import Missing, registry
from world import HOME, RegistryDoor, World, Worlds, door_to

TOOL = "mcp__garrison__report_result"


def work(shell: str) -> Turn:
    """The turn that does a task in a shell and commits it."""
    return say("I do it.", use("Bash", command=f"set -e; {shell}; git add -A; git commit -qm 'Do the task'"))


def claude_world(worlds: Worlds, model: ModelServer, *tools: str, kinds: tuple[str, ...] = ()) -> World:
    """Make a world where Claude's model and these registries can be reached, and nothing else."""
    try:
        names = [name for kind in kinds for name in registry(kind).names]
    except Missing as missing:
        pytest.skip(str(missing))
    home = worlds(*tools, doors=(door_to(model.port), RegistryDoor(names)))
    home.env |= {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{home.ports[0]}", "ANTHROPIC_API_KEY": "sk-ant-fake-0000"}
    if kinds:
        home.env["HTTPS_PROXY"] = f"http://127.0.0.1:{home.ports[1]}"
    return home


def play(shell: str) -> ModelServer:
    """Return a model that has a task done by a shell, then reports."""
    def script(asked: Request) -> Turn:
        steps = (work(shell), say(use(TOOL, status="success", summary="done", evidence=["git log"])), say("done"))
        return steps[min(asked.step, len(steps) - 1)] if asked.tools else say("A title")

    return ModelServer(script)


@pytest.mark.parametrize("name", ["uv", "npm", "pip"])
def test_claude_adds_a_dependency_with_the_projects_own_tool(name: str, worlds: Worlds) -> None:
    [project] = [each for each in PROJECTS if each.name == name]
    model = play(project.task)
    home = claude_world(worlds, model, *project.tools, kinds=project.registry)
    land(project, home)
    model.close()


def land(project: Project, home: World) -> None:
    checkout = make_checkout(project, home)
    begun = home.run(checkout, "garrison", "init")
    assert begun.returncode == 0, f"{begun.stdout}\n{begun.stderr}\n{home.logs()}"
    home.shell(checkout, "git add garrison.toml first.dot; git commit -qm 'Add garrison'")
    done = home.run(checkout, "garrison", "run", "add the dependency", "--agent", "claude")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{home.logs()}"
    assert done.stdout.strip().endswith("1 of 1 landed"), done.stdout + done.stderr
    for path, text in project.landed.items():
        assert text in git(home.outside(checkout), "show", f"main:{path}")
    assert git(home.outside(checkout), "status", "--porcelain") == ""


def test_hi_is_said_where_a_setup_is_typed(worlds: Worlds) -> None:
    """Row F1 of the newcomer's table, exactly as typed."""
    model = play("echo hi > hi.txt")
    home = claude_world(worlds, model)
    checkout = HOME / "code/hi"
    home.outside(checkout).mkdir(parents=True)
    home.shell(checkout, "git init -q; echo hello > a.txt; git add -A; git commit -qm Begin")
    done = home.run(checkout, "garrison", "run", "say hi", "--agent", "claude", "--no-gate", "--setup", "true")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{home.logs()}"
    assert done.stdout.strip().endswith("1 of 1 landed"), done.stdout
    assert git(home.outside(checkout), "show", "main:hi.txt") == "hi"
    model.close()
