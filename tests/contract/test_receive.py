"""A host's push, with real git: it reaches its own claim's ref and nothing else, and runs nothing."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support import git, make_repository

MINE = "refs/garrison/incoming/box2/r1/work/1-1"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    make_repository(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def host(tmp_path: Path, repository: Path) -> Path:
    """A host's clone, with a commit of its own."""
    clone = tmp_path / "host"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    (clone / "new.txt").write_text("work\n")
    git(clone, "add", "new.txt")
    git(clone, "-c", "user.name=a", "-c", "user.email=a@example", "commit", "-qm", "work")
    return clone


def push(host: Path, repository: Path, *refs: str, ref: str = MINE) -> subprocess.CompletedProcess[str]:
    program = f"{shlex.quote(sys.executable)} -P -m garrison.dispatch.receive --ref {ref}"
    return subprocess.run(["git", "push", "-q", f"--receive-pack={program}", str(repository), *refs], cwd=host,
                          capture_output=True, text=True, check=False)


def refs_of(repository: Path) -> dict[str, str]:
    lines = git(repository, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return dict(line.split() for line in lines)


def test_a_host_pushes_into_its_claims_ref(repository: Path, host: Path) -> None:
    before, head = refs_of(repository), git(host, "rev-parse", "HEAD").strip()
    done = push(host, repository, f"HEAD:{MINE}")
    assert done.returncode == 0, done.stderr
    assert refs_of(repository) == {**before, MINE: head}
    git(host, "-c", "user.name=a", "-c", "user.email=a@example", "commit", "-q", "--amend", "-m", "work, again")
    assert push(host, repository, f"+HEAD:{MINE}").returncode == 0
    assert refs_of(repository)[MINE] == git(host, "rev-parse", "HEAD").strip()


@pytest.mark.parametrize("spec", [
    "HEAD:refs/heads/side", "HEAD:refs/heads/new", "HEAD:refs/tags/v1", "+HEAD:refs/garrison/incoming/box2/r1/work/1-2",
    f"HEAD:{MINE}/x", "HEAD:refs/garrison/rescue/r1/work/1",
])
def test_every_other_ref_is_refused_and_its_objects_are_not_kept(repository: Path, host: Path, spec: str) -> None:
    before, head = refs_of(repository), git(host, "rev-parse", "HEAD").strip()
    plain = subprocess.run(["git", "push", "-q", "--dry-run", str(repository), spec], cwd=host, check=False)
    assert plain.returncode == 0  # git alone would take it
    done = push(host, repository, f"HEAD:{MINE}", spec)
    assert done.returncode != 0
    assert "may push to" in done.stderr and MINE in done.stderr
    assert refs_of(repository) == before
    found = subprocess.run(["git", "cat-file", "-e", head], cwd=repository, capture_output=True, check=False)
    assert found.returncode != 0


def test_a_ref_is_not_deleted(repository: Path, host: Path) -> None:
    assert push(host, repository, f"HEAD:{MINE}").returncode == 0
    before = refs_of(repository)
    assert push(host, repository, f":{MINE}").returncode != 0
    assert refs_of(repository) == before


def test_no_hook_of_the_repository_runs(repository: Path, host: Path, tmp_path: Path) -> None:
    for name in ("pre-receive", "update", "post-receive", "post-update", "reference-transaction"):
        hook = repository / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        hook.chmod(0o755)
    git(repository, "config", "core.hooksPath", str(repository / ".git/hooks"))
    assert push(host, repository, f"HEAD:{MINE}").returncode == 0
    assert not (tmp_path / "ran").exists()
    assert subprocess.run(["git", "push", "-q", str(repository), "HEAD:refs/heads/other"], cwd=host,
                          check=False).returncode == 0
    assert (tmp_path / "ran").exists()  # they would have


def test_it_serves_no_ref_outside_the_namespace(repository: Path, host: Path) -> None:
    done = push(host, repository, "HEAD:refs/heads/main", ref="refs/heads/main")
    assert done.returncode != 0 and "not an incoming ref: refs/heads/main" in done.stderr
