"""Commands where the libraries of the extras are not installed: a core that finds none of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from garrison.cli.main import garrison
from garrison.extras import EXTRAS, install_line
from garrison.plugins import OWN, load
from support import DEADLINE

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

HIDE = """
import contextlib, io, json, sys


class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


hidden = json.loads(sys.argv[1])
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
from garrison.cli.main import main

told = []
for words in json.loads(sys.argv[2]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words)
    told.append((words, code, out.getvalue()))
print(json.dumps(told))
"""

NEEDS = {
    ("serve",): "web", ("metrics",): "web", ("mcp",): "mcp", ("acp",): "acp",
    ("chat",): "claude",
    ("ask", "who works?"): "claude", ("login",): "claude",
    ("demo", "--claude"): "claude", ("host", "add", "local"): "hosts",
    ("workflow", "plan", "mend it"): "claude",
    ("run", "write a page", "--agent", "claude", "--gate", "true"): "claude",
    ("run", "write a page", "--agent", "spoken", "--gate", "true"): "acp",
    ("run", "write a page", "--command", "true", "--gate", "true", "--hosts", "any"): "hosts",
    ("run", "write a page", "--command", "true", "--gate", "true", "--land", "pr"): "forges",
    ("take", "3"): "forges",
}
"""Command → the extra that it needs."""


def run_core(home: Path, commands: list[tuple[str, ...]]) -> list[tuple[list[str], int, str]]:
    hidden = [library for extra in EXTRAS.values() for library in extra.libraries]
    done = subprocess.run([sys.executable, "-c", HIDE, json.dumps(hidden), json.dumps(commands)], cwd=home / "repo",
                          env={"HOME": str(home), "PATH": "/usr/bin:/bin", "GARRISON_HOME": str(home / "state")},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    return [tuple(each) for each in json.loads(done.stdout)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/config.toml").write_text('[agents.spoken]\nkind = "acp"\nargv = ["true"]\n')
    for words in (("init", "-q", "-b", "main"), ("commit", "-q", "--allow-empty", "-m", "begin"),
                  ("remote", "add", "origin", "https://github.com/a/b")):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b.c", "-C", tmp_path / "repo", *words]
                       if words[0] != "init" else ["git", *words, tmp_path / "repo"], check=True)
    return tmp_path


def test_what_needs_a_missing_extra_says_the_line_that_installs_it_and_every_other_command_works(home: Path) -> None:
    names = [name for name in garrison.list_commands(click.Context(garrison)) if (name,) not in NEEDS]
    assert {"run", "top", "host"} <= set(names)
    others = [("help", "--all"), *((name, "--help") for name in names),
              *((name,) for name in names if name not in ("demo", "init"))]
    for words, code, told in run_core(home, [*NEEDS, *others]):
        if extra := NEEDS.get(tuple(words)):
            assert code == 1 and "Traceback" not in told, (words, told)
            last = told.splitlines()[-1]
            assert f"needs the extra `{extra}`" in last and last.endswith(f": `{install_line(extra)}`"), (words, told)
        else:
            assert "extra `" not in told and "internal error" not in told, (words, told)
            assert code == 0 or "--help" not in words, (words, told)


def test_the_table_of_extras_matches_the_project_file() -> None:
    stated = PROJECT["optional-dependencies"]
    assert set(stated) == {*EXTRAS, "all", "dev"}
    assert set(Requirement(stated["all"][0]).extras) == set(EXTRAS)
    providers = packages_distributions()
    for name, extra in EXTRAS.items():
        brought = {canonicalize_name(Requirement(each).name) for each in stated[name]}
        assert brought == {canonicalize_name(providers[library][0]) for library in extra.libraries}, name


def test_what_the_extras_register_is_there() -> None:
    for group, names in OWN.items():
        assert [name for name in names if load(group, name) is None] == []


@pytest.mark.parametrize(("marks", "source", "line"), [
    ({}, {"url": "https://h/g", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
     "PYTHON -m pip install 'garrison[acp] @ git+https://h/g@ab12'"),
    ({}, {"url": "file:///a%20b/g", "dir_info": {"editable": True}}, "PYTHON -m pip install --editable '/a b/g[acp]'"),
    ({"pyvenv.cfg": "home = /usr/bin\nuv = 0.9\n"}, {}, "uv pip install --python PYTHON 'garrison[acp]'"),
    ({"pipx_metadata.json": "{}"}, {"url": "file:///src/g", "dir_info": {}}, "pipx install --force '/src/g[ALL]'"),
    ({"uv-receipt.toml": ""}, {}, "uv tool install --force 'garrison[ALL]'"),
])
def test_the_install_line_fits_the_installer(tmp_path: Path, marks: dict[str, str], source: dict[str, object],
                                           line: str) -> None:
    for name, text in marks.items():
        (tmp_path / name).write_text(text)
    everything = ",".join(sorted(name for name, extra in EXTRAS.items() if extra.is_installed or name == "acp"))
    assert install_line("acp", tmp_path, source) == line.replace("PYTHON", sys.executable).replace("ALL", everything)


def test_container_file_and_userlands_name_extras_that_exist() -> None:
    container, userlands = ((ROOT / name).read_text() for name in ("Containerfile", "scripts/userlands"))
    chosen = re.findall(r"EXTRAS=([\w,]+)", container)
    assert len(chosen) == 2
    assert {name for names in chosen for name in names.split(",")} <= EXTRAS.keys()
    [tried] = re.findall(r"for name in (.+); do extra", userlands)
    assert {*tried.split()} == {*EXTRAS, "all"}
    assert (ROOT / ".containerignore").read_text() == "*\n!dist/garrison-*.whl\n"
