"""The example crew really changes the example project: alone, merged in any order, and killed on the way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from garrison.pipeline.launch import RunPlan, plan_run
from garrison.pipeline.parser import parse_file

ROOT = Path(__file__).resolve().parents[2]
CREW = ROOT / "examples" / "crew"
TASKS = ("add_currency", "convert_report", "add_csv_export", "annotate_returns")
DEADLINE_S = 60.0


class Project:
    """A fresh git repository with a copy of the example project."""

    def clear_locks(self) -> None:
        """What a git that was killed with its agent left; a runner clears that before a successor starts."""
        for lock in [*(self.path / ".git").glob("*.lock"), *(self.path / ".git/refs/heads").glob("*.lock")]:
            lock.unlink()

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copytree(ROOT / "examples" / "ledger", path, ignore=shutil.ignore_patterns("__pycache__"))
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(path.parent), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8",
            "GARRISON_DEMO_CREW": str(CREW), "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "somebody")
        self.git("config", "user.email", "somebody@localhost")
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "The ledger")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.path, env=self.environment, capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def start(self, task: str, pace: str = "0", **extra: str) -> subprocess.Popen[str]:
        environment = {**self.environment, "CREW_PACE": pace, **extra}
        return subprocess.Popen([sys.executable, str(CREW / f"{task}.py")], cwd=self.path, env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def work(self, task: str, **extra: str) -> str:
        agent = self.start(task, **extra)
        output, _ = agent.communicate(timeout=DEADLINE_S)
        assert agent.returncode == 0, output
        assert self.git("status", "--porcelain") == "", output
        return output

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", command], cwd=self.path, env=self.environment, capture_output=True,
                              text=True, timeout=DEADLINE_S, check=False)

    def tree(self) -> str:
        return self.git("rev-parse", "HEAD^{tree}")


@pytest.fixture(scope="module")
def plan() -> RunPlan:
    return plan_run(parse_file(ROOT / "pipelines" / "demo.dot"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "ledger")


def assert_green(project: Project, plan: RunPlan, *tasks: str) -> None:
    assert plan.gate is not None
    for command in [plan.gate, *(str(plan.tasks[task].acceptance) for task in tasks)]:
        done = project.run(command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_graph_runs_this_crew(plan: RunPlan) -> None:
    assert set(plan.tasks) == set(TASKS)
    assert plan.flow == "dag"
    assert plan.predecessors["convert_report"] == ("add_currency",)
    for task in TASKS:
        assert plan.tasks[task].command == f'python3 "$GARRISON_DEMO_CREW/{task}.py"'


def test_nothing_is_accepted_before_the_work_is_done(project: Project, plan: RunPlan) -> None:
    assert_green(project, plan)
    for task in TASKS:
        assert project.run(str(plan.tasks[task].acceptance)).returncode != 0, task


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory, plan: RunPlan) -> Project:
    """Each task on its own branch, started as in the graph, gate and acceptance green there."""
    project = Project(tmp_path_factory.mktemp("branches") / "ledger")
    for task in TASKS:
        project.git("switch", "--quiet", "--create", task, "add_currency" if task == "convert_report" else "main")
        project.work(task)
        assert_green(project, plan, task)
    return project


@pytest.mark.parametrize("order", [TASKS, TASKS[:1:-1] + TASKS[:2], ("add_currency", *TASKS[2:], "convert_report")])
def test_branches_merge_in_any_order(branches: Project, plan: RunPlan, order: tuple[str, ...]) -> None:
    branches.git("switch", "--quiet", "--detach", "main")
    for task in order:
        branches.git("merge", "--quiet", "--no-ff", "-m", f"Merge {task}", task)
        assert_green(branches, plan)


def test_each_task_starts_from_what_the_others_landed(project: Project, plan: RunPlan) -> None:
    for task in reversed(TASKS[2:]):
        project.work(task)
    for task in TASKS[:2]:
        project.work(task)
    assert_green(project, plan, *TASKS)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "not seen in time"
        time.sleep(0.005)


@pytest.fixture
def killable() -> Iterator[Callable[[subprocess.Popen[str]], None]]:
    agents: list[subprocess.Popen[str]] = []

    def kill(agent: subprocess.Popen[str]) -> None:
        agents.append(agent)
        os.killpg(agent.pid, signal.SIGKILL)
        agent.communicate(timeout=DEADLINE_S)

    yield kill
    assert all(agent.returncode == -signal.SIGKILL for agent in agents)


@pytest.mark.parametrize("task", ["add_currency", "add_csv_export", "annotate_returns"])
def test_killed_after_its_first_commit_it_goes_on(
    project: Project, task: str, killable: Callable[[subprocess.Popen[str]], None]
) -> None:
    base = project.git("rev-parse", "HEAD")
    project.work(task)
    whole, commits = project.tree(), project.git("rev-list", "--count", "HEAD")
    project.git("reset", "--quiet", "--hard", base)

    agent = project.start(task, pace="30")  # first killed while a step is written, but not committed
    wait_for(lambda: project.git("status", "--porcelain") != "")
    killable(agent)
    project.clear_locks()
    agent = project.start(task, pace="0.6")  # then after a commit
    wait_for(lambda: project.git("rev-parse", "HEAD") != base)
    killable(agent)
    project.clear_locks()

    output = project.work(task)
    assert "step 1 of" in output
    assert (project.tree(), project.git("rev-list", "--count", "HEAD")) == (whole, commits)


def test_leftovers_committed_by_somebody_else_are_no_obstacle(project: Project) -> None:
    base = project.git("rev-parse", "HEAD")
    project.work("add_currency")
    whole = project.tree()
    project.git("reset", "--quiet", "--hard", base)
    project.git("cherry-pick", "--no-commit", "ORIG_HEAD~3")
    project.git("commit", "--quiet", "-m", "leftovers")
    assert "step 1 of 4 was there" in project.work("add_currency")
    assert project.tree() == whole


def test_a_second_run_changes_nothing(project: Project) -> None:
    project.work("annotate_returns")
    head = project.git("rev-parse", "HEAD")
    project.work("annotate_returns")
    assert project.git("rev-parse", "HEAD") == head


def test_a_successor_repeats_what_it_is_told_and_leaves_notes(project: Project, tmp_path: Path) -> None:
    prompt, notes = tmp_path / "prompt.md", tmp_path / "notes"
    prompt.write_text("Do it.\n\n## RESUMPTION CONTEXT\nlast commit: abc\n", encoding="utf-8")
    output = project.work("add_csv_export", GARRISON_PROMPT_FILE=str(prompt), GARRISON_NOTES_FILE=str(notes),
                          GARRISON_NODE="add_csv_export", GARRISON_ATTEMPT="2")
    assert "attempt 2" in output
    assert "last commit: abc" in output
    assert len(notes.read_text(encoding="utf-8").splitlines()) == 3


def test_a_strange_project_is_refused_in_one_line(tmp_path: Path, project: Project) -> None:
    amounts = project.path / "ledger" / "amounts.py"
    amounts.write_text(amounts.read_text(encoding="utf-8").replace("cents: int", "pennies: int"), encoding="utf-8")
    done = project.run(f"{sys.executable} {CREW}/add_currency.py")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    project.path = tmp_path
    assert project.run(f"{sys.executable} {CREW}/add_currency.py").returncode == 2
