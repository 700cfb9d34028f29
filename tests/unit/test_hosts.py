"""Hosts: how they are reached, named and installed; everything that needs no other machine."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest

from garrison.cli.host import default_name
from garrison.config import HostsConfig
from garrison.doctor.findings import ExaminedState
from garrison.doctor.processes import examine_hosts
from garrison.errors import UsageError
from garrison.hosts import setup, unpack
from garrison.hosts.access import TROUBLES, HostAccess, HostUnreachable, check_destination, for_any_shell, incoming_ref
from garrison.hosts.attempts import AttemptId, ClaimToken
from garrison.hosts.host_run import configure, locked_clone, prepare_clone
from garrison.hosts.keeper import KeeperState, host_settings, lock_path, needs_keeper, write_state
from garrison.hosts.setup import TREES, choose_python
from garrison.processes.runtime import Runtime
from garrison.records import atomic
from garrison.records.hosts import Host, check_host, read_crew, write_host
from garrison.records.life_lock import LifeLock
from garrison.system.git import Git
from garrison.tables import Table

WORDS = ["a b", "$HOME", "it's", '"q"', "\\", "é\nx", "", "*", "~", "!x", "`id`", "-n", "%s"]


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "csh", "tcsh"])
def test_a_command_reaches_any_login_shell_unchanged(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    script = for_any_shell(shlex.join(["printf", "%s|", *WORDS]))
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{word}|" for word in WORDS)


def test_a_command_of_this_machine_needs_no_ssh(tmp_path: Path) -> None:
    access = HostAccess("")
    done = access.run(["sh", "-c", "cat; echo no >&2; exit 255"], stdin=b"in", timeout=30)
    assert (done.code, done.out, done.last_error) == (255, b"in", "no")
    with pytest.raises(HostUnreachable, match=r"this machine did not answer within 0\.2 s"):
        access.run(["sleep", "60"], timeout=0.2)
    (tmp_path / "a").write_bytes(b"x\0")
    access.copy_in(tmp_path / "a", f"{tmp_path}/b c")
    assert (tmp_path / "b c").read_bytes() == b"x\0"
    assert access.git_url("/a b") == "/a b"
    assert access.git_environment() == {"GIT_TERMINAL_PROMPT": "0"}


@pytest.mark.parametrize(("ssh", "url"), [
    ("box2", "ssh://box2/a%20b"), ("me@box2", "ssh://me@box2/a%20b"), ("me@::1", "ssh://me@[::1]/a%20b"),
    ("ssh://me@box2:2222", "ssh://me@box2:2222/a%20b")])
def test_git_reaches_a_repository_of_a_host(ssh: str, url: str) -> None:
    assert HostAccess(ssh).git_url("/a b") == url


@pytest.mark.parametrize("ssh", ["-oProxyCommand=x", "a b", "a\nb", "a'b", 'a"b', "a\\b", "\x01"])
def test_a_destination_is_no_option_and_no_script(ssh: str) -> None:
    with pytest.raises(UsageError, match="not a destination of ssh"):
        check_destination(ssh)


def test_ssh_forwards_no_agent_or_display_and_does_without_a_control_socket_in_a_long_path(tmp_path: Path) -> None:
    for words in (HostAccess("box2", tmp_path).command_line(["true"]), HostAccess("box2").tunnel(7, "a:1", ["cat"])):
        options = [words[at + 1] for at, word in enumerate(words) if word == "-o"]
        assert {"ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no", "BatchMode=yes"} <= set(options)
        assert words[words.index("--") + 1] == "box2"
    assert "127.0.0.1:7:a:1" in HostAccess("box2").tunnel(7, "a:1", ["cat"])
    words = HostAccess("box2", tmp_path / ("x" * 80)).command_line(["true"])
    assert "ControlPath=none" in words


@pytest.mark.parametrize(("sign", "remedy"), TROUBLES)
def test_each_failure_of_ssh_is_one_line_with_the_remedy(sign: str, remedy: str) -> None:
    line = HostAccess("box2").explain(f"noise\nssh: {sign.capitalize()}.\n".encode())
    assert line == f"box2 cannot be reached: {remedy.format(ssh='box2')}"
    assert "\n" not in line


def test_an_unknown_failure_of_ssh_shows_its_last_line() -> None:
    assert HostAccess("box2").explain(b"a\nweird\n") == "box2 cannot be reached: weird"
    assert HostAccess("box2").explain(b"") == "box2 cannot be reached: ssh failed without a message"


@pytest.mark.parametrize(("destination", "name"), [
    ("build@box2", "box2"), ("box2.lan.example", "box2"), ("ssh://me@Box_2.x:2222", "box-2"),
    ("me@10.0.0.7", "10-0-0-7"), ("gpu", "gpu")])
def test_a_host_is_named_after_its_destination(destination: str, name: str) -> None:
    assert default_name(destination) == name


@pytest.mark.parametrize(("found", "chosen"), [
    ([], ("", "")), (["3.9 /usr/bin/python3"], ("3.9", "")), (["3.9 /a", "3.12 /b", "3.11 /c"], ("3.12", "/b")),
    (["3.x /a", "hello", "4.0 relative"], ("", ""))])
def test_the_newest_python_that_is_new_enough_is_chosen(found: list[str], chosen: tuple[str, str]) -> None:
    assert choose_python(found) == chosen


def test_a_crew_is_made_once_and_a_home_needs_a_keeper_only_for_hosts(tmp_path: Path) -> None:
    crew = read_crew(tmp_path)
    assert read_crew(tmp_path) == crew and (tmp_path / "hosts/crew").read_text() == f"{crew}\n"
    assert not needs_keeper(tmp_path)
    write_host(tmp_path, Host("box2", "box2", home="/h/home"))
    assert not needs_keeper(tmp_path), "its set-up was not finished"
    write_host(tmp_path, Host("box2", "box2", slots=3, labels=["gpu"], command="/h/garrison", address="127.0.0.1:9"))
    assert needs_keeper(tmp_path)
    assert host_settings(tmp_path, Host("box2", slots=3, address="a:1")).queues(["set:a+b"]) == [
        "host:box2", "any", "set:a+b"]
    (tmp_path / "config.toml").write_text('[hosts]\ntemporal = "team.example:7233"\n')
    assert needs_keeper(tmp_path), "runs reach the team's server through it"


def test_the_table_of_hosts_is_checked() -> None:
    assert Table("w", {"temporal": "t:1", "lease": 8, "x_mine": 1}).read(HostsConfig) == HostsConfig(
        "t:1", "default", 8.0)
    assert Table("w", {"tls_ca": "~/ca.pem", "api_key_file": "/k"}).read(HostsConfig) == HostsConfig(
        tls_ca=str(Path("~/ca.pem").expanduser()), api_key_file="/k")
    for wrong in ({"temporal": "http://t:1"}, {"temporal": 5}, {"lease": 1}, {"lease": True}, {"namespace": ""},
                  {"tempral": "t:1"}, {"tls_ca": "ca.pem"}, {"tls_key": 5}, {"tls_server_name": "a b"}, []):
        with pytest.raises(UsageError, match=r"^w"):
            Table("w", wrong).read(HostsConfig)


def test_an_installed_distribution_is_packed_as_its_original_wheel_with_its_tags(tmp_path: Path) -> None:
    wheel = setup.pack(metadata.distribution("click"), tmp_path)
    assert wheel.name == f"click-{metadata.version('click')}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name for name in names if name.endswith(".dist-info/RECORD")).removesuffix("RECORD")
        assert f"{info}METADATA" in names and "click/__init__.py" in names
        assert not [name for name in names if name.endswith(".pyc") or ".." in name or "direct_url" in name]
        assert archive.read(f"{info}RECORD").decode().count("\n") == len(names)
    text = "Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_17_x86_64\nTag: cp311-cp311-manylinux2014_x86_64\n"
    assert setup.wheel_tag(text) == "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64"


def test_a_host_gets_all_required_distributions() -> None:
    pytest.importorskip("temporalio", reason="the extra garrison[hosts] is not installed")
    names = {setup.normalize(each.metadata["Name"]) for each in setup.list_required()}
    assert {"temporalio", "click", "pydantic-core", "markdown-it-py"} <= names
    assert not {"pytest", "mypy", "claude-agent-sdk", "garrison"} & names


def test_runs_that_start_in_one_clone_at_once_do_not_collide_at_its_configuration(tmp_path: Path) -> None:
    clone = tmp_path / "clones/repo"
    with ThreadPoolExecutor(6) as executor:
        list(executor.map(lambda _: prepare_clone(clone, tmp_path), range(6)))
    (clone / ".git/config.lock").touch()  # left by a killed git
    git = Git(clone, home=tmp_path)
    with locked_clone(clone):
        configure(git, {"user.name": "A User", "receive.denyCurrentBranch": "refuse"})
    assert git.run("config", "user.name").out.strip() == "A User"


def test_wheels_are_unpacked_without_pip_only_if_all_of_them_fit(tmp_path: Path) -> None:
    made = tmp_path / "wheels"
    made.mkdir()
    for name in ("click", "pip"):
        setup.pack(metadata.distribution(name), made)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"

    def unpacked() -> int:
        return subprocess.run([python, "-I", unpack.__file__, made], check=False).returncode

    (click,) = made.glob("click-*.whl")
    other = click.rename(click.with_name("click-8.0-cp27-cp27m-win32.whl"))
    assert unpacked() == unpack.NOT_HERE
    assert not list((tmp_path / "env/lib").glob("python*/site-packages/click"))
    other.rename(click)
    assert unpacked() == 0
    subprocess.run([python, "-I", "-c", "import click, pip"], check=True)
    assert os.access(tmp_path / "env/bin/garrison", os.X_OK)


@pytest.mark.parametrize("others", [False, True])
def test_a_removed_host_has_no_worktrees_of_its_clones_left(tmp_path: Path, others: bool) -> None:
    """Those of other homes there stay, and with them the common root."""
    trees = tmp_path / ".cache/garrison"
    for key, clone in (("ours", "base/clones/a.git"), *([("theirs", "elsewhere/b.git")] if others else [])):
        tree = trees / key / "run/node"
        tree.mkdir(parents=True)
        (tree / ".git").write_text(f"gitdir: {tmp_path}/{clone}/worktrees/node\n")
    subprocess.run(["sh", "-c", TREES, "sh", str(tmp_path / "base")], env={"HOME": str(tmp_path), "PATH": os.defpath},
                   check=True)
    assert [each.name for each in trees.parent.glob("garrison*/*")] == (["theirs"] if others else [])
    assert trees.exists() == others


# ---- incoming refs: each claim has one


def test_the_ref_names_the_claim() -> None:
    assert incoming_ref("box2", ClaimToken(AttemptId("r1", "work", 2), 3)) == "refs/garrison/incoming/box2/r1/work/2-3"


@pytest.mark.parametrize("host", ["", "../x", "Box", "-x", "a.lock", "a/b", "x\n", "a" * 64])
def test_a_hosts_name_fits_into_a_ref(host: str) -> None:
    with pytest.raises(UsageError, match="not a host's name"):
        check_host(host)


@pytest.mark.parametrize("text", ["", "r1", "r1/work", "r1/work/x", "r1/work/0", "r1/work/1/2", "R/work/1", "r1/../1"])
def test_malformed_attempts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        AttemptId.parse(text)
    assert AttemptId.parse("r1/work/2") == AttemptId("r1", "work", 2)


# ---- the doctor on hosts: by their records, without a connection


def texts(home: Path) -> list[str]:
    return [finding.text for finding in examine_hosts(ExaminedState(Runtime.real(home), {}))]


def test_problems_of_hosts_are_found_and_a_home_without_hosts_has_none(tmp_path: Path) -> None:
    assert texts(tmp_path) == []
    write_host(tmp_path, Host("box2", "me@box2", command="/x/bin/garrison", port=7))
    write_host(tmp_path, Host("box3", "me@box3", port=7))
    assert texts(tmp_path) == ["the keeper of the hosts is not running", "the set-up of box3 was not finished"]
    lock = LifeLock.try_acquire(lock_path(tmp_path))
    assert lock is not None
    write_state(tmp_path, KeeperState(server="it starts", troubles={"box2": "no route"}))
    assert texts(tmp_path) == ["the Temporal server does not answer: it starts", "box2 is not connected: no route",
                               "the set-up of box3 was not finished"]
    write_state(tmp_path, KeeperState(tunnels={"box2": "2026-01-31T12:00:00.000000Z"}))
    assert texts(tmp_path) == ["the set-up of box3 was not finished"]
    lock.release()
    atomic.write(tmp_path / "hosts/box3.json", b"{")
    assert "box3.json" in texts(tmp_path)[0]
