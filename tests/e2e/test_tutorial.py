"""Run docs/tutorial.md: its `sh` blocks in order, in one bash -e, as a user with an empty home directory.

In addition to the marks of `markdown_blocks.py`: `sh network` needs the package index, `sh fails` must be refused, and
a block that names a file of pipelines/tutorial shows lines of that file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from garrison.sandbox.proxy.allowed_hosts import forbidden_reason
from markdown_blocks import blocks
from support import git, processes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial.md"
GARRISON = ROOT / ".venv/bin/garrison"
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TERM", "TZ", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
"""Variables of a reader; those of a package index, a proxy or a certificate are passed on by prefix."""
WITHIN = 1500.0
"""Seconds for the whole page: ten times what it takes on a quiet machine."""


def script(page: Path) -> str:
    """Return the page's commands as one bash script that prints its position and stops at the first failure."""
    parts = ["set -eu"]
    for block in blocks(page):
        if block.language != "sh" or block.not_run:
            continue
        parts.append(f"echo '### line {block.line}'")
        if block.file == "fails":
            parts.append(f"if ( {block.text} ); then echo 'line {block.line} should have been refused'; exit 99; fi")
        else:
            parts.append(block.text)
    return "\n".join(parts)


def test_the_page_uses_only_known_marks():
    """An unknown mark would silently run or skip its block; the lines of a pipeline that it shows are in its file."""
    found = blocks(PAGE)
    assert {block.file for block in found if block.language == "sh"} == {"", "network", "fails"}
    assert {block.language for block in found} == {"sh", "text", "dot"}
    for block in found:
        lines = iter((ROOT / block.file).read_text().splitlines() if block.language == "dot" else [])
        missing = [line for line in block.text.splitlines() if block.language == "dot" and line not in lines]
        assert missing == [], f"{block.file} lacks these lines, in this order"


@pytest.fixture
def reader(tmp_path):
    """Return the environment of a user who has just cloned; end what is left of the runs afterwards."""
    home = tmp_path / "reader"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = A Reader\n\temail = reader@example.org\n")
    env = {name: value for name, value in os.environ.items()
           if name in PASSED_ON or name.startswith("PIP_") or name.lower().endswith("_proxy")}
    yield env | {"HOME": str(home), "GARRISON_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(home)}
    for process in processes():
        if any(f"{tmp_path}/" in process.environ.get(name, "") for name in ("GARRISON_LIFE", "GARRISON_HOME")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(WITHIN + 300)
def test_the_commands_of_the_tutorial_work(reader, tmp_path):
    if not GARRISON.exists():
        pytest.skip("the page is run with the checkout's .venv, which is not here")
    skip_without_the_index(reader, tmp_path)
    admit_a_mirror(Path(reader["GARRISON_HOME"]))
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(["bash", "-c", script(PAGE)], cwd=ROOT, env=reader, stdin=subprocess.DEVNULL,
                              stdout=out, stderr=out, timeout=WITHIN, check=False)
    output = (tmp_path / "out").read_text(errors="replace")
    assert done.returncode == 0, output[-6000:]
    listed = subprocess.run([GARRISON, "status", "--json"], env=reader, capture_output=True, text=True, check=True)
    runs = {run["run_id"]: (run["status"], run["merged"], run["total"]) for run in json.loads(listed.stdout)}
    assert runs == {"boltons-1": ("done", 8, 8), "boltons-2": ("done", 0, 8), "itsdangerous-1": ("done", 4, 4)}, output
    projects = Path(reader["HOME"]) / "tutorial"
    for project, run, nodes in (("boltons", "boltons-1", 8), ("itsdangerous", "itsdangerous-1", 4)):
        merged = git(projects / project, "log", "--format=%B", "main")
        assert merged.count(f"Garrison-Run: {run}\n") == nodes, merged
        assert git(projects / project, "status", "--porcelain") == ""
    rescued = git(projects / "boltons", "for-each-ref", "--format=%(refname)", "refs/garrison/rescue/boltons-1")
    assert "/refurb_cacheutils/1" in rescued, "the gate should have been red once"
    assert "/format_iterutils/1" in rescued or "/rename_unset/1" in rescued, "two nodes should have conflicted"


def admit_a_mirror(home: Path) -> None:
    """Let commands reach an index that is a mirror in the user's own network, as a user there has to."""
    names = ("pypi.org", "files.pythonhosted.org")
    with contextlib.suppress(OSError):
        if any(forbidden_reason(str(found[4][0])) for name in names for found in socket.getaddrinfo(name, 443)):
            hosts = ", ".join(f'"private {name}"' for name in names)
            home.mkdir(mode=0o700, exist_ok=True)
            (home / "config.toml").write_text("".join(
                f'[sandbox.{role}]\nhosts = ["default", {hosts}]\n' for role in ("setup", "acceptance", "gate")))


def skip_without_the_index(env: dict[str, str], tmp_path: Path) -> None:
    """Skip if pip cannot download what the page downloads."""
    probe = f"python3 -m venv {tmp_path}/probe && {tmp_path}/probe/bin/pip download -q --no-deps " \
            f"--no-binary :all: -d {tmp_path} itsdangerous==2.2.0"
    try:
        tried = subprocess.run(["sh", "-c", probe], env=env, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index does not answer")
    if tried.returncode:
        pytest.skip(f"pip cannot download: {(tried.stderr.splitlines() or ['no reason given'])[-1][:200]}")
