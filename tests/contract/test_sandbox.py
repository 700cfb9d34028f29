"""The sandbox on this machine: each escape succeeds with mode `none` and is refused inside, and supervision works."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from garrison.ends import End
from garrison.errors import Refused, Shortage
from garrison.sandbox import bubblewrap, file_system, landlock
from garrison.sandbox.checkout import checkout_place
from garrison.sandbox.collect import collect, git_mounts
from garrison.sandbox.confine import confine, leave_session_keyring, processes_inside
from garrison.sandbox.file_system import BuildStep, FileSystemStep
from garrison.sandbox.git_view import GitView, give_back
from garrison.sandbox.place import Mode, Mount, Network, Place, Rights, Role
from garrison.sandbox.probe import machine
from garrison.sandbox.rights import read_rights
from garrison.system import processes, seccomp
from garrison.system.command import Job
from garrison.system.git import Git
from garrison.system.git.commits import EXCLUDE_FILE as NAME
from garrison.system.git.commits import exclude_in_checkout
from garrison.values import replace
from support import exit_codes, fork, git, until

needs_bubblewrap = pytest.mark.skipif(not machine().bubblewrap, reason=machine().refusal or "bubblewrap works")
needs_landlock = pytest.mark.skipif(not machine().landlock, reason="Landlock is not enabled in this kernel")
PATH = os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if os.access(folder, os.X_OK))
"""Search path without folders of other users, which a shell tells apart from those without the program."""
UNIQUE = f"4242.{os.getpid()}5"
"""Seconds of a sleep that no other process sleeps."""
HELD = [pytest.param(Mode.BUBBLEWRAP, marks=needs_bubblewrap), pytest.param(Mode.LANDLOCK, marks=needs_landlock)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    worktree = tmp_path / "trees/node"
    worktree.mkdir(parents=True)
    return Place(Role.AGENT, Rights(mode=Mode.NONE), worktree, tmp_path / "trees/.node.sandbox")


def with_mode(place: Place, mode: Mode) -> Place:
    return replace(place, rights=replace(place.rights, mode=mode))


def start(place: Place, script: str, log: Path, *, timeout: float = 60.0, **env: str) -> Job:
    variables = {**os.environ, "PATH": PATH, "GARRISON_TREES": str(place.worktree.parent), **env}
    confined = confine(["/bin/sh", "-c", script], variables, place)
    return Job.start(confined.argv, env=confined.env, cwd=place.worktree, log=log, timeout_s=timeout, grace=2.0)


def finish(job: Job) -> End:
    until = time.monotonic() + 60
    while (result := job.poll(time.monotonic())) is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    return result


def run(place: Place, script: str, **env: str) -> tuple[int, str]:
    log = place.worktree.parent / "output.log"
    log.unlink(missing_ok=True)
    return finish(start(place, script, log, **env)).code, log.read_text()


# ---- escapes: the script ends with 0 where it succeeds


ESCAPES = {
    "write a sibling's worktree": "echo bad > ../other/file",
    "change the user's home": "echo bad >> $REAL_HOME/secret && grep key $REAL_HOME/secret",
    "read the user's home": "grep key $REAL_HOME/secret",
    "see processes outside": "test -e /proc/$OUTSIDE",
    "kill a process outside": "kill -0 $OUTSIDE",
    "read another process's environment": "cat /proc/$OUTSIDE/environ",
    "enter another process's root": "ls /proc/$OUTSIDE/root/",
    "write to the system": "touch /usr/local/garrison-test && rm /usr/local/garrison-test",
    "read the shadow file": "cat /etc/shadow",
    "mount": "folder=$(mktemp -d) && mount -t tmpfs none $folder && umount $folder",
    "make a user namespace": "unshare -r true",
    "set up the kernel": "test -w /proc/sys/kernel/core_pattern",
    "hold a lease": "touch a; python3 -c 'import fcntl; fcntl.fcntl(open(\"a\"), fcntl.F_SETLEASE, fcntl.F_RDLCK)'",
    "talk to a virtual machine's host": "python3 -c 'import socket; socket.socket(40)'",
    "add a key": "python3 -c 'import ctypes; assert ctypes.CDLL(None).syscall(250, 0, -4, 1) > 0'",
    "read the kernel's log": "python3 -c 'import ctypes; assert ctypes.CDLL(None).klogctl(10, None, 0) > 0'",
}
BY_LANDLOCK = ("write a sibling's worktree", "change the user's home", "kill a process outside", "write to the system",
               "mount", "read the user's home", "read the shadow file", "make a user namespace", "hold a lease",
               "talk to a virtual machine's host", "add a key", "read the kernel's log")
"""Escapes that Landlock refuses; it reports that it does not refuse the others."""


@pytest.mark.parametrize(("mode", "held"), [
    pytest.param(Mode.BUBBLEWRAP, tuple(ESCAPES), marks=needs_bubblewrap),
    pytest.param(Mode.LANDLOCK, BY_LANDLOCK, marks=needs_landlock)])
def test_an_escape_succeeds_without_a_sandbox_and_is_refused_inside(
        mode: Mode, held: tuple[str, ...], place: Place, tmp_path: Path) -> None:
    home = tmp_path / "user"
    home.mkdir()
    (home / "secret").write_text("key\n")
    (place.worktree.parent / "other").mkdir()
    outside = start(place, "sleep 60", place.worktree.parent / "other.log")
    variables = {"REAL_HOME": str(home), "HOME": str(home), "OUTSIDE": str(outside.pid)}
    script = "\n".join(f"( {ESCAPES[name]} ) >/dev/null 2>&1 && echo \"succeeded: {name}\"" for name in held) + "\ntrue"
    try:
        _, without = run(place, script, **variables)
        (home / "secret").write_text("key\n")
        code, inside = run(with_mode(place, mode), script, **variables)
    finally:
        outside.kill()
        finish(outside)
    able = {name for name in held if f"succeeded: {name}\n" in without}
    assert able >= {"write a sibling's worktree", "change the user's home", "read the user's home"}, without
    assert os.geteuid() or able == set(held), f"root can do all of them: {without}"
    assert (code, inside, (home / "secret").read_text()) == (0, "", "key\n")


@pytest.mark.parametrize("mode", HELD)
@pytest.mark.parametrize(("home_mode", "is_linked"), [(0o755, True), (0o700, False)])
def test_a_home_below_a_folder_that_is_shown_is_not(mode: Mode, home_mode: int, is_linked: bool, place: Place,
                                                   tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, link = tmp_path / "opt", tmp_path / "users"
    home = shown / "ada"
    home.mkdir(parents=True, mode=home_mode)
    (home / "secret").write_text("key")
    (shown / "tool").write_text("usable")
    link.symlink_to(home)
    # Not in the real /opt: a private folder that comes and goes there would disturb the sandboxes of other tests.
    monkeypatch.setattr(file_system, "SYSTEM", (*file_system.SYSTEM, str(shown)))
    monkeypatch.setattr(file_system, "BELOW_SYSTEM", (*file_system.BELOW_SYSTEM, f"{shown}/"))
    held = with_mode(place, mode)
    look = f"cat {shown}/tool; cat {home}/secret {link}/secret"
    assert "key" in run(place, look, HOME=str(home))[1]
    output = run(held, look, HOME=str(link if is_linked else home))[1]
    assert ("usable" in output, "key" in output) == (True, False), output


def test_a_home_that_is_a_system_folder_is_refused(place: Place) -> None:
    with pytest.raises(Refused, match="HOME is /opt, which a sandbox shows completely"):
        run(with_mode(place, Mode.AUTO), "true", HOME="/opt")


PLANT_LINKS = """
for folder in "$COMMON/objects" "$COMMON/refs" "$COMMON/logs" "$(git rev-parse --git-dir)"; do
  ln -s "$REAL_HOME/secret" $folder/planted; mkfifo $folder/pipe; ln -s "$REAL_HOME" link; mv link $folder/moved
  mkdir -p folder; ln -s "$REAL_HOME" folder/link; mv folder $folder/inner; echo x > file; ln file $folder/hard
  rm -rf link folder file
done
"""


@needs_landlock
def test_under_landlock_an_agent_has_its_own_git_directory_that_garrisons_git_does_not_obey(
        place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the repository's can be written, its configuration not be read, and a `.git` that leads elsewhere has
    garrison run nothing."""
    repo, home = tmp_path / "repo", tmp_path / "user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    git(tmp_path, "init", "-q", "-b", "main", str(repo))
    for setting in ("user.name", "user.email"):
        git(repo, "config", setting, "ada@example.org")
    git(repo, "config", "http.extraheader", "Authorization: secret")
    git(repo, "commit", "-q", "--allow-empty", "-m", "first")
    place.worktree.rmdir()
    git(repo, "worktree", "add", "-q", "-b", "node", str(place.worktree))
    ours, held = Git(repo, home=tmp_path / "home"), with_mode(place, Mode.LANDLOCK)
    mounts = git_mounts(ours, place.worktree, held.rights, Role.AGENT)
    held = replace(held, mounts=mounts, secret=(repo, repo / ".git"))
    planted = lambda: [path for path in (repo / ".git").rglob("*")  # noqa: E731
                       if path.is_symlink() or path.name in ("planted", "pipe", "moved", "hard", "file", "inner")]
    commit = "echo x > one.txt && git add -A && git commit -qm one && git stash list && git commit -q --amend -m two"
    named = "git -c user.name=a -c user.email=a@b"
    own = f"git init -q $HOME/own && cd $HOME/own && {named} commit -q --allow-empty -m own && git log --format=%s"
    code, output = run(held, f"{PLANT_LINKS}\n{commit} && {own}; cat $COMMON/config", COMMON=str(repo / ".git"),
                       REAL_HOME=str(home), HOME=str(home))
    assert (code != 0, planted(), output.splitlines()[-2:-1], "secret" in output) == (True, [], ["own"], False), output
    assert collect(GitView(ours, place.worktree)).is_changed
    assert git(repo, "log", "--format=%s", "node") == "two\nfirst"
    evil = ("rm .git && git init -q . && git config core.fsmonitor 'touch $MARK;' && "
            f"{named} commit -q --allow-empty -m evil",
            "rm -rf .git && git init -q $HOME/evil && git -C $HOME/evil config core.fsmonitor 'touch $MARK;' && "
            "echo \"gitdir: $HOME/evil/.git\" > .git",
            "rm -rf .git; ln -s \"$COMMON\" .git", "rm -rf .git; mkfifo .git")
    for attack in evil:
        run(held, attack, MARK=str(place.worktree / "ran"), COMMON=str(repo / ".git"))
        (place.worktree / "ran").unlink(missing_ok=True)  # by its own git
        tip = git(repo, "rev-parse", "node")
        assert (ours.head(place.worktree), ours.current_branch(place.worktree), ours.git_dir(place.worktree)) == (
            tip, "node", repo / ".git/worktrees/node"), attack
        ours.is_dirty(place.worktree)
        ours.commit_all(place.worktree, "what it left")
        assert not (place.worktree / "ran").exists(), attack
        assert git(repo, "log", "-1", "--format=%s", "main") == "first"
    give_back(ours, place.worktree)
    assert git(place.worktree, "rev-parse", "--absolute-git-dir") == str(repo / ".git/worktrees/node")
    run(place, PLANT_LINKS, COMMON=str(repo / ".git"), REAL_HOME=str(home))
    assert len(planted()) > 12, "without a sandbox they are all made"


LIMITS = """
ulimit -Sn; ulimit -Hn; grep -E 'SigIgn|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; env | grep -c '^PERL_'
for path in ../file missing/file file /dev/null; do (echo x > $path) 2>/dev/null && echo "wrote $path"; done
for path in /etc/passwd $REAL_HOME/secret /bin; do cat $path 2>&1 | tail -n 1; done
kill -0 $OUTSIDE 2>/dev/null && echo signalled
python3 -c 'import socket; socket.socket().connect(("127.0.0.1", 1))' 2>&1 | tail -n 1
yes 2>&1 | head -n 1
exec ./missing
"""


@needs_landlock
@pytest.mark.skipif(not os.access(landlock.PERL, os.X_OK), reason="this system has no Perl")
@pytest.mark.parametrize("network", [Network.NONE, Network.OPEN])
def test_both_landlock_launchers_enforce_the_same(place: Place, tmp_path: Path, network: Network) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user/secret").write_text("key\n")
    outside = start(place, "sleep 60", place.worktree.parent / "other.log")
    held = replace(place, rights=Rights(Mode.LANDLOCK, network))
    variables = {"REAL_HOME": str(tmp_path / "user"), "OUTSIDE": str(outside.pid), "LC_ALL": "xx_XX.UTF-8"}
    try:
        lean, plain = run(held, LIMITS, **variables), run(held, LIMITS, **variables, PERL5LIB="/nowhere")
    finally:
        outside.kill()
        finish(outside)
    assert lean == plain, "one is what the other is"
    assert lean[0] == 127 and "key" not in lean[1] and "warning" not in lean[1]
    assert [line for line in lean[1].splitlines() if line.startswith("wrote")] == ["wrote file", "wrote /dev/null"]
    assert ("PermissionError" in lean[1]) == (network is Network.NONE)


@needs_landlock
def test_the_launcher_of_landlock_imports_no_more_than_it_must() -> None:
    words = ["-I", "-S", "-X", "importtime", str(landlock.LAUNCHER), "--read", "/", "--write", "/dev/null"]
    done = subprocess.run([sys.executable, *words, "--", "/bin/true"], capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ctypes" in loaded and loaded.isdisjoint({"pathlib", "re", "typing", "collections", "contextlib"}), loaded


@needs_landlock
def test_landlock_makes_nothing_read_only_below_a_writable_folder(place: Place) -> None:
    held = replace(with_mode(place, Mode.LANDLOCK), mounts=(Mount(place.worktree / ".git", place.worktree / ".git"),))
    with pytest.raises(Refused, match=r"Landlock cannot make .*/\.git read-only, since .*/node is writable"):
        run(held, "true")


UNUSED_USER = 64_999


def become_unused_user() -> None:
    os.setresgid(UNUSED_USER, UNUSED_USER, UNUSED_USER)
    os.setresuid(UNUSED_USER, UNUSED_USER, UNUSED_USER)


def try_without_keys() -> int:
    """Use up a user's keys, then leave the session keyring as a sandbox does: 0 if that was refused as a shortage."""
    become_unused_user()
    leave_session_keyring()
    libc = ctypes.CDLL(None)
    for number in range(1000):
        if libc.syscall(248, b"user", b"key%d" % number, b"x" * 8, 8, -3) < 0:
            break
    try:
        leave_session_keyring()
    except Shortage as error:
        return 0 if "quota of keys" in str(error) else 3
    return 2


@pytest.mark.skipif(os.geteuid() != 0 or os.uname().machine != "x86_64", reason="needs another user's quota of keys")
def test_nothing_starts_in_the_log_ins_keyring_when_the_keys_are_used_up() -> None:
    assert exit_codes(fork(try_without_keys)) == [0]


SHOWN = (".nvm/versions/node/v1/bin/node", ".nvm/versions/node/v1/lib/module.js", "tools/bin/tool", "tools/lib/tool.so",
         "tools/share/text", "scripts/run", ".local/share/uv/tools/x/bin/x", "venv/pyvenv.cfg", "venv/bin/python",
         "venv/lib/module.py")
"""Files below the home that programs are or need."""
PRIVATE = (".nvm/versions/node/v1/etc/npmrc", ".nvm/.git/config", "tools/.env", "tools/etc/token-of-tool",
           "scripts/.netrc", ".local/share/uv/credentials/credentials.toml", "venv/.secret", "tools/lib/site/.npmrc",
           ".local/share/uv/tools/.lock", ".volta/volta.lock", ".opam/default/.opam-switch/lock")
"""Those that hold credentials, whatever their mode: known by name, or alongside the parts of an installation; and those
that the user's tools lock."""


@pytest.mark.parametrize("mode", HELD)
@pytest.mark.parametrize(("home_mode", "mask"), [(0o755, 0o022), (0o750, 0o022), (0o700, 0o077)])
def test_private_files_in_a_folder_that_is_shown_for_its_programs_are_hidden(
        place: Place, tmp_path: Path, mode: Mode, home_mode: int, mask: int) -> None:
    home = tmp_path / "user"
    closed = (".nvm/notes", "scripts/plan", "tools/lib/site/deep/key", ".local/share/uv/tools/x/private/key")
    before = os.umask(mask)
    try:
        for name in (*SHOWN, *PRIVATE, *closed):
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\necho {'program' if name in SHOWN else 'treasure'}\n")
            path.chmod((0o755 if path.parent.name == "bin" or name == "scripts/run" else 0o644) & ~mask)
    finally:
        os.umask(before)
    if mask == 0o022:
        (home / ".local/share/uv/tools/x/private").chmod(0o700)
        for name in closed[:3]:
            (home / name).chmod(0o600)
    home.chmod(home_mode)
    path = os.pathsep.join([str(home / "tools/bin"), str(home / "scripts"), str(home / "venv/bin"), PATH])
    held = with_mode(place, mode)
    variables = {"HOME": str(home), "PATH": path}
    code, output = run(held, f"cd {home} && tool && run && cat {' '.join(SHOWN)}", **variables)
    assert code == 0 and output.count("program") == 2 + len(SHOWN), output
    hidden = [*PRIVATE, *(closed if mask == 0o022 else ())]
    _, output = run(held, f"cd {home}; cat {' '.join(hidden)}", **variables)
    assert "treasure" not in output
    assert "treasure" in run(replace(held, rights=replace(held.rights, read=(home / "tools/.env",))),
                             f"cat {home}/tools/.env", **variables)[1], "the user names it"


@needs_bubblewrap
def test_a_link_in_the_agents_home_does_not_make_mount_points_outside(place: Place, tmp_path: Path) -> None:
    home, confined = tmp_path / "user", with_mode(place, Mode.BUBBLEWRAP)
    (home / ".pyenv/bin").mkdir(parents=True)
    (home / ".cargo/bin").mkdir(parents=True)
    target = tmp_path / "target"
    target.mkdir()
    assert run(confined, "ls ~/.cargo/bin", HOME=str(home)) == (0, "")
    cargo = place.private / "home/.cargo"
    (cargo / "bin").rmdir()
    cargo.rmdir()
    cargo.symlink_to(f"/oldroot{target}")
    assert run(confined, "ls ~/.cargo/bin", HOME=str(home)) == (0, "")
    assert list(target.iterdir()) == []


HOSTILE_TOOL = ("echo bad > .git/hooks/post-commit; git config core.pager bad; mv .git .git2 && mkdir .git && "
                "git init -q && git config core.pager bad; true")


@pytest.mark.parametrize("mode", ["none", pytest.param("bubblewrap", marks=needs_bubblewrap)])
def test_a_tool_in_the_users_checkout_cannot_plant_what_git_obeys(mode: str, tmp_path: Path) -> None:
    for name in ("repo", "home", "attempt"):
        (tmp_path / name).mkdir()
    git(tmp_path / "repo", "init", "-q")
    environ = {**os.environ, "GARRISON_SANDBOX": mode, "GARRISON_HOME": str(tmp_path / "home")}
    place = checkout_place(Role.TOOL, tmp_path / "repo", tmp_path / "attempt", None, environ)
    confined = confine(["/bin/sh", "-c", HOSTILE_TOOL], environ, place)
    job = Job.start(confined.argv, env=confined.env, cwd=tmp_path / "repo", log=tmp_path / "log", timeout_s=60)
    finish(job)
    planted = "bad" in (tmp_path / "repo/.git/config").read_text() or (tmp_path / "repo/.git2").exists()
    assert planted is (mode == "none"), (tmp_path / "log").read_text()


# ---- what works inside


@pytest.mark.parametrize("mode", HELD)
def test_an_agent_writes_its_worktree_home_and_temporary_folder(mode: Mode, place: Place) -> None:
    script = ("echo a > file && echo b > ~/kept && t=$(mktemp) && echo c > $t && python3 -c '' && git --version && "
              "! touch $PRIVATE/planted")  # what garrison starts outside of the sandbox may lie there
    code, output = run(with_mode(place, mode), script, PRIVATE=str(place.private))
    assert (code, (place.worktree / "file").read_text()) == (0, "a\n"), output
    assert (place.private / "home/kept").read_text() == "b\n"


@needs_bubblewrap
def test_a_validator_cannot_write_its_worktree(place: Place) -> None:
    confined = replace(with_mode(place, Mode.BUBBLEWRAP), worktree_writable=False)
    assert run(confined, "test -d . && ! touch file")[0] == 0
    assert not (place.worktree / "file").exists()


@needs_bubblewrap
def test_mounts_and_rights_are_shown_and_hidden(place: Place, tmp_path: Path) -> None:
    for name in ("read", "write/secret", "mount"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
    rights = Rights(Mode.BUBBLEWRAP, read=(tmp_path / "read",), write=(tmp_path / "write",),
                    hide=(tmp_path / "write/secret",))
    confined = replace(place, rights=rights, mounts=(Mount(tmp_path / "mount", Path("/run/garrison/x")),))
    code, output = run(confined, f"cat {tmp_path}/read/file /run/garrison/x/file; echo new > {tmp_path}/write/new; "
                                 f"ls {tmp_path}/write/secret; ! touch {tmp_path}/read/x /run/garrison/x/y 2>/dev/null")
    assert (code, output) == (0, "readmount")
    assert (tmp_path / "write/new").read_text() == "new\n"


@needs_bubblewrap
def test_three_agents_listen_on_the_same_port(place: Place) -> None:
    confined = replace(place, rights=Rights(Mode.BUBBLEWRAP, Network.NONE))
    serve = ("import socket, time; s = socket.create_server(('127.0.0.1', 3000)); open('up', 'w'); "
             "c = socket.create_connection(('127.0.0.1', 3000)); time.sleep(60)")
    jobs, places = [], []
    for number in range(3):
        tree = place.worktree.with_name(f"tree{number}")
        tree.mkdir()
        places.append(replace(confined, worktree=tree, private=tree.with_name(f".tree{number}.sandbox")))
        jobs.append(start(places[-1], f'exec python3 -c "{serve}"', tree / "log"))
    until(lambda: all((each.worktree / "up").exists() for each in places))
    for job in jobs:
        job.kill()
        finish(job)


# ---- supervision


@pytest.mark.parametrize("mode", HELD)
@pytest.mark.parametrize(("script", "code"), [
    ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143), ("exec no-such-program", 127), ("exec /etc/fstab", 126)])
def test_exit_codes_pass_through(mode: Mode, script: str, code: int, place: Place) -> None:
    got = run(with_mode(place, mode), script)[0]
    assert got in (code, 128 - code)


@needs_bubblewrap
def test_a_program_that_is_missing_ends_with_127(place: Place) -> None:
    confined = confine(["no-such-program-x"], dict(os.environ), with_mode(place, Mode.BUBBLEWRAP))
    job = Job.start(confined.argv, env=confined.env, cwd=place.worktree, log=place.worktree / "log", timeout_s=30)
    assert finish(job).code == 127


@pytest.mark.parametrize("mode", HELD)
def test_a_term_reaches_the_command_and_it_may_finish(mode: Mode, place: Place) -> None:
    log = place.worktree / "log"
    job = start(with_mode(place, mode), "trap 'sleep 0.3; echo saved > saved; exit 7' TERM; touch up; "
                                        "while :; do sleep 0.05; done", log)
    until((place.worktree / "up").exists)
    job.kill()
    assert finish(job).code == 7
    assert (place.worktree / "saved").exists()


@needs_bubblewrap
def test_a_timeout_ends_what_ignores_term(place: Place) -> None:
    result = finish(start(with_mode(place, Mode.BUBBLEWRAP), "trap '' TERM; while :; do sleep 0.1; done",
                          place.worktree / "log", timeout=0.5))
    assert result.timed_out


def find_sleepers() -> list[Path]:
    """Return the command lines of the processes that sleep for `UNIQUE`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] if UNIQUE.encode() in path.read_bytes() else []
    return found


@needs_bubblewrap
def test_the_end_of_the_command_ends_its_daemons_however_detached(place: Place) -> None:
    mark = "garrison-test-daemon"
    run(with_mode(place, Mode.BUBBLEWRAP), f"setsid sh -c 'env -i sleep {UNIQUE} &' & sleep 0.2", GARRISON_LIFE=mark)
    assert not find_sleepers()


@needs_bubblewrap
def test_the_death_of_the_outer_process_ends_all(place: Place) -> None:
    job = start(with_mode(place, Mode.BUBBLEWRAP), f"setsid sleep {UNIQUE} & sleep {UNIQUE} & touch up; wait",
                place.worktree / "log")
    until((place.worktree / "up").exists)
    os.kill(job.pid, signal.SIGKILL)
    until(lambda: not find_sleepers())
    assert finish(job).code == -9


@needs_bubblewrap
def test_the_tree_is_seen_from_outside_with_its_markers_and_stops(place: Place) -> None:
    marker = f"home:run:node#{os.getpid()}"
    job = start(with_mode(place, Mode.BUBBLEWRAP), "sleep 60 & until grep -q sleep /proc/$!/comm; do :; done; "
                "touch up; kill -STOP $!; wait", place.worktree / "log", GARRISON_LIFE=marker)
    until((place.worktree / "up").exists)
    until(lambda: any(row.state == "T" for row in processes.descendants(job.pid, marker)))
    assert {row.comm for row in processes.descendants(job.pid, marker)} == {"bwrap", "sh", "sleep"}
    assert len(processes.find_marked(marker)) == 4
    job.kill()
    finish(job)
    assert processes.find_marked(marker) == []


# ---- git outside of the view


@pytest.mark.parametrize("mode", HELD)
def test_git_knows_who_commits_in_any_repository_inside_and_no_credentials(
        mode: Mode, place: Place, tmp_path: Path) -> None:
    home = tmp_path / "user"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n"
                                     "[credential]\n\thelper = store --file secret\n")
    script = ("git init -q r && cd r && git commit -q --allow-empty -m x && git log -1 --format=%an"
              " && git config --list")
    code, output = run(with_mode(place, mode), script, HOME=str(home))
    assert (code, output.splitlines()[0]) == (0, "Ada")
    assert "--file secret" not in output
    change = "git config --global user.name Bob && git config user.name"
    assert run(with_mode(place, mode), change, HOME=str(home)) == (0, "Bob\n")
    assert run(with_mode(place, mode), "git config user.name", HOME=str(home)) == (0, "Bob\n")
    assert "Ada" in (home / ".gitconfig").read_text()


# ---- log-ins of agents' own programs


LOG_INS = {"codex": ".codex/auth.json", "gemini": ".gemini/oauth_creds.json",
           "opencode": ".local/share/opencode/auth.json", "claude-acp": ".claude/.credentials.json"}
"""Agent → file of its log-in in the user's home."""


def with_log_ins(place: Place, user: Path, agent: str, lines: str) -> Place:
    """Return the place of an agent whose profile has these lines, where the user has logged in to all agents."""
    for file in LOG_INS.values():
        (user / file).parent.mkdir(parents=True, exist_ok=True)
        (user / file).write_text(f"made up for {file}\n")
    home = user.parent / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f'[agents.{agent}]\nkind = "acp"\nargv = ["sh"]\n{lines}\n')
    rights = read_rights(home, Role.AGENT, agent, {"HOME": str(user)})
    return replace(place, rights=replace(rights, mode=place.rights.mode))


@pytest.mark.parametrize("agent", LOG_INS)
@needs_bubblewrap
def test_a_profile_shows_its_agents_log_in_and_no_other(agent: str, place: Place, tmp_path: Path) -> None:
    user, own = tmp_path / "user", LOG_INS[agent]
    script = " ".join(["cat", *(f'"$HOME/{file}"' for file in LOG_INS.values()), "2>/dev/null"])
    every = sorted(f"made up for {file}" for file in LOG_INS.values())
    outside = with_log_ins(place, user, agent, "")
    assert sorted(run(outside, script, HOME=str(user))[1].splitlines()) == every, "without a sandbox it reads them all"
    held = with_mode(place, Mode.BUBBLEWRAP)
    assert run(with_log_ins(held, user, agent, ""), script, HOME=str(user))[1] == ""
    shown = with_log_ins(held, user, agent, f'read = ["~/{own}"]')
    assert run(shown, script, HOME=str(user))[1].splitlines() == [f"made up for {own}"]


@needs_bubblewrap
def test_a_log_in_that_is_shown_cannot_be_refreshed_and_one_to_write_only_in_place(
        place: Place, tmp_path: Path) -> None:
    user, held, own = tmp_path / "user", with_mode(place, Mode.BUBBLEWRAP), LOG_INS["codex"]
    in_place, renamed = f'echo new > "$HOME/{own}"', f'echo new > "$HOME/{own}.1" && mv "$HOME/{own}.1" "$HOME/{own}"'
    for rights, writes in ((f'read = ["~/{own}"]', False), (f'write = ["~/{own}"]', True)):
        codes = [run(with_log_ins(held, user, "codex", rights), script, HOME=str(user))[0]
                 for script in (renamed, in_place)]
        assert codes[0] != 0 and (codes[1] == 0) is writes
        assert (user / own).read_text() == ("new\n" if writes else f"made up for {own}\n")
        assert not (user / f"{own}.1").exists(), "its other files stay in its own home"


def _send_alongside_an_agent() -> int:
    """As a user with a limit of its own: have more descriptors under way than a default limit allows, as an agent in a
    sandbox may, then send one; 0 if that works only as garrison does it."""
    become_unused_user()
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 400))
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(10)]
    with contextlib.suppress(OSError):
        for ours, _ in pairs:
            for _ in range(8):
                socket.send_fds(ours, [b"x"], [0] * 30)
    ours, theirs = socket.socketpair()
    try:
        socket.send_fds(ours, [b"x"], [0])
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            return 3
    else:
        return 2
    processes.send_descriptors(ours, b"x", [0])
    return 0 if theirs.recv(1) == b"x" and resource.getrlimit(resource.RLIMIT_NOFILE) == (200, 400) else 4


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes a user without other processes")
def test_descriptors_that_an_agent_has_under_way_keep_garrison_from_sending_none() -> None:
    assert exit_codes(fork(_send_alongside_an_agent)) == [0]


def _start_alongside_an_agent() -> int:
    """As a user with a limit of its own: start processes while an agent starts as many as it can; 0 if that works."""
    able = machine()
    become_unused_user()
    resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
    steps = [FileSystemStep(BuildStep.READ, Path(name), name) for name in ("/usr", "/bin", "/lib", "/lib64", "/etc")]
    bomb = "i=0; while [ $i -lt 90 ]; do sleep 60 & i=$((i+1)); done; echo all of them"
    words = bubblewrap.command_line(["/bin/sh", "-c", bomb], steps, able, makes_network=True, directory=Path("/usr"),
                                    processes=processes_inside())
    agent = subprocess.run(["timeout", "-s", "KILL", "20", *words], capture_output=True, text=True, check=False)
    if "fork" not in agent.stderr or "all of them" in agent.stdout:
        return 2
    holding = subprocess.Popen([*words[:-1], f"{bomb.replace('90', '40')}; sleep 60"], stdout=subprocess.PIPE)
    try:
        if b"all" not in holding.stdout.read(3):
            return 3
        others = [subprocess.Popen(["sleep", "5"]) for _ in range(20)]
        for other in others:
            other.kill()
            other.wait()
    finally:
        holding.kill()
    return 0


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes a user without other processes")
def test_an_agent_may_have_half_of_the_processes_of_its_user() -> None:
    assert exit_codes(fork(_start_alongside_an_agent)) == [0]


@pytest.mark.parametrize("mode", HELD)
def test_what_runs_inside_may_open_half_of_the_descriptors_that_garrison_may(mode: Mode, place: Place) -> None:
    output = run(with_mode(place, mode), "ulimit -Hn; ulimit -Sn; ulimit -Hn 1000000 || echo refused")[1]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert output.split()[:2] == [str(hard // 2), str(min(soft, hard // 2))], output
    assert "refused" in output


@pytest.mark.parametrize("mode", [pytest.param(Mode.NONE), *HELD])
def test_an_output_is_never_executable_whatever_mode_its_command_gave_it(mode: Mode, place: Place) -> None:
    log = place.worktree.parent / "output.log"
    finish(start(with_mode(place, mode), "python3 -c 'import os; os.fchmod(1, 0o4777)'", log))
    assert log.stat().st_mode & 0o7777 & ~0o644 == 0, log.read_text()


def test_an_ignore_file_in_a_worktree_that_links_out_of_it_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET")
    git(tmp_path, "init", "-q", "repo")
    repo = tmp_path / "repo"
    git(repo, "config", "core.excludesFile", ".patterns")
    (repo / ".patterns").symlink_to(tmp_path / "secret")
    exclude_in_checkout(Git(repo), repo, tmp_path, ["*.log"], {})
    assert (tmp_path / NAME).read_text() == "*.log\n"


@needs_bubblewrap
@pytest.mark.skipif(not seccomp.is_known(), reason="numbers of system calls are not known here")
@pytest.mark.parametrize("refused", [True, False])
def test_a_filter_refuses_calls_that_make_user_namespaces(tmp_path: Path, refused: bool) -> None:
    """As in a container that lets bubblewrap work, but not set how many there may be."""
    calls = tmp_path / "calls"
    calls.write_bytes(seccomp.program(refuses_namespaces=refused))
    words = ["sh", "-c", 'exec 9<"$0" && exec "$@"', str(calls), machine().bubblewrap, "--seccomp", "9",
             *bubblewrap.NAMESPACES, "--cap-drop", "ALL", "--dev-bind", "/", "/", "unshare", "-U", "true"]
    assert (subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode != 0) is refused
