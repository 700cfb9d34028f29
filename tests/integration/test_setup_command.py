"""`garrison setup`: what it lists, and what it removes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from garrison.cli.main import garrison
from garrison.directories import trees_root
from garrison.sandbox import setups
from garrison.sandbox.setups import SetupLayer
from garrison.system.git import Git
from support import git


@pytest.fixture
def repo(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with two kept set-ups: one that the worktree run/node uses, and one that none uses."""
    for name in ("GARRISON_TREES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    tree = trees_root() / Git(repo).key / "run/node"
    for digest in ("0123456789", "0199999999"):
        if tree.exists():
            git(repo, "worktree", "remove", "--force", str(tree))
            git(repo, "branch", "-D", "node")
        git(repo, "worktree", "add", "-q", "-b", "node", str(tree))
        (tree / "modules").mkdir()
        (tree / "modules/x").write_bytes(b"x" * 10_000)
        layer = SetupLayer("", digest, f"make {digest}", seconds=2.4, kept=True, commit=git(repo, "rev-parse", "HEAD"))
        setups.capture(Git(repo), tree, tree.parent / ".node.sandbox/setup/home", (), layer,
                       setups.store_of(tree.parent.parent))
    monkeypatch.chdir(repo)
    return repo


def call(*words: str) -> Result:
    return CliRunner().invoke(garrison, ["setup", *words])


def kept() -> dict[str, list[str]]:
    """Return name → users, as `show --json` tells them."""
    return {layer["name"]: layer["used_by"] for layer in json.loads(call("show", "--json").stdout)}


def test_show_lists_kept_set_ups_and_their_users(repo: Path) -> None:
    assert kept() == {"0199999999": ["run/node"], "0123456789": []}
    shown = call("show", "--target-dir", str(repo)).stdout
    assert "make 0123456789" in shown and "01234567" in shown and "run/node" in shown and "kB" in shown
    [first, _] = json.loads(call("show", "--json").stdout)
    assert (first["made"], first["seconds"], first["size"] >= 10_000) == (["modules"], 2.4, True)


def test_clear_removes_unused_set_ups(repo: Path) -> None:
    done = call("clear")
    assert done.exit_code == 0 and done.stdout.startswith("removed 1 set-up (")
    assert "01999999 stays: used by run/node" in done.stderr
    assert kept() == {"0199999999": ["run/node"]}
    assert call("clear").stdout == "nothing to remove\n"
    git(repo, "worktree", "remove", "--force", str(trees_root() / Git(repo).key / "run/node"))
    assert json.loads(call("clear", "--json").stdout) == {"removed": ["0199999999"], "used": []}
    assert "no set-up of this repository is kept" in call("show").output


@pytest.mark.parametrize(("name", "told"), [
    ("019", "set-up 019 is used by run/node; stop that run first"), ("01", "matches 2 set-ups"),
    ("zz", "no set-up 'zz' of this repository is kept; `garrison setup show` lists"), ("", "no set-up ''")])
def test_clear_refuses_a_name_that_is_not_of_one_free_set_up(repo: Path, name: str, told: str) -> None:
    done = call("clear", "0123", name)
    assert done.exit_code == 1 and told in str(done.exception)
    assert len(kept()) == 2


def test_clear_removes_what_is_named(repo: Path) -> None:
    assert call("clear", "0123", "--target-dir", str(repo)).exit_code == 0
    assert kept() == {"0199999999": ["run/node"]}
