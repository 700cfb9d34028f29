"""What `garrison init` finds in a project, the commands that it tries in order, and the pipelines that `new` writes."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from garrison.cli.init import (
    Choice,
    HostRights,
    Programs,
    describe,
    describe_others,
    missing_programs,
    next_steps,
    override,
    untried,
    write_new,
    write_project,
)
from garrison.cli.new import modules_of
from garrison.pipeline.lint import lint
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.project import node_project, python_project
from garrison.project.ecosystems import ECOSYSTEMS, PYTHON, CommandPair
from garrison.project.files import ProjectFiles
from garrison.project.python_project import find_nox_session, find_tox_environment
from garrison.project.survey import CONFLICT_MARKERS, Survey, propose_gate, setup_key, survey
from garrison.project.templates import TEMPLATES, fill
from garrison.project.trial import Attempt, TrialMeans, TrialResult, describe_failure, find_passing, whole_registries
from garrison.run.request import read_project
from garrison.values import replace

QUOTE = "'\"'\"'"
VENV = "python3 -m venv .venv && echo '*' > .venv/.gitignore && .venv/bin/pip install -q"
GROUPS = VENV + " -U 'pip>=25.1' && .venv/bin/pip install -q"
PYTEST = "PATH=$PWD/.venv/bin:$PATH .venv/bin/python -m pytest -q"
PYPROJECT = "[project]\nname = 'x'\n"
TESTED = '{"scripts": {"test": "node --test"}}'
NEEDS = '{"scripts": {"test": "mocha"}, "devDependencies": {"mocha": "1"}}'
DOUBLE = {"test_a.py": "def test_a():\n    pass\n"}
UNIT = {"tests/__init__.py": "", "tests/test_a.py": "import unittest\n"}
JS = {"test/a.js": ""}

PROJECTS = [
    ({"uv.lock": "", "pyproject.toml": PYPROJECT, **DOUBLE}, "uv run --no-sync pytest -q", "uv sync --locked"),
    ({"uv.lock": "", "a.py": "", **UNIT}, "uv run --no-sync python -m unittest -q", "uv sync --locked"),
    ({"uv.lock": "", "pyproject.toml": f"{PYPROJECT}[dependency-groups]\ntests = ['pytest>=8']\n", **DOUBLE},
     "uv run --no-sync pytest -q", "uv sync --locked --group tests"),
    ({"uv.lock": "", "pyproject.toml": f"{PYPROJECT}[dependency-groups]\ntests = ['pytest']\n"
      "dev = [{include-group = 'tests'}]\n", **DOUBLE}, "uv run --no-sync pytest -q", "uv sync --locked"),
    ({"uv.lock": "", "pyproject.toml": f"{PYPROJECT}[project.optional-dependencies]\ntest = ['pytest']\n", **DOUBLE},
     "uv run --no-sync pytest -q", "uv sync --locked --extra test"),
    ({"uv.lock": "", "pyproject.toml": f"{PYPROJECT}[tool.uv.workspace]\nmembers = ['packages/*']\n",
      "packages/a/pyproject.toml": PYPROJECT, "packages/a/test_a.py": "import pytest\n"},
     "uv run --no-sync pytest -q", "uv sync --locked --all-packages"),
    ({"poetry.lock": "", "tests/conftest.py": "", "tests/test_a.py": ""},
     "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry run pytest -q",
     "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry install --no-interaction"),
    ({"poetry.lock": "", "pyproject.toml": "[tool.poetry.group.test]\noptional = true\n", **DOUBLE},
     "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry run pytest -q",
     "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry install --no-interaction --with test"),
    ({"pdm.lock": "", **DOUBLE}, "pdm run pytest -q", "pdm sync -d"),
    ({"Pipfile": "", "Pipfile.lock": "", **DOUBLE}, "PIPENV_VENV_IN_PROJECT=1 pipenv run pytest -q",
     "PIPENV_VENV_IN_PROJECT=1 pipenv sync --dev"),
    ({"tox.ini": "[testenv]\ncommands = pytest\n", **DOUBLE}, "tox -q -e py311", "tox -q -e py311 --notest"),
    ({"noxfile.py": "@nox.session\ndef lint(s): pass\n\n@nox.session(python=['3.11'])\ndef tests(s): pass\n", **DOUBLE},
     "nox -r -s tests", "nox -r --install-only -s tests"),
    ({"noxfile.py": "", **DOUBLE}, "nox -r", "nox -r --install-only"),
    ({"pyproject.toml": f"{PYPROJECT}[project.optional-dependencies]\ntests = ['pytest']\n", **DOUBLE}, PYTEST,
     f"{VENV} -e '.[tests]'"),
    ({"pyproject.toml": f"{PYPROJECT}[project.optional-dependencies]\ntest = ['x']\ndocs = ['y']\n", **DOUBLE}, PYTEST,
     f"{VENV} -e '.[test]' pytest"),
    ({"pyproject.toml": f"{PYPROJECT}[dependency-groups]\ntesting = ['pytest']\n", **DOUBLE}, PYTEST,
     f"{GROUPS} -e . --group testing"),
    ({"setup.py": "setup(extras_require={'dev': ['pytest', V]})", **DOUBLE}, PYTEST, f"{VENV} -e '.[dev]'"),
    ({"setup.py": "setup()", "setup.cfg": "[options.extras_require]\ntesting =\n  pytest\n", **DOUBLE}, PYTEST,
     f"{VENV} -e '.[testing]'"),
    ({"setup.py": "deps = ['mock']\nsetup(tests_require=deps)", **DOUBLE}, PYTEST, f"{VENV} -e . mock pytest"),
    ({"setup.cfg": "[metadata]\nname = x\n[options]\ninstall_requires =\n  six\n", "src/x.py": "", **DOUBLE},
     f"PYTHONPATH=src {PYTEST}", f"{VENV} six pytest"),
    ({"pyproject.toml": "[tool.poetry.dependencies]\npython = '^3'\n[tool.poetry.group.dev.dependencies]\n"
      "pytest = '*'\nmock = '*'\n", **DOUBLE}, PYTEST, f"{VENV} -e . pytest mock"),
    ({"pyproject.toml": f"{PYPROJECT}[tool.hatch.envs.hatch-test]\nextra-dependencies = ['trio']\n", **DOUBLE}, PYTEST,
     f"{VENV} -e . pytest trio"),
    ({"setup.py": "", **DOUBLE}, PYTEST, f"{VENV} -e . pytest"),
    ({"setup.py": "", "requirements/tests.txt": "", "requirements/docs.txt": "", **DOUBLE}, PYTEST,
     f"{VENV} -e . -r requirements/tests.txt pytest"),
    ({"requirements.txt": "six\n", "requirements-dev.txt": "pytest\n", **DOUBLE}, PYTEST,
     f"{VENV} -r requirements.txt -r requirements-dev.txt pytest"),
    ({"requirements.txt": "pytest>=8\n", "tests/test_a.py": ""}, PYTEST, f"{VENV} -r requirements.txt pytest"),
    (DOUBLE, "python3 -m pytest -q", ""),
    ({"src/x/__init__.py": "", **DOUBLE}, "PYTHONPATH=src python3 -m pytest -q", ""),
    (UNIT, "python3 -m unittest -q", ""),
    ({"tests/test_a.py": "import unittest\n"}, "python3 -m unittest discover -q -s tests", ""),
    ({"backend/test_a.py": "import unittest\n", "backend/a.py": ""}, "python3 -m unittest discover -q -s backend", ""),
    ({"a/b/test_a.py": "import unittest\n", "a/test_b.py": "import unittest\n", "a/b/__init__.py": ""},
     "python3 -m unittest discover -q -s a", ""),
    ({"a/tests/test_a.py": "import unittest\n", "a/tests/__init__.py": ""}, "python3 -m unittest discover -q -s a", ""),
    ({"manage.py": "", "app/tests.py": "import unittest\n", "requirements.txt": "django\n"},
     "PATH=$PWD/.venv/bin:$PATH .venv/bin/python manage.py test", f"{VENV} -r requirements.txt"),
    ({"a.py": ""}, "python3 -m compileall -q .", ""),
    ({"pyproject.toml": f"{PYPROJECT}[project.optional-dependencies]\ntests = ['pytest']\n", "x.py": ""},
     "python3 -m compileall -q .", ""),
    ({"package.json": NEEDS, "pnpm-lock.yaml": "", **JS}, "pnpm test", "pnpm install --frozen-lockfile"),
    ({"package.json": NEEDS, "yarn.lock": "", ".yarnrc.yml": "", **JS}, "yarn test", "yarn install --immutable"),
    ({"package.json": NEEDS, "yarn.lock": "", **JS}, "yarn -s test", "yarn install --frozen-lockfile"),
    ({"package.json": NEEDS, "bun.lock": "", **JS}, "bun run test", "bun install --frozen-lockfile"),
    ({"package.json": NEEDS, "package-lock.json": "", **JS}, "npm test", "npm ci"),
    ({"package.json": NEEDS, **JS}, "npm test", "npm install --no-package-lock"),
    ({"package.json": TESTED, **JS}, "npm test", "npm install --no-package-lock"),
    ({"package.json": TESTED, "package-lock.json": "", **JS}, "npm test", "npm ci"),
    ({"package.json": '{"scripts": {"test": "vitest"}, "devDependencies": {"vitest": "1"}}', "src/a.test.ts": ""},
     "CI=true npm test", "npm install --no-package-lock"),
    ({"package.json": '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}', **JS}, "node --test",
     "npm install --no-package-lock"),
    ({"package.json": '{"devDependencies": {"jest": "1"}}', "__tests__/a.js": ""}, "npx --no-install jest",
     "npm install --no-package-lock"),
    ({"package.json": '{"workspaces": ["packages/*"]}', "package-lock.json": "", "packages/a/package.json": TESTED,
      "packages/a/test/a.js": ""}, "npm test --workspaces --if-present", "npm ci"),
    ({"package.json": '{"scripts": {"test": "xo && ava", "build": "tsc"}, "devDependencies": {"xo": "1"}}',
      "index.js": ""}, "npm run -s build", "npm install --no-package-lock"),
    ({"package.json": '{"scripts": {"test": "ava"}}', "index.js": ""},
     "git ls-files -z '*.js' '*.cjs' '*.mjs' | xargs -0 -r -n 1 node --check", ""),
    ({"Cargo.toml": "[workspace]\n", "Cargo.lock": "", "a/Cargo.toml": ""}, "cargo test --workspace --locked",
     "cargo fetch --locked"),
    ({"Cargo.toml": "", "Cargo.lock": ""}, "cargo test --locked", "cargo fetch --locked"),
    ({"Cargo.toml": ""}, "cargo test", "cargo fetch"),
    ({"go.mod": "", "vendor/modules.txt": ""}, "go test ./...", ""),
    ({"go.mod": "", "Makefile": "test:\n"}, "go test ./...", "go mod download"),
    ({"go.work": "", "a/go.mod": ""}, "go list -m -f '{{.Dir}}/...' | xargs go test", ""),
    ({"gradlew": "", "build.gradle.kts": ""}, "./gradlew test", ""),
    ({"build.gradle": "", "a/build.gradle": ""}, "gradle test", ""),
    ({"mvnw": "", "pom.xml": ""}, "./mvnw -q -B test", ""),
    ({"pom.xml": ""}, "mvn -q -B test", ""),
    ({"Gemfile": "", "spec/a_spec.rb": ""}, "bundle exec rspec", "bundle install"),
    ({"Gemfile": "", "Rakefile": ""}, "bundle exec rake test", "bundle install"),
    ({"composer.json": "", "phpunit.xml.dist": ""}, "vendor/bin/phpunit", "composer install --no-interaction"),
    ({"composer.json": TESTED}, "composer test", "composer install --no-interaction"),
    ({"src/App.csproj": ""}, "dotnet test", "dotnet restore"),
    ({"CMakeLists.txt": "enable_testing()", "a.c": ""}, "cmake --build build && ctest --test-dir build "
     "--output-on-failure", "cmake -S . -B build"),
    ({"CMakeLists.txt": "include(CTest)\n", "build/x": ""}, "cmake --build _build && ctest --test-dir _build "
     "--output-on-failure", "cmake -S . -B _build"),
    ({"CMakeLists.txt": ""}, "cmake --build build", "cmake -S . -B build"),
    ({"meson.build": ""}, "meson test -C build", "meson setup build"),
    ({"justfile": "build:\n\ntest:\n"}, "just test", ""),
    ({"configure": "", "Makefile.in": ""}, "make check", "./configure"),
    ({"configure.ac": "", "Makefile.am": ""}, "make check", "autoreconf -fi && ./configure"),
    ({"Makefile": "all:\n\ntest: all\n"}, "make test", ""),
    ({"Makefile": "tests:\n"}, "make tests", ""),
    ({"Makefile": "check:\n"}, "make check", ""),
    ({"Makefile": "all:\n"}, "make", ""),
]
"""Files of a project, and the gate and set-up that are tried first."""


def project(texts: dict[str, str]) -> ProjectFiles:
    return ProjectFiles(frozenset(texts), texts)


def ways(texts: dict[str, str]) -> Sequence[CommandPair]:
    return survey(project(texts)).tested[0].candidates


@pytest.mark.parametrize(("texts", "gate", "setup"), PROJECTS, ids=[f"{gate}-{setup[-24:]}" for _, gate, setup in
                                                                    PROJECTS])
def test_each_kind_of_project_is_found_by_its_files(texts: dict[str, str], gate: str, setup: str) -> None:
    first = ways(texts)[0]
    assert (first.gate, first.setup) == (gate, setup)


def test_every_row_has_a_project_here() -> None:
    assert {(row.gate, row.setup) for row in ECOSYSTEMS} <= {(gate, setup) for _, gate, setup in PROJECTS}


@pytest.mark.parametrize(("texts", "gate", "setup"), [
    ({"uv.lock": "", "pyproject.toml": f"{PYPROJECT}[dependency-groups]\ntests = ['pytest']\n", **DOUBLE}, PYTEST,
     f"{GROUPS} -e . --group tests"),
    ({"poetry.lock": "", "pyproject.toml": "[tool.poetry.group.dev.dependencies]\npytest-mock = '*'\n", **DOUBLE},
     PYTEST, f"{VENV} -e . pytest-mock pytest"),
    ({"tox.ini": "[testenv]\ndeps =\n  -rreq/{x}.txt\n  mock>=1\n  py27: old\ncommands = pytest\n", "setup.py": "",
      **DOUBLE}, PYTEST, f"{VENV} -e . 'mock>=1' pytest"),
    ({"tox.ini": "[testenv]\ncommands = pytest\n", "setup.py": "", **DOUBLE}, ".venv/bin/tox -q -e py311",
     f"{VENV} tox && .venv/bin/tox -q -e py311 --notest"),
    ({"uv.lock": "", "a.py": "", **DOUBLE}, "uv run --no-sync python -m pytest -q", "uv sync --locked"),
    ({"setup.py": "", "requirements.txt": "six\n", **DOUBLE}, PYTEST, f"{VENV} -e . -r requirements.txt pytest"),
    ({"pyproject.toml": f"{PYPROJECT}dependencies = ['six']\n", "src/x.py": "", **DOUBLE},
     f"PYTHONPATH=src {PYTEST}", f"{VENV} six pytest"),
    ({"pyproject.toml": f"{PYPROJECT}[project.optional-dependencies]\ncli = ['click']\ndocs = ['s']\n", **DOUBLE},
     PYTEST, f"{VENV} -e '.[cli]' pytest"),
    ({"setup.py": "", **UNIT}, PYTEST, f"{VENV} -e . pytest"),
    ({"setup.py": "", **UNIT}, "python3 -m unittest -q", ""),
    ({"setup.py": "", "Makefile": "test:\n", **DOUBLE}, "make test", ""),
    ({"package.json": NEEDS, "pnpm-lock.yaml": "lockfileVersion: '6.0'\n", **JS}, "npm test",
     "npx --yes pnpm@8 install --frozen-lockfile"),
    ({"package.json": NEEDS, "yarn.lock": "", **JS}, "npm test", "npx --yes yarn@1 install --frozen-lockfile"),
    ({"package.json": NEEDS, "yarn.lock": "", **JS}, "npm test", "npm install --no-package-lock"),
    ({"package.json": '{"scripts": {"test": "npm run tests-only", "tests-only": "nyc tape", "pretest": "eslint ."}, '
      '"devDependencies": {"tape": "1"}}', **JS}, "npm run -s tests-only", "npm install --no-package-lock"),
    ({"package.json": '{"scripts": {"test": "eslint . && NODE_ENV=test mocha && npm run lint:ts"}}', **JS},
     "NODE_ENV=test mocha", "npm install --no-package-lock"),
    ({"package.json": '{"scripts": {"test": "xo && ava && tsd"}, "devDependencies": {"ava": "1"}}', "test.js": ""},
     "npx --no-install ava", "npm install --no-package-lock"),
    ({"package.json": '{"scripts": {"test": "mocha dist", "build": "tsc"}, "devDependencies": {"mocha": "1"}}', **JS},
     "npm run -s build && npm test", "npm install --no-package-lock"),
    ({"package.json": NEEDS, "package-lock.json": "", **JS}, "npm test", "npm ci --ignore-scripts"),
    ({"package.json": '{"scripts": {"test": "tape"}, "devDependencies": {"tape": "1", "@x/eslint-config": "1"}}', **JS},
     "npm test", "(cp package.json .package.json.orig && npm pkg delete 'devDependencies[@x/eslint-config]' && npm "
     "install --no-package-lock --ignore-scripts; code=$?; mv -f .package.json.orig package.json; exit $code)"),
])
def test_a_project_has_alternatives_that_need_less(texts: dict[str, str], gate: str, setup: str) -> None:
    assert (gate, setup) in [(way.gate, way.setup) for way in ways(texts)[1:]]


@pytest.mark.parametrize(("stated", "python"), [
    (">=3.12", "python3.13"), (">=3.9", "python3"), (">=3.12,<3.13", "python3.12"), ("==3.12.*", "python3.12"),
    (">=3.99", "python3"), ("~=3.12", "python3.13"), ("", "python3")])
def test_another_python_is_used_if_only_that_satisfies_the_project(stated: str, python: str) -> None:
    files = project({"pyproject.toml": f"{PYPROJECT}requires-python = '{stated}'\n", **DOUBLE})
    first = survey(files, ((3, 11), (3, 12), (3, 13), (3, 11))).tested[0].candidates[0]
    assert first.setup.startswith(f"{python} -m venv .venv && ")


@pytest.mark.parametrize("texts", [
    {"pyproject.toml": "[project\n", "setup.cfg": "x", "setup.py": "setup(", "tox.ini": "[[", **DOUBLE},
    {"pyproject.toml": "project = 1\ntool = 'x'\ndependency-groups = []\n", "tox.ini": "", "setup.py": "x" * 9,
     **DOUBLE},
    {"pyproject.toml": "[dependency-groups]\na = [{include-group = 'b'}]\nb = [{include-group = 'a'}]\n", **DOUBLE},
    {"package.json": "[1]"}, {"package.json": '{"scripts": {"test": 3}, "workspaces": 1}', **JS},
    {"package.json": "[" * 100_000}, {"setup.py": "(" * 100_000, "a.py": ""},
])
def test_malformed_project_files_are_no_obstacle(texts: dict[str, str]) -> None:
    assert ways(texts)


@pytest.mark.parametrize(("file", "text", "environment"), [
    ("tox.ini", "[tox]\nenvlist = py3{10,11,12}, lint\n[testenv]\ncommands = pytest {posargs}\n", "py311"),
    ("tox.ini", "[tox]\nenvlist =\n  lint\n  py{310,311}-{min,latest}\n[testenv]\ncommands = pytest\n", "py311-latest"),
    ("tox.ini", "[tox]\nenv_list = py3{9-14}-tests, py3{9-14}-mypy\n[testenv]\ncommands =\n  tests: pytest\n"
     "  mypy: mypy src\n", "py311-tests"),
    ("tox.ini", "[tox]\nenvlist = py27, flake8\n[testenv]\ncommands = python -m unittest discover\n", "py311"),
    ("tox.ini", "[tox]\nenvlist = py-tests\n[testenv]\ncommands = pytest\n", "py-tests"),
    ("tox.ini", "[tox]\nenvlist = lint\n[testenv:lint]\ncommands = flake8\n", "py"),
    ("pyproject.toml", "[tool.tox]\nlegacy_tox_ini = '''\n[tox]\nenvlist = py311-unit\n[testenv]\ncommands = pytest\n"
     "'''\n", "py311-unit"),
    ("pyproject.toml", "[tool.tox]\nenv_list = ['3.10', '3.11', 'docs']\n", "3.11"),
    ("pyproject.toml", PYPROJECT, None),
])
def test_the_environment_of_tox_that_tests_with_this_python(file: str, text: str, environment: str | None) -> None:
    assert find_tox_environment(project({file: text}), (3, 11)) == environment


@pytest.mark.parametrize(("text", "session"), [
    ("@nox.session(name='unit-3')\ndef u(s):\n", "unit-3"), ("@nox.session\ndef docs(s):\n", ""),
    ("@session(python=PY)\n@nox.parametrize('a', [1])\ndef test(s):\n", "test")])
def test_the_session_of_nox_that_tests(text: str, session: str) -> None:
    assert find_nox_session(text) == session


@pytest.mark.parametrize(("log", "packages"), [
    ("E   ModuleNotFoundError: No module named 'hypothesis'\nE ModuleNotFoundError: No module named 'yaml.x'",
     ["hypothesis", "pyyaml"]),
    ("ImportError: No module named 'own.sub'\nModuleNotFoundError: No module named 'private_thing'", []),
    ("ModuleNotFoundError: No module named 'rare_lib'\n", ["rare-lib"]),
    ("/t/.venv/bin/python: No module named pytest", ["pytest"]),
    ("pytest: error: unrecognized arguments: --cov=x -n auto", ["pytest-cov", "pytest-xdist"]),
    ("E       fixture 'mocker' not found", ["pytest-mock"]),
    ("async def functions are not natively supported.", ["pytest-asyncio"]),
    ("Missing required plugins: pytest-foo", ["pytest-foo"]),
])
def test_a_missing_package_is_added_if_it_is_well_known_or_named_by_the_project(log: str, packages: list[str]) -> None:
    files = project({"setup.py": "", "own/__init__.py": "", "requirements-all.txt": "rare-lib==1\n", **DOUBLE})
    assert python_project.find_missing_packages(files, log) == packages


def test_a_missing_peer_of_node_is_added() -> None:
    files = project({"package.json": '{"peerDependencies": {"react": "1", "@a/b": "1"}}'})
    log = "Error: Cannot find module 'react/jsx'\nError: Cannot find module '@a/b'\nCannot find module 'evil'"
    candidate = CommandPair("Node", "", "g", "npm ci", install="npm install --no-save")
    extended = node_project.extend_node(files, candidate, log)
    assert extended is not None and extended.setup == "npm ci && npm install --no-save react @a/b"


def test_a_development_dependency_missing_in_the_registry_is_left_out() -> None:
    files = project({"package.json": '{"scripts": {"test": "npm run unit", "pretest": "eslint .", "unit": "tape"}, '
                                     '"devDependencies": {"eslint": "1", "@x/a": "9", "b": "9", "tape": "1"}}', **JS})
    first = survey(files).tested[0].candidates[0]
    second = node_project.extend_node(files, first, "npm error notarget No matching version found for @x/a@9.\n")
    assert second is not None and second.gate == "npm run -s unit"
    assert "npm pkg delete 'devDependencies[eslint]' && npm pkg set 'devDependencies[@x/a]=*' && npm " in second.setup
    third = node_project.extend_node(files, second, "npm error 404  'b@9' is not in this registry.\n")
    assert third is not None and ("delete 'devDependencies[eslint]' 'devDependencies[b]' && npm pkg set "
                                  "'devDependencies[@x/a]=*' &&") in third.setup
    assert node_project.extend_node(files, third, "No matching version found for b@9 or c@1") is None


MONOREPO = {"packages/a/package.json": NEEDS, "packages/a/package-lock.json": "", "packages/a/test/a.js": "",
            "services/b/requirements.txt": "six\n", "services/b/test_b.py": "import pytest\n",
            "examples/c/package.json": TESTED, "node_modules/d/package.json": TESTED, "README": ""}


def test_the_projects_of_a_monorepo_are_named_and_tested_together() -> None:
    found = survey(project(MONOREPO))
    assert [each.title for each in found.tested] == ["Node in packages/a", "Python in services/b"]
    assert describe(found) == ["found: Node in packages/a", "found: Python in services/b"]
    way = untried(found, Programs("/usr/bin:/bin"))
    assert way.gate == f"(cd packages/a && npm test) && (cd services/b && {PYTEST})"
    assert way.setup == f"(cd packages/a && npm ci) && (cd services/b && {VENV} -r requirements.txt pytest)"
    assert setup_key(project(MONOREPO), way.setup) == ["packages/a/package-lock.json", "packages/a/package.json",
                                                       "services/b/requirements.txt"]


@pytest.mark.parametrize(("more", "gate"), [
    ({}, "(cd backend && python3 -m unittest -q) && (cd frontend && npm test)"),
    ({"backend/__init__.py": ""}, "python3 -m unittest -q"),
    ({"setup.cfg": ""}, "python3 -m unittest discover -q -s backend"),
    ({"other/test_b.py": "import unittest\n"}, "python3 -m unittest -q"),
])
def test_plain_python_in_a_folder_next_to_another_project_is_tested(more: dict[str, str], gate: str) -> None:
    texts = {"backend/test_a.py": "import unittest\n", "backend/a.py": "", "frontend/package.json": TESTED,
             "frontend/test/a.js": "", "frontend/package-lock.json": ""}
    found = propose_gate(survey(project({**texts, **more})))
    assert found is not None and found.gate == gate


def test_projects_in_folders_are_named_next_to_one_at_the_top() -> None:
    found = survey(project({**MONOREPO, "go.mod": ""}))
    assert describe(found) == [
        "found: Go", "also found: Node in packages/a (`(cd packages/a && npm test)`), Python in services/b "
        f"(`(cd services/b && {PYTEST})`)"]
    assert describe_others(Choice("go test", "go get", [], None), found, Programs("/usr/bin:/bin")) == [
        "to test packages/a and services/b too: garrison init --force --gate "
        f"'go test && (cd packages/a && npm test) && (cd services/b && {PYTEST})' --setup 'go get && (cd packages/a && "
        f"npm ci) && (cd services/b && {VENV.replace(chr(39), QUOTE)} -r requirements.txt pytest)'"]


def test_a_project_without_tests_gives_way_to_one_with_tests() -> None:
    found = survey(project({"tool.py": "", "package.json": TESTED, "package-lock.json": "", **JS}))
    assert [each.ecosystem for each in found.tested] == ["Node"]
    assert [each.ecosystem for each in found.others] == [PYTHON]


@pytest.mark.parametrize("texts", [
    {"Makefile": "all:\ntest:\n"}, {"CMakeLists.txt": "enable_testing()"}, {"setup.py": "", **DOUBLE},
    {"package.json": '{"scripts": {"test": "tape", "build": "tsc"}}', **JS}])
def test_a_project_with_tests_has_no_alternative_without_them(texts: dict[str, str]) -> None:
    assert all(way.is_test for way in ways(texts))


def test_the_gate_of_an_unknown_project_finds_conflict_markers() -> None:
    found = survey(project({"README": ""}))
    assert describe(found) == ["found no build system that garrison knows; --gate CMD sets the test command"]
    assert override(found, None, None).tested[0].candidates == (CONFLICT_MARKERS,)


def test_a_stated_gate_keeps_the_set_ups_and_a_stated_set_up_the_gate() -> None:
    found = survey(project({"package.json": NEEDS, "package-lock.json": "", **JS}))
    stated = override(found, "make check", None).tested[0].candidates
    assert {way.gate for way in stated} == {"make check"}
    assert [way.setup for way in stated] == ["npm ci", "npm ci --ignore-scripts", "npm install --no-package-lock",
                                             "npm install --no-package-lock --ignore-scripts", ""]
    way, = override(found, None, "true").tested[0].candidates
    assert (way.gate, way.setup) == ("npm test", "true")
    way, = override(survey(project(MONOREPO)), "make", "true").tested[0].candidates
    assert (way.gate, way.setup) == ("make", "true")
    assert override(survey(project({})), "make", None).tested[0].candidates[0].setup == ""


class World:
    """Means of a search: results by gate, everything else as attributes."""

    def __init__(self, **results: TrialResult) -> None:
        self.results, self.now, self.cost = results, 0.0, 10.0
        self.absent: set[str] = set()
        self.packages: dict[str, list[str]] = {}
        self.tried: list[str] = []
        self.told: list[str] = []

    def search(self, *candidates: CommandPair, end: float = 100.0) -> Attempt:
        def try_one(candidate: CommandPair, limit: float) -> TrialResult:
            assert 1 <= limit <= 60
            self.tried.append(candidate.setup or candidate.gate)
            self.now += self.cost
            return self.results.get(candidate.why) or self.results[candidate.gate]

        def extend(way: CommandPair, log: str) -> CommandPair | None:
            missing = self.packages.get(way.gate, [])
            return way.with_packages([name for name in missing if name not in way.setup.split()])

        return find_passing(candidates, TrialMeans(
            try_one, lambda way: [word for word in way.gate.split() if word in self.absent], extend, lambda: self.now,
            self.told.append), limit=60, end=end)


RED, GREEN = TrialResult(False, "red", failed="gate"), TrialResult(True, "passed")
BROKEN = TrialResult(False, "broken", ("x", "ERROR: no wheel", "y"), "set-up")


def way(gate: str, setup: str = "", *, shows: bool = False, install: str = "") -> CommandPair:
    return CommandPair(PYTHON, f"way {gate}", gate, setup, shows_tests=shows, install=install)


def test_the_first_candidate_that_passes_is_chosen_and_each_other_has_a_reason() -> None:
    world = World(b=BROKEN, c=RED, d=GREEN, e=GREEN)
    world.absent = {"a"}
    assert world.search(way("a"), way("a x"), way("b"), way("c"), way("d"), way("e")).candidate.gate == "d"
    assert world.told == ["skipped way a: a is not on your PATH", "way b: broken: ERROR: no wheel", "way c: red"]


def test_a_set_up_that_fails_is_not_repeated_for_another_gate() -> None:
    world = World(a=BROKEN, b=GREEN, c=GREEN)
    assert world.search(way("a", "npm ci"), way("b", "npm ci"), way("c", "npm install")).candidate.gate == "c"


def test_if_all_fail_the_one_that_came_furthest_is_chosen() -> None:
    some = TrialResult(False, "", failed="gate", failing=("t1",), log="1 failed, 8 passed")
    more = TrialResult(False, "", failed="gate", failing=("t1", "t2"), log="2 failed, 7 passed")
    world = World(a=BROKEN, b=more, c=some, d=RED)
    assert world.search(way("a"), way("b", "s"), way("c", "s"), way("d")).candidate.gate == "c"


def test_the_same_failing_tests_twice_end_the_search() -> None:
    result = TrialResult(False, "", failed="gate", failing=("t1",), log="1 failed, 8 passed")
    world = World(a=result, b=result, c=GREEN)
    assert not world.search(way("a", "set-up a"), way("b", "set-up b"), way("c")).result.passed
    assert world.tried == ["set-up a", "set-up b"] and "the tests are to blame" in world.told[-1]


def test_tests_that_fail_without_a_set_up_and_miss_nothing_end_the_search() -> None:
    result = TrialResult(False, "", failed="gate", failing=("t1",), log="1 failed")
    world = World(a=result, b=GREEN)
    assert not world.search(way("a"), way("b")).result.passed and world.tried == ["a"]
    assert World(a=replace(result, log="No module named 'x'"), b=GREEN).search(way("a"), way("b")).result.passed


def test_a_few_tests_that_already_fail_are_left_out_of_the_gate() -> None:
    failing = tuple(f"tests/test_a.py::test_{name}" for name in ("x[1-a b]", "x[2]", "y"))
    red = TrialResult(False, "", failed="gate", failing=failing, log="3 failed, 400 passed in 2s")
    gate = "python -m pytest -q"
    reduced = f"{gate} --deselect tests/test_a.py::test_x --deselect tests/test_a.py::test_y"
    world = World(**{gate: red, reduced: TrialResult(True, "passed", log="397 passed")})
    attempt = world.search(way(gate))
    assert (attempt.candidate.gate, attempt.result.passed) == (reduced, True)
    assert "left out of the gate" in world.told[-1]
    for result in (replace(red, log="3 failed, 20 passed"), replace(red, failing=("tests/test_a.py",)),
                   replace(red, failing=tuple(f"t.py::t{n}" for n in range(20)), log="34 failed, 401 passed"),
                   replace(red, failing=tuple(f"t{n}.py::t" for n in range(20)), log="20 failed, 999 passed")):
        world = World(**{gate: result})
        assert world.search(way(gate)).candidate.gate == gate and len(world.tried) == 1


def test_files_of_many_failing_tests_are_left_out_by_the_candidate_that_can() -> None:
    """As in the released attrs, with a file of tests that fails with each newer mypy; tox can leave out no test."""
    red = TrialResult(False, "", failed="gate", failing=("a.py::test_x", *(f"mypy.yml::test{n}" for n in range(19))),
                      log="34 failed, 1390 passed in 2s")
    gate = ".venv/bin/python -m pytest -q"
    reduced = f"{gate} --deselect a.py --deselect mypy.yml"
    world = World(**{"tox -q": red, gate: red, reduced: GREEN})
    assert world.search(way("tox -q", "a"), way(gate, "b")).candidate.gate == reduced
    assert world.told[-1].startswith("left out of the gate, since they already fail: a.py, mypy.yml")


def test_a_runner_that_shows_no_test_has_tested_nothing() -> None:
    world = World(a=GREEN, b=TrialResult(True, "", log="3 passed in 0.1s"))
    assert world.search(way("a", shows=True), way("b", shows=True)).candidate.gate == "b"
    assert World(a=TrialResult(True, "", log="Ran 1 test in 0.1s")).search(way("a", shows=True)).result.passed
    assert World(a=TrialResult(True, "", log=".... [100%]")).search(way("a", shows=True)).result.passed
    assert not any(each.shows_tests for each in ways({"setup.py": "", **DOUBLE})), "pytest fails without tests"
    assert not World(a=TrialResult(True, "", log="Ran 0 tests")).search(way("a", shows=True)).result.passed


def test_missing_packages_are_added_a_few_times() -> None:
    world = World(a=RED)
    world.packages = {"a": ["mock", "six"]}
    world.search(way("a", "pip install x", install="pip install"))
    assert world.tried == ["pip install x", "pip install x && pip install mock six"]
    assert World(a=RED).search(way("a")).result == RED


def test_a_trial_without_a_verdict_ends_the_search() -> None:
    lost = TrialResult(False, "ended by a signal", failed="gate", is_lost=True)
    attempt = World(a=RED, b=lost, c=GREEN).search(way("a"), way("b"), way("c"))
    assert attempt.candidate.gate == "b"
    assert next_steps(Choice("b", None, [], None), attempt.result, None)[-1] == "next: garrison init --force"


def test_the_time_for_all_trials_is_bounded() -> None:
    world = World(a=RED, b=RED, c=RED, d=RED)
    world.search(way("a"), way("b"), way("c"), way("d"), end=15)
    assert world.tried == ["a", "b"] and world.told[-1].startswith("the time for trials is up; 2 more ways")


def test_a_refused_registry_ends_the_search_with_the_line_to_write() -> None:
    refused = TrialResult(False, "refused", failed="set-up", refused_hosts=("pypi.org:443",))
    world = World(a=refused, b=RED)
    attempt = world.search(way("a"), way("b"))
    assert (attempt.candidate.gate, world.tried) == ("a", ["a"])
    steps = next_steps(Choice("a", None, [], None), attempt.result, None, HostRights(Path("/h/config.toml"),
                                                                                     ("default", "x.org")))
    assert steps == ["if you trust pypi.org and files.pythonhosted.org, write this below [sandbox] in /h/config.toml:",
                     '    hosts = ["default", "x.org", "private pypi.org", "private files.pythonhosted.org"]',
                     "next: garrison init --force"]
    assert whole_registries(["github.com:443"]) == ()


def test_nothing_is_tried_if_every_program_is_absent() -> None:
    world = World()
    world.absent = {"go"}
    attempt = world.search(way("go test"), way("go vet"))
    assert attempt.result.summary == "go is not on your PATH" and world.tried == []
    assert next_steps(Choice("go test", None, [], None), attempt.result, "first.dot") == [
        "next: install go, then: garrison init --force"]


def test_programs_are_searched_on_the_given_path() -> None:
    candidate = CommandPair(PYTHON, "", "X=1 nowhere -q && ./local && (cd a && echo 1 | elsewhere)", "true && sh x")
    assert missing_programs(candidate, Programs("/usr/bin:/bin")) == ["nowhere", "elsewhere"]


@pytest.mark.parametrize(("part", "reason", "log", "failing", "said"), [
    ("gate", "gate failed (exit 1)", "FAILED t.py::a - x\nFAILED t.py::b\n3 failed, 4 passed in 0.1s\n",
     ["t.py::a", "t.py::b"], "your tests fail on main: 3 failed, 4 passed (t.py::a, t.py::b)"),
    ("gate", "gate failed (exit 127)", "pnpm: not found\n", [], "the gate fails on main: gate failed (exit 127)"),
    ("set-up", "set-up failed (exit 1)", "no network\n", [], "set-up fails on main: set-up failed (exit 1)"),
])
def test_a_failed_trial_is_told_in_one_line(part: str, reason: str, log: str, failing: list[str], said: str) -> None:
    assert describe_failure("main", reason, part, log, failing) == said


def test_the_last_line_is_the_next_command() -> None:
    choice = Choice("make test", None, [], None)
    assert next_steps(choice, GREEN, "first.dot")[-1] == 'next: garrison run "describe here what to do" --agent NAME'
    assert "garrison launch first.dot --no-gate" in next_steps(choice, RED, "first.dot")[1]
    assert next_steps(choice, RED, None)[-1] == (
        "next: correct the tests, or gate in garrison.toml, then try it: garrison init")
    assert next_steps(choice, BROKEN, None) == ["next: correct setup in garrison.toml, then try it: garrison init"]
    assert describe(None) == ["trying the existing garrison.toml; --force replaces it"]


def test_the_project_file_gives_the_reasons(tmp_path: Path) -> None:
    write_project(tmp_path, Choice("make test", None, [], "codex", ("Makefile", "skipped uv.lock:\nuv is absent")))
    text = (tmp_path / "garrison.toml").read_text()
    assert "# chosen: Makefile\n# before: skipped uv.lock: uv is absent\n" in text
    assert tomllib.loads(text) == {"launch": {"gate": "make test", "agent": "codex"}}


def test_a_set_up_runs_again_when_a_lock_file_or_a_named_file_changes() -> None:
    files = project({"Cargo.toml": "", "Cargo.lock": "", "src/x.rs": ""})
    assert setup_key(files, survey(files).tested[0].candidates[0].setup) == ["Cargo.lock", "Cargo.toml"]
    files = project({"setup.py": "", "req/t.txt": "", "other.txt": ""})
    assert setup_key(files, "pip install -r req/t.txt") == ["setup.py", "req/t.txt"]
    assert setup_key(files, None) == [] and Survey((), ()).tested == ()


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
