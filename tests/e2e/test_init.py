"""`garrison init` in new repositories: a plain HOME, the default folders below it, the sandbox on, no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support import DEADLINE, PROGRAM, garrison_home, git

TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 1) == 2\n"
CALC = "def add(a, b):\n    return a + b\n"


class Kind(NamedTuple):
    """A project, and what a user must see."""

    files: dict[str, str]
    gate: str
    said: str
    needs: str = ""
    code: int = 0
    last: str = 'next: garrison run "describe here what to do"'


KINDS = {
    "python": Kind({"calc.py": CALC, "tests/test_calc.py": TEST}, "python3 -m pytest -q", "passed on main"),
    "uv without uv": Kind({"uv.lock": "", "calc.py": CALC, "tests/test_calc.py": TEST}, "python3 -m pytest -q",
                          "skipped uv.lock: uv is not on your PATH"),
    "npm": Kind({"package.json": '{"scripts": {"pretest": "no-such-linter", "test": "node test/a.js"}}',
                 "test/a.js": "process.exit(0)\n"}, "node test/a.js", "no-such-linter", "npm"),
    "make": Kind({"Makefile": "test:\n\ttest -e Makefile\n"}, "make test", "passed on main", "make"),
    "folders": Kind({"a/Makefile": "", "web/package.json": '{"scripts": {"test": "node test.js"}}', "web/test.js": "",
                     "api/setup.cfg": "", "api/requirements.txt": "", "api/api.py": "X = 1\n"},
                    "(cd web && npm test)", "found: Node in web", "npm"),
    "no tests": Kind({"README.md": "hello\n"}, "! git grep -nE '^(<<<<<<<|>>>>>>>) '", "no build system"),
    "no program": Kind({"a.csproj": ""}, "dotnet test", "dotnet is not on your PATH", code=1,
                       last="next: install dotnet, then: garrison init --force"),
    "red": Kind({"Makefile": "test:\n\tfalse\n"}, "make test", "the gate fails on main", "make", code=1,
                last="next: correct the tests, or gate in garrison.toml, then try it: garrison init"),
}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.traced if name == "python" else ()) for name in KINDS])
def test_init_ends_green_or_names_the_reason_and_the_next_step(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    if kind.needs and shutil.which(kind.needs) is None:
        pytest.skip(f"{kind.needs} is not installed")
    home, repo = tmp_path / "home", tmp_path / "home/src/project"
    garrison_home(home)
    for path, text in kind.files.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(text)
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", "-A")
    git(repo, "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qm", "Begin")
    environment = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LANG": "C.UTF-8"}
    done = subprocess.run([*PROGRAM, "init"], cwd=repo, env=environment, text=True, capture_output=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=DEADLINE)
    said = done.stdout + done.stderr
    assert done.returncode == kind.code, said
    assert kind.said in said
    assert len([line for line in done.stderr.splitlines() if "the gate fails on main" in line]) <= 1
    assert done.stdout.splitlines()[-1].removesuffix(" --agent NAME") == kind.last
    assert "read = [...]" not in said, "a program that is not installed is no matter of the sandbox"
    assert f"gate: {kind.gate}" in done.stderr.splitlines()
    assert set(git(repo, "status", "--porcelain").splitlines()) <= {"?? first.dot", "?? garrison.toml"}
    assert "# chosen: " in (repo / "garrison.toml").read_text()
