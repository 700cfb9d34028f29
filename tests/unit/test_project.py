"""What `garrison init` finds in a project, what it proposes and says, and the pipelines that `garrison new` writes."""

from __future__ import annotations

import pytest

from garrison.cli.init import Choice, choose, describe, next_steps, write_new, write_project
from garrison.cli.new import modules_of
from garrison.pipeline.lint import lint
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.processes.launch_request import read_project
from garrison.project.ecosystems import ECOSYSTEMS, ProjectFiles, detect, setup_key
from garrison.project.templates import TEMPLATES, fill
from garrison.project.trial import TrialResult, describe_failure

VENV = "python3 -m venv .venv && echo '*' > .venv/.gitignore && .venv/bin/pip install -q"
PYPROJECT = "[project]\nname = 'x'\n"
TESTED = '{"scripts": {"test": "node --test"}}'
DOUBLE = {"test_a.py": "def test_a():\n    pass\n"}

PROJECTS = [
    ({"uv.lock": "", "pyproject.toml": "[tool.pytest.ini_options]\n"}, "uv run --no-sync pytest -q",
     "uv sync --locked"),
    ({"uv.lock": "", "a.py": ""}, "uv run --no-sync python -m unittest -q", "uv sync --locked"),
    ({"poetry.lock": "", "tests/conftest.py": ""}, "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry run pytest -q",
     "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry install --no-interaction"),
    ({"tox.ini": "", **DOUBLE}, "tox -q", ""),
    ({"pyproject.toml": f"{PYPROJECT}[tool.tox]\n"}, "tox -q", ""),
    ({"noxfile.py": "", **DOUBLE}, "nox", ""),
    ({"pyproject.toml": f"{PYPROJECT}[project.optional-dependencies]\ntests = ['pytest']\n"},
     ".venv/bin/python -m pytest -q", f"{VENV} -e '.[tests]' pytest"),
    ({"pyproject.toml": f"{PYPROJECT}[project.optional-dependencies]\ntest = ['x']\n", **DOUBLE},
     ".venv/bin/python -m pytest -q", f"{VENV} -e '.[test]' pytest"),
    ({"pyproject.toml": f"{PYPROJECT}[project.optional-dependencies]\ndev = ['pytest']\n"},
     ".venv/bin/python -m pytest -q", f"{VENV} -e '.[dev]' pytest"),
    ({"setup.py": "", **DOUBLE}, ".venv/bin/python -m pytest -q", f"{VENV} -e . pytest"),
    ({"requirements.txt": "six\n", "requirements-dev.txt": "pytest\n"}, ".venv/bin/python -m pytest -q",
     f"{VENV} -r requirements-dev.txt pytest"),
    ({"requirements.txt": "pytest>=8\n"}, ".venv/bin/python -m pytest -q", f"{VENV} -r requirements.txt pytest"),
    (DOUBLE, "python3 -m pytest -q", ""),
    ({"tests/test_a.py": "import unittest\n"}, "python3 -m unittest -q", ""),
    ({"a.py": ""}, "python3 -m compileall -q .", ""),
    ({"package.json": TESTED, "pnpm-lock.yaml": ""}, "pnpm test", "pnpm install --frozen-lockfile"),
    ({"package.json": TESTED, "yarn.lock": "", ".yarnrc.yml": ""}, "yarn test", "yarn install --immutable"),
    ({"package.json": TESTED, "yarn.lock": ""}, "yarn -s test", "yarn install --frozen-lockfile"),
    ({"package.json": TESTED, "bun.lock": ""}, "bun run test", "bun install --frozen-lockfile"),
    ({"package.json": "{}", "bun.lockb": ""}, "bun test", "bun install --frozen-lockfile"),
    ({"package.json": TESTED, "package-lock.json": ""}, "npm test", "npm ci"),
    ({"package.json": TESTED[:-1] + ', "devDependencies": {}}'}, "npm test", "npm install"),
    ({"package.json": TESTED}, "npm test", ""),
    ({"Cargo.toml": "", "Cargo.lock": ""}, "cargo test --locked", "cargo fetch --locked"),
    ({"Cargo.toml": ""}, "cargo test", "cargo fetch"),
    ({"go.mod": "", "Makefile": "test:\n"}, "go test ./...", "go mod download"),
    ({"gradlew": "", "build.gradle.kts": ""}, "./gradlew test", ""),
    ({"build.gradle": ""}, "gradle test", ""),
    ({"mvnw": "", "pom.xml": ""}, "./mvnw -q -B test", ""),
    ({"pom.xml": ""}, "mvn -q -B test", ""),
    ({"Gemfile": "", "spec/a_spec.rb": ""}, "bundle exec rspec", "bundle install"),
    ({"Gemfile": "", "Rakefile": ""}, "bundle exec rake test", "bundle install"),
    ({"composer.json": "", "phpunit.xml.dist": ""}, "vendor/bin/phpunit", "composer install --no-interaction"),
    ({"composer.json": TESTED}, "composer test", "composer install --no-interaction"),
    ({"src/App.csproj": ""}, "dotnet test", "dotnet restore"),
    ({"CMakeLists.txt": "", "a.c": ""}, "cmake --build build && ctest --test-dir build --output-on-failure",
     "cmake -S . -B build"),
    ({"justfile": "build:\n\ntest:\n"}, "just test", ""),
    ({"Makefile": "all:\n\ntest: all\n"}, "make test", ""),
    ({"Makefile": "check:\n"}, "make check", ""),
]


def project(texts: dict[str, str]) -> ProjectFiles:
    return ProjectFiles(frozenset(texts), texts)


@pytest.mark.parametrize(("texts", "gate", "setup"), PROJECTS, ids=[gate for _, gate, _ in PROJECTS])
def test_each_row_is_found_by_its_marks(texts: dict[str, str], gate: str, setup: str) -> None:
    row = detect(project(texts))[0]
    assert (row.gate, row.setup) == (gate, setup)


def test_every_row_has_a_project_here() -> None:
    assert {(row.gate, row.setup) for row in ECOSYSTEMS} == {(gate, setup) for _, gate, setup in PROJECTS}


def test_a_project_of_two_languages_names_both_and_a_gate_without_tests_comes_last() -> None:
    files = project({"tool.py": "", "package.json": TESTED, "package-lock.json": "", "pnpm": ""})
    rows = detect(files)
    assert [row.ecosystem for row in rows] == ["Node", "Python"]
    choice = choose(rows, files, None, None, "codex")
    assert choice == Choice("npm test", "npm ci", ["package-lock.json", "package.json"], "codex")
    assert describe(rows, choice, ["codex"]) == [
        "found: Node", "also found: Python (`python3 -m compileall -q .`); join gates with && if they count too",
        "set-up: npm ci", "gate: npm test", "agents installed: codex"]
    assert choose(rows, files, "make", None, None) == Choice("make", None, [], None)


def test_an_unknown_project_is_told_what_to_state() -> None:
    choice = choose([], project({"README": ""}), None, None, None)
    assert describe([], choice, [])[0] == ("found no build system that garrison knows; state how it is tested with "
                                           "--gate CMD")
    assert next_steps(choice, None, None) == ["next: set gate in garrison.toml to the command that tests this project"]


@pytest.mark.parametrize(("reason", "log", "said"), [
    ("pre-flight: on the bare target gate failed (exit 1); fix the gate or the target first (log: /l)",
     "FAILED t.py::a - x\nFAILED t.py::b\n3 failed, 4 passed in 0.1s\n",
     "your tests fail on main: 3 failed, 4 passed (t.py::a, t.py::b)"),
    ("pre-flight: on the bare target gate failed (exit 127); fix the gate or the target first (log: /l)",
     "sh: 1: pnpm: not found\n", "the gate fails on main: gate failed (exit 127)"),
    ("pre-flight: on the bare target set-up failed (exit 1); fix the set-up or the target first (log: /l)",
     "no network\n", "set-up fails on main: set-up failed (exit 1)"),
])
def test_a_failed_trial_is_told_in_one_line(reason: str, log: str, said: str) -> None:
    assert describe_failure("main", reason, log) == said


def test_the_next_command_depends_on_what_passed() -> None:
    choice = Choice("make test", None, [], None)
    assert next_steps(choice, TrialResult(True, ""), "first.dot") == [
        'next: garrison run "say here what to do" --agent NAME',
        "or:   set the goal in first.dot, then garrison launch first.dot --agent NAME"]
    red, broken = TrialResult(False, "", failed="gate"), TrialResult(False, "", failed="set-up")
    assert "garrison launch first.dot --no-gate" in next_steps(choice, red, "first.dot")[1]
    assert next_steps(choice, broken, None) == ["next: correct setup in garrison.toml, then try it: garrison init"]
    assert describe(None, choice, ["codex"]) == ["garrison.toml exists and is tried as it is; --force replaces it",
                                                 "gate: make test",
                                                 "agents installed: codex"]


def test_a_set_up_runs_again_when_a_lock_file_changes() -> None:
    files = project({"Cargo.toml": "", "Cargo.lock": "", "src/x.rs": ""})
    assert setup_key(detect(files)[0], files) == ["Cargo.lock", "Cargo.toml"]


@pytest.mark.parametrize("template", TEMPLATES, ids=[template.name for template in TEMPLATES])
def test_a_template_lints_clean_and_can_be_launched(template) -> None:
    goal = 'Say "hi" \\ to $HOME'
    modules = ["src/a", "src/b-c", "node", "Start", "2.x", "src/B/C"]
    text = fill(template, goal=goal, gate='make "test"', modules=modules)
    graph = parse(text, f"{template.name}.dot")
    assert lint(graph) == []
    plan = plan_run(graph)
    assert "@" not in text and plan.goal == goal
    assert len(plan.tasks) == (6 if template.name == "codemod" else len(plan.tasks))
    assert all("$goal" not in task.prompt for task in plan.tasks.values())


def test_a_planted_link_is_replaced_and_never_written_through(tmp_path) -> None:
    """An agent may have landed garrison.toml as a link to a file of the user's."""
    (tmp_path / "mine").write_text("mine")
    for target in ("mine", "nowhere"):
        (tmp_path / "garrison.toml").unlink(missing_ok=True)
        (tmp_path / "garrison.toml").symlink_to(target)
        write_project(tmp_path, Choice("make test", None, [], "codex"))
        assert read_project(tmp_path).gate == "make test"
    (tmp_path / "first.dot").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "first.dot", "text")
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(("paths", "modules"), [
    (["src/shop/cart/a.py", "src/shop/till/b.py"], ["src/shop/cart", "src/shop/till"]),
    (["src/shop/__init__.py", "src/shop/cart/a.py"], ["src/shop"]),
    (["api/a.go", "web/b.ts", ".ci/c.py", "docs/x.md", "d.py"], ["api", "web"]),
    (["a.py"], []),
])
def test_the_modules_of_a_codemod(paths: list[str], modules: list[str]) -> None:
    assert modules_of(project(dict.fromkeys(paths, ""))) == modules
