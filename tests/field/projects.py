"""Projects of users with their commands: the table of the field tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Project:
    """A repository, and a task that adds a dependency, or a source file, with the project's own tool."""

    name: str
    task: str
    """Shell of the agent in the worktree."""
    landed: Mapping[str, str]
    """File → text in it on main afterwards."""
    tools: tuple[str, ...] = ()
    registry: tuple[str, ...] = ()
    """Required registries: `python`, `node`, `yarn`."""
    source: str = ""
    """Release that is the repository: `pypi:NAME==VERSION` or `npm:NAME@VERSION`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files of the repository, in addition to those of `source`."""
    before: str = ""
    """Shell of the user in the checkout before the first commit."""
    acceptance: str = ""
    init: tuple[str, ...] = ()
    """Options of `garrison init`."""
    full: bool = False
    """Whether it runs with `--full`; the others run with `--all`."""


CALC = "def add(a, b):\n    return a + b\n"
TEST_CALC = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
_GITIGNORE = {"python": ".venv/\n__pycache__/\n*.egg-info/\n.pytest_cache/\n", "node": "node_modules/\n",
              "cargo": "/target\n"}


def _pyproject(name: str, more: str = "") -> str:
    return (f'[project]\nname = "{name}"\nversion = "0.1.0"\nrequires-python = ">=3.11"\ndependencies = []\n{more}\n'
            '[tool.pytest.ini_options]\npythonpath = ["."]\n')


def _package_json(name: str, more: str = "", test: str = "node --test") -> str:
    return f'{{"name": "{name}", "version": "1.0.0", "private": true, "scripts": {{"test": "{test}"}}{more}}}\n'


_NODE_FILES = {"index.js": "module.exports = (a, b) => a + b;\n", ".gitignore": _GITIGNORE["node"],
               "test.js": "const test = require('node:test');\nconst assert = require('node:assert');\n"
                          "test('adds', () => assert.equal(require('./index.js')(1, 2), 3));\n"}
_USE_MS = "printf \"const test = require('node:test');\\ntest('ms', () => require('ms')('1s'));\\n\" > ms.test.js"
_USE_SIX = "printf 'import six\\n\\n\\ndef test_six():\\n    assert six.PY3\\n' > test_six.py"
_PYTHON_FILES = {"calc.py": CALC, "test_calc.py": TEST_CALC, ".gitignore": _GITIGNORE["python"]}
_LIBRARY = {"libs/extra/package.json": '{"name": "extra", "version": "1.0.0", "main": "index.js"}\n',
            "libs/extra/index.js": "module.exports = 7;\n", "libs/base/index.js": "module.exports = 1;\n",
            "libs/base/package.json": '{"name": "base", "version": "1.0.0", "main": "index.js"}\n'}
_USE_EXTRA = "printf \"const test = require('node:test');\\ntest('extra', () => require('extra'));\\n\" > extra.test.js"
_CARGO = '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\n'
_RUST = "pub fn add(a: u32, b: u32) -> u32 {\n    a + b\n}\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn adds() {\n" \
        "        assert_eq!(super::add(1, 2), 3);\n    }\n}\n"
_MAKEFILE = ("calc: main.c\n\tcc -o calc main.c\n\ntest: calc\n\t./calc | grep -q 3\n\tfor t in tests/*.sh; do "
             "sh $$t || exit 1; done\n")

PROJECTS = (
    Project("uv", "uv add -q six && " + _USE_SIX, {"pyproject.toml": "six", "uv.lock": 'name = "six"'},
            tools=("uv",), registry=("python",), files={
                **_PYTHON_FILES, "pyproject.toml": _pyproject("uvcalc", '\n[dependency-groups]\ndev = ["pytest"]\n')},
            before="uv lock -q", acceptance="uv run --no-sync python -c 'import six'"),
    Project("uv-without-network", "uv add -q ./libs/extra && printf 'import extra\\n\\n\\ndef load_tests(*_):\\n    "
            "return __import__(\"unittest\").TestSuite()\\n' > test_extra.py",
            {"pyproject.toml": "extra", "uv.lock": 'name = "extra"'}, tools=("uv",), files={
                "calc.py": CALC, ".gitignore": _GITIGNORE["python"],
                "test_calc.py": "import unittest\n\nfrom calc import add\n\n\nclass Adds(unittest.TestCase):\n"
                                "    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n",
                "pyproject.toml": '[project]\nname = "uvlocal"\nversion = "0.1.0"\nrequires-python = ">=3.11"\n'
                                  "dependencies = []\n",
                "libs/extra/pyproject.toml": '[project]\nname = "extra"\nversion = "0.1.0"\ndependencies = []\n'
                                             '[build-system]\nrequires = []\nbuild-backend = "backend"\n'
                                             'backend-path = ["."]\n',
                "libs/extra/backend.py": """import zipfile


def build_wheel(folder, config_settings=None, metadata_directory=None):
    info, name = "extra-0.1.0.dist-info", "extra-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("extra.py", "VALUE = 7\\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: extra\\nVersion: 0.1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name


build_editable = build_wheel
"""}, before="uv lock -q"),
    Project("poetry", "poetry add -q six && " + _USE_SIX, {"pyproject.toml": "six", "poetry.lock": 'name = "six"'},
            tools=("poetry",), registry=("python",), files={
                **_PYTHON_FILES, "pyproject.toml": _pyproject(
                    "poetrycalc", '\n[tool.poetry]\npackage-mode = false\n\n[tool.poetry.group.dev.dependencies]\n'
                    'pytest = "*"\n\n[[tool.poetry.source]]\nname = "simple"\nurl = "https://pypi.org/simple/"\n'
                    'priority = "primary"\n')}, before="poetry lock -q"),
    Project("pip", ".venv/bin/pip install -q six && echo six >> requirements.txt && " + _USE_SIX,
            {"requirements.txt": "six"}, registry=("python",), tools=("python",),
            files={**_PYTHON_FILES, "requirements.txt": "pytest\n", "pytest.ini": "[pytest]\npythonpath = .\n"},
            acceptance=".venv/bin/python -c 'import six'"),
    Project("plain-python", "printf 'import unittest\\n\\nfrom calc import add\\n\\n\\nclass Two(unittest.TestCase):\\n"
            "    def test_two(self):\\n        self.assertEqual(add(1, 1), 2)\\n' > test_two.py",
            {"test_two.py": "add(1, 1)"}, tools=("python",), files={
                "calc.py": CALC, "test_calc.py": "import unittest\n\nfrom calc import add\n\n\nclass Adds("
                "unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"},
            acceptance="python3 -m unittest -q test_two"),
    Project("tox", "sed -i 's/^deps =/deps = six/' tox.ini && " + _USE_SIX, {"tox.ini": "six"}, tools=("tox",),
            registry=("python",), files={
                **_PYTHON_FILES, ".gitignore": _GITIGNORE["python"] + ".tox/\n",
                "tox.ini": "[tox]\nenvlist = py\nskipsdist = true\n\n[testenv]\ndeps =\n    pytest\nsetenv = PYTHONPATH = "
                           "{toxinidir}\ncommands = pytest -q\n"}),
    Project("nox", "sed -i 's/install(\"pytest\"/install(\"pytest\", \"six\"/' noxfile.py && " + _USE_SIX, {"noxfile.py": '"six"'},
            tools=("nox",), registry=("python",), files={
                **_PYTHON_FILES, ".gitignore": _GITIGNORE["python"] + ".nox/\n",
                "noxfile.py": 'import nox\n\n\n@nox.session\ndef tests(session):\n    session.install("pytest")\n'
                              '    session.run("python", "-m", "pytest", "-q")\n'}),
    Project("npm", "npm install ms && " + _USE_MS, {"package.json": '"ms"', "package-lock.json": "node_modules/ms"},
            tools=("npm",), registry=("node",), files={
                **_NODE_FILES, "package.json": _package_json("npmcalc", ', "dependencies": {"has-flag": "^4.0.0"}')},
            before="npm install --package-lock-only", acceptance="node -e 'require(\"ms\")'", full=True),
    Project("npm-without-lock-file", "npm install ms && " + _USE_MS, {"package.json": '"ms"'}, tools=("npm",),
            registry=("node",), files={
                **_NODE_FILES, "package.json": _package_json("nolock", ', "dependencies": {"has-flag": "^4.0.0"}')}),
    Project("npm-without-network", "npm install ./libs/extra && " + _USE_EXTRA, {"package.json": "file:libs/extra"},
            tools=("npm",), files={**_NODE_FILES, **_LIBRARY, "package.json": _package_json("local", ', "dependencies": {"base": "file:libs/base"}')},
            before="npm install --package-lock-only"),
    Project("npm-first-dependency", "npm install ./libs/extra && " + _USE_EXTRA, {"package.json": "file:libs/extra"},
            tools=("npm",), files={**_NODE_FILES, **_LIBRARY, "package.json": _package_json("first")},
            before="npm install --package-lock-only"),
    Project("npm-first-dependency-without-lock-file", "npm install ./libs/extra && " + _USE_EXTRA,
            {"package.json": "file:libs/extra"}, tools=("npm",),
            files={**_NODE_FILES, **_LIBRARY, "package.json": _package_json("first")}),
    Project("pnpm", "pnpm add ms && " + _USE_MS, {"package.json": '"ms"', "pnpm-lock.yaml": "ms@"},
            tools=("npm", "pnpm"), registry=("node",), files={
                **_NODE_FILES, "package.json": _package_json("pnpmcalc", ', "dependencies": {"has-flag": "^4.0.0"}')},
            before="pnpm install --lockfile-only"),
    Project("pnpm-without-network", "pnpm add --offline ./libs/extra && " + _USE_EXTRA, {"package.json": "libs/extra"},
            tools=("npm", "pnpm"), files={**_NODE_FILES, **_LIBRARY, "package.json": _package_json("pnpmlocal", ', "dependencies": {"base": "file:libs/base"}')},
            before="pnpm install --lockfile-only"),
    Project("yarn", "yarn add ms && " + _USE_MS, {"package.json": '"ms"', "yarn.lock": "ms@"}, tools=("npm", "yarn"),
            registry=("node", "yarn"), files={
                **_NODE_FILES, "package.json": _package_json("yarncalc", ', "dependencies": {"has-flag": "^4.0.0"}')},
            before="yarn install --mode update-lockfile && rm -rf node_modules"),
    Project("yarn-without-network", "yarn add --offline file:./libs/extra && " + _USE_EXTRA,
            {"package.json": "file:./libs/extra"}, tools=("npm", "yarn"),
            files={**_NODE_FILES, **_LIBRARY, "package.json": _package_json("yarnlocal", ', "dependencies": {"base": "file:./libs/base"}')},
            before="yarn install && rm -rf node_modules"),
    Project("cargo", "cargo add -q --offline --path vendor/extra && printf 'pub fn seven() -> u32 {\\n    "
            "extra::seven()\\n}\\n' >> src/lib.rs", {"Cargo.toml": "extra", "Cargo.lock": 'name = "extra"'},
            tools=("cargo", "cc"), files={
                "Cargo.toml": _CARGO, "src/lib.rs": _RUST, ".gitignore": _GITIGNORE["cargo"],
                "vendor/extra/Cargo.toml": _CARGO.replace("calc", "extra"),
                "vendor/extra/src/lib.rs": "pub fn seven() -> u32 {\n    7\n}\n"},
            before="cargo generate-lockfile -q --offline"),
    Project("go", "go mod edit -require=example.org/extra@v0.0.0 -replace=example.org/extra=./extra && printf 'package "
            "calc\\n\\nimport \"example.org/extra\"\\n\\nfunc Seven() int { return extra.Seven() }\\n' > seven.go && "
            "go build ./...", {"go.mod": "example.org/extra"}, tools=("go",), files={
                "go.mod": "module example.org/calc\n\ngo 1.19\n", "calc.go": "package calc\n\nfunc Add(a, b int) int { "
                "return a + b }\n", "calc_test.go": 'package calc\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) {\n'
                "\tif Add(1, 2) != 3 {\n\t\tt.Fatal()\n\t}\n}\n", "extra/go.mod": "module example.org/extra\n\ngo 1.19\n",
                "extra/extra.go": "package extra\n\nfunc Seven() int { return 7 }\n"}),
    Project("make", "printf 'test -x ./calc\\n' > tests/more.sh", {"tests/more.sh": "calc"}, tools=("make", "cc"), files={
        "Makefile": _MAKEFILE, "main.c": '#include <stdio.h>\nint main(void) { printf("%d\\n", 3); return 0; }\n',
        "tests/first.sh": "true\n", ".gitignore": "calc\n"}),
    Project("cmake", "printf 'int seven(void) { return 7; }\\n' > seven.c && sed -i 's/main.c/main.c seven.c/' "
            "CMakeLists.txt", {"seven.c": "7", "CMakeLists.txt": "seven.c"}, tools=("cmake", "cc", "make"), files={
                "CMakeLists.txt": "cmake_minimum_required(VERSION 3.16)\nproject(calc C)\nenable_testing()\n"
                                  "add_executable(calc main.c)\nadd_test(NAME runs COMMAND calc)\n",
                "main.c": "int main(void) { return 0; }\n", ".gitignore": "/build/\n"}),
    Project("two-languages", "cd frontend && npm install ./extra && " + _USE_EXTRA + " && cd .. && printf 'def double(a):\\n    return a + a\\n"
            "' > backend/double.py", {"frontend/package.json": "file:extra", "backend/double.py": "double"},
            tools=("npm", "python"), files={
                "backend/calc.py": CALC, "backend/test_calc.py": "import unittest\n\nfrom calc import add\n\n\nclass "
                "Adds(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n",
                **{f"frontend/{name}": text for name, text in _NODE_FILES.items()},
                "frontend/package.json": _package_json("frontend"),
                "frontend/extra/package.json": '{"name": "extra", "version": "1.0.0"}\n',
                "frontend/extra/index.js": "module.exports = 7;\n"},
            before="cd frontend && npm install --package-lock-only"),
    Project("without-tests", "echo '# more' >> notes.md", {"notes.md": "# more"}, files={"notes.md": "# Notes\n"},
            init=("--gate", "test -s notes.md")),
    Project("itsdangerous", "sed -i '/^\\[project\\]/a dependencies = [\"six\"]' pyproject.toml && .venv/bin/pip install "
            "-q six && mkdir -p tests && printf 'import six\\n\\n\\ndef test_six():\\n    assert six.PY3\\n' > "
            "tests/test_six.py", {"tests/test_six.py": "six"}, registry=("python",), source="pypi:itsdangerous==2.2.0",
            tools=("python",)),
    Project("click", "printf 'def test_more():\\n    import click\\n    assert click.command\\n' > tests/test_more.py",
            {"tests/test_more.py": "click"}, registry=("python",), source="pypi:click==8.1.8", tools=("python",)),
    Project("attrs", "printf 'def test_more():\\n    import attr\\n    assert attr.s\\n' > tests/test_more.py",
            {"tests/test_more.py": "attr"}, registry=("python",), source="pypi:attrs==25.3.0", tools=("python", "tox")),
    Project("python-dotenv", "printf 'def test_more():\\n    import dotenv\\n    assert dotenv.main\\n' > "
            "tests/test_more.py", {"tests/test_more.py": "dotenv"}, registry=("python",),
            source="pypi:python-dotenv==1.1.1", tools=("python", "tox")),
    Project("minimist", "npm install --save-dev ms", {"package.json": '"ms"'}, registry=("node",), source="npm:minimist@1.2.8",
            tools=("npm",)),
    Project("six", "echo more >> NEWS.txt", {"NEWS.txt": "more"}, registry=("python",), source="pypi:six==1.17.0",
            tools=("python",)),
    Project("toolz", "printf 'def test_more():\\n    import toolz\\n    assert toolz.pipe\\n' > "
            "toolz/tests/test_more.py", {"toolz/tests/test_more.py": "toolz"}, registry=("python",),
            source="pypi:toolz==1.0.0", tools=("python",)),
    Project("tomli", "printf 'VALUE = 1\\n' > src/tomli/more.py", {"src/tomli/more.py": "VALUE"}, registry=("python",),
            source="pypi:tomli==2.2.1", tools=("python",)),
    Project("markupsafe", "printf 'def test_more():\\n    import markupsafe\\n    assert markupsafe.escape\\n' > "
            "tests/test_more.py", {"tests/test_more.py": "markupsafe"}, registry=("python",),
            source="pypi:markupsafe==3.0.2", tools=("python", "cc")),
    Project("ms", "npm install --ignore-scripts has-flag", {"package.json": "has-flag"}, registry=("node",),
            source="npm:ms@2.1.3", tools=("npm",), files={".gitignore": _GITIGNORE["node"]}, init=("--gate", "node -e 'require(\"./index.js\")'")),
)
