"""scripts/_setup.sh as a black box: a real sh, with stand-ins for what costs or changes much.

The stand-ins are shell functions defined after `_setup.sh` was read, or programs first on PATH. Set-up from nothing,
from the package index, is marked slow.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support import DEADLINE

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==\S+.*\\$", re.MULTILINE)

# A stand-in for uv's work: a .venv whose Python runs, and one line in `calls` each time, with what would be installed.
MAKE = """
have() { [ "$1" = uv ] || command -v "$1" >/dev/null 2>&1; }
system_packages() { :; }
compile_all() { :; }
make_with_uv() {
    echo made "$2" >>"$root/calls"
    mkdir -p "$root/.venv/bin" && ln -s "$1" "$root/.venv/bin/python"
}
add_with_uv() {
    echo added "$1" "$2" >>"$root/calls"
}
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with only what set-up needs."""
    root = tmp_path / "a checkout"
    (root / "scripts").mkdir(parents=True)
    for name in ("scripts/_setup.sh", "scripts/test", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, root / name)
    return root


def shell(root: Path, script: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `script` after reading `_setup.sh`, in an empty environment."""
    return subprocess.run(["/bin/sh", "-eu", "-c", prelude(root) + script], env=env or {}, capture_output=True,
                          text=True, timeout=DEADLINE, check=False)


def prelude(root: Path) -> str:
    return f"root='{root}'; . '{root}/scripts/_setup.sh'\n"


def set_up(root: Path, level: str = "base") -> str:
    done = shell(root, MAKE + f"set_up {level}")
    assert done.returncode == 0, done.stderr
    return done.stderr


def steps(root: Path) -> list[str]:
    return (root / "calls").read_text(encoding="utf-8").splitlines()


def calls(root: Path) -> int:
    return len(steps(root))


def section(root: Path, first: str, last: str) -> set[str]:
    """Return the packages that a step from level `first` to `last` installs."""
    (root / ".venv").mkdir(exist_ok=True)
    done = shell(root, f'requirements {first} {last}; cat "$root/.venv/garrison-requirements.txt"')
    assert done.returncode == 0, done.stderr
    return set(PIN.findall(done.stdout))


def direct(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [each for extra in extras for each in project["optional-dependencies"][extra]]
    own = [extra for each in wanted if each.startswith("garrison[") for extra in each[9:-1].split(",")]
    names = {re.split(r"[^\w.-]", each)[0].lower() for each in project["dependencies"] + wanted} - {"garrison"}
    return names | (direct(*own) if own else set())


class TestLock:
    def test_every_requirement_is_pinned_with_hashes(self) -> None:
        entries = re.split(r"\n(?=[a-z0-9])", re.sub(r"^# .*\n", "", LOCK, flags=re.MULTILINE))
        assert len(entries) > 20
        for entry in entries:
            assert PIN.match(entry), entry
            assert "--hash=sha256:" in entry

    def test_it_names_no_place(self) -> None:
        assert not re.findall(r"://|^-|@ ?file|(?<![\w/])/\w+/", LOCK, re.MULTILINE)

    def test_it_has_all_direct_requirements(self) -> None:
        assert direct("dev") - set(PIN.findall(LOCK)) == set(), "run scripts/lock"

    def test_each_level_has_what_it_needs_and_each_package_is_in_one(self, checkout: Path) -> None:
        """What of the installed packages a package needs is in its own section or one before."""
        base, claude, test = (section(checkout, *levels) for levels in (("none", "base"), ("base", "claude"),
                                                                        ("claude", "test")))
        assert direct("acp", "forges", "mcp", "top", "web") | {"hatchling", "editables"} <= base
        assert direct("claude") <= base | claude
        assert sorted([*base, *claude, *test]) == sorted(set(PIN.findall(LOCK)))
        assert section(checkout, "none", "test") == base | claude | test
        for level, known in ((base, base), (claude, base | claude)):
            for name in level:
                assert needed(name) <= known, f"{name}: run scripts/lock"
        assert "pytest" not in base | claude
        assert "claude-agent-sdk" not in base


def needed(name: str) -> set[str]:
    """Return the locked packages that an installed one needs on this machine."""
    try:
        requirements = [Requirement(each) for each in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:  # of another platform
        return set()
    return {str(canonicalize_name(each.name)) for each in requirements
            if each.marker is None or each.marker.evaluate({"extra": ""})} & set(PIN.findall(LOCK))


class TestScripts:
    def test_they_are_programs_of_a_plain_shell(self) -> None:
        for name in ("scripts/demo", "scripts/test", "scripts/lock", "scripts/userlands", ".ci/run"):
            path = ROOT / name
            assert path.stat().st_mode & stat.S_IXUSR
            assert path.read_text(encoding="utf-8").startswith("#!/bin/sh\n")
            assert subprocess.run(["/bin/sh", "-n", str(path)], check=False).returncode == 0

    def test_an_empty_environment_gets_path_and_home(self, checkout: Path) -> None:
        done = shell(checkout, 'unset PATH; sane_environment; echo "$PATH"; echo "$HOME"; command -v sed')
        path, home, _ = done.stdout.splitlines()
        assert "/usr/bin" in path.split(":")
        assert home.startswith("/")

    def test_the_callers_path_stays_first(self, checkout: Path) -> None:
        env = {"PATH": "/mine:/bin", "PYTHONPATH": "/x", "VIRTUAL_ENV": "/y"}
        done = shell(checkout, 'sane_environment; echo "$PATH"; echo "${PYTHONPATH-gone} ${VIRTUAL_ENV-gone}"', env)
        path, unset = done.stdout.splitlines()
        assert path.startswith("/mine:/bin:")
        assert path.count("/bin:") == path.count("/bin:/")
        assert unset == "gone gone"


class TestPython:
    def names(self, folder: Path, text: str, *names: str) -> dict[str, str]:
        for name in names or ("python3.13", "python3.12", "python3.11", "python3", "python"):
            program(folder / name, text)
        return {"PATH": f"{folder}:/usr/bin:/bin"}

    def test_a_shim_that_does_not_run_is_passed_over(self, checkout: Path, tmp_path: Path) -> None:
        env = self.names(tmp_path / "bin", "exit 127\n", "python3.13", "python3.12")
        program(tmp_path / "bin" / "python3.11", f'exec "{sys.executable}" "$@"\n')
        done = shell(checkout, "find_python", env)
        assert Path(done.stdout.strip()).is_file()
        assert "bin/python3.13" not in done.stdout

    def test_the_base_interpreter_is_taken_not_the_environment_that_will_be_replaced(
        self, checkout: Path, tmp_path: Path
    ) -> None:
        venv = tmp_path / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        done = shell(checkout, "find_python", self.names(venv / "bin", "exit 1\n", "python3.13", "python3.12"))
        assert Path(done.stdout.strip()).is_file()
        assert not done.stdout.startswith(str(venv))

    def test_too_old_is_one_line(self, checkout: Path, tmp_path: Path) -> None:
        old = 'case "$*" in *print\\(\\"python3*) echo "python3 is 3.9" ;; *) exit 1 ;; esac\n'
        done = shell(checkout, MAKE + "set_up base", self.names(tmp_path / "bin", old))
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "Python 3.11 or newer, python3 is 3.9" in done.stderr

    def test_without_the_venv_module_one_line_names_what_to_install(self, checkout: Path, tmp_path: Path) -> None:
        script = """
            have() { [ "$1" = apt-get ]; }
            may_install_system() { return 1; }
            find_python() { [ $# = 0 ] && echo PYTHON; }
            system_packages() { :; }
            set_up base
        """.replace("PYTHON", sys.executable)
        done = shell(checkout, script)
        assert done.returncode == 1
        version = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        assert f"no venv module; type: sudo apt-get install -y --no-install-recommends {version}" in done.stderr
        assert not (checkout / ".venv").exists()


class TestEnvironment:
    def test_it_is_made_once_and_again_when_its_inputs_its_place_or_its_python_change(
            self, checkout: Path, tmp_path: Path) -> None:
        assert "making .venv" in set_up(checkout)
        assert set_up(checkout) == ""
        assert calls(checkout) == 1
        for made, name in enumerate(("requirements.lock", "pyproject.toml"), 2):
            with (checkout / name).open("a", encoding="utf-8") as file:
                file.write("# changed\n")
            set_up(checkout)
            assert calls(checkout) == made
        shutil.copytree(checkout, tmp_path / "copy", symlinks=True)
        set_up(tmp_path / "copy")
        assert calls(tmp_path / "copy") == 4
        (checkout / ".venv/bin/python").unlink()
        set_up(checkout)
        assert calls(checkout) == 4

    def test_one_killed_half_way_is_made_again(self, checkout: Path) -> None:
        (checkout / "slow").touch()
        slow = prelude(checkout) + MAKE.replace("mkdir", '[ ! -e "$root/slow" ] || sleep 60\n    mkdir') + "set_up base"
        first = subprocess.Popen(["/bin/sh", "-eu", "-c", slow], env={}, start_new_session=True,
                                 stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + DEADLINE
        while not (checkout / "calls").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (checkout / ".venv").mkdir()
        (checkout / ".venv/half").touch()
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        set_up(checkout)
        assert calls(checkout) == 2
        assert not (checkout / ".venv/half").exists()

    @pytest.mark.parametrize(("other", "made"), [
        ("base", [["made base"]]), ("test", [["made test"], ["made base", "added base test"]])])
    def test_two_at_once_of_equal_or_different_levels_make_both(self, checkout: Path, other: str,
                                                                made: list[list[str]]) -> None:
        script = prelude(checkout) + MAKE.replace("mkdir", "sleep 0.3; mkdir") + "set_up "
        both = [subprocess.Popen(["/bin/sh", "-eu", "-c", script + level], env={}, stderr=subprocess.DEVNULL)
                for level in ("base", other)]
        assert [each.wait(DEADLINE) for each in both] == [0, 0]
        assert steps(checkout) in made
        assert set_up(checkout, other) == ""

    def test_pip_takes_over_when_uv_fails(self, checkout: Path) -> None:
        script = MAKE.replace("make_with_uv", "make_with_pip") + "make_with_uv() { return 1; }\nset_up base"
        done = shell(checkout, script)
        assert (done.returncode, calls(checkout)) == (0, 1)
        assert "trying venv and pip" in done.stderr

    def test_a_failed_set_up_is_no_set_up(self, checkout: Path) -> None:
        done = shell(checkout, MAKE + "have() { false; }\nmake_with_pip() { return 1; }\nset_up base")
        assert done.returncode == 1
        assert "run the same command again" in done.stderr
        assert not (checkout / ".venv/garrison-stamp").exists()


class TestLevels:
    """A .venv is as large as its user needs: base < claude < test."""

    def test_a_lower_level_is_completed_and_a_higher_one_serves(self, checkout: Path) -> None:
        assert "making .venv with uv from requirements.lock: about " in set_up(checkout)
        assert "adding the Claude SDK to .venv: about " in set_up(checkout, "claude")
        assert "adding what tests need to .venv: about " in set_up(checkout, "test")
        assert set_up(checkout, "base") == set_up(checkout, "claude") == set_up(checkout, "test") == ""
        assert steps(checkout) == ["made base", "added base claude", "added claude test"]

    def test_a_level_in_between_may_be_left_out(self, checkout: Path) -> None:
        set_up(checkout)
        set_up(checkout, "test")
        assert steps(checkout) == ["made base", "added base test"]

    @pytest.mark.parametrize("end", ["return 1", "kill -9 $$"])
    def test_where_completing_fails_or_is_killed_the_lower_level_stays_usable(self, checkout: Path, end: str) -> None:
        set_up(checkout)
        done = shell(checkout, MAKE + f"add_with_uv() {{ {end}; }}\nadd_with_pip() {{ return 1; }}\nset_up test")
        assert done.returncode != 0
        assert set_up(checkout) == ""
        set_up(checkout, "test")
        assert steps(checkout) == ["made base", "added base test"]

    def test_a_stamp_of_an_earlier_version_has_no_level(self, checkout: Path) -> None:
        set_up(checkout)
        stamp = checkout / ".venv/garrison-stamp"
        stamp.write_text(stamp.read_text().split()[0] + "\n")
        set_up(checkout)
        assert steps(checkout) == ["made base", "made base"]

    @pytest.mark.parametrize(("arguments", "level"), [((), "base"), (("--no-chaos",), "base"),
                                                      (("--install-system", "--keep", "--claude"), "claude")])
    def test_the_demonstration_asks_for_what_it_shows(self, checkout: Path, arguments: tuple[str, ...],
                                                      level: str) -> None:
        shutil.copy(ROOT / "scripts/demo", checkout / "scripts/demo")
        with (checkout / "scripts/_setup.sh").open("a") as file:
            file.write('set_up() { echo "$1"; mkdir -p "$root/.venv/bin"; ln -s /bin/echo "$root/.venv/bin/python"; }')
        done = subprocess.run([str(checkout / "scripts/demo"), *arguments], env={}, capture_output=True, text=True,
                              timeout=DEADLINE, check=True)
        passed = [str(checkout / "scripts/demo.py"), *(each for each in arguments if each != "--install-system")]
        assert done.stdout == f"{level}\n{' '.join(passed)}\n"


class TestSystemPackages:
    """Without tmux, on a machine with apt-get."""

    MACHINE = """
        have() { [ "$1" != tmux ]; }
        apt_get() { echo "apt-get $*"; }
    """

    def run(self, checkout: Path, script: str, **env: str) -> tuple[str, str]:
        done = shell(checkout, self.MACHINE + script + "\nsystem_packages", {"PATH": "/usr/bin:/bin", **env})
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def test_a_users_machine_is_left_alone(self, checkout: Path) -> None:
        for where in ("in_container() { false; }", "is_root() { false; }"):
            out, err = self.run(checkout, where)
            assert out == ""
            assert err.endswith("to have it: sudo apt-get install -y --no-install-recommends tmux\n")

    @pytest.mark.parametrize(("where", "env"), [
        ("in_container() { true; }; is_root() { true; }", {}),
        ("in_container() { false; }; is_root() { true; }", {"CI": "true"}),
        ("in_container() { false; }; install_system=yes", {}),
    ])
    def test_packages_are_installed_where_allowed(self, checkout: Path, where: str, env: dict[str, str]) -> None:
        out, err = self.run(checkout, where, **env)
        assert out.splitlines() == ["apt-get update", "apt-get install -y --no-install-recommends tmux"]
        assert "installing tmux" in err

    def test_a_failing_or_missing_apt_get_is_reported_and_survived(self, checkout: Path) -> None:
        _, err = self.run(checkout, "install_system=yes; apt_get() { return 100; }")
        assert "could not install tmux" in err and "plain processes serve" in err
        _, err = self.run(checkout, 'install_system=yes; have() { [ "$1" = git ] || [ "$1" = dnf ]; }')
        assert "no apt-get on this machine" in err and "to have it: sudo dnf install -y tmux\n" in err
        assert err.endswith("hold agents instead (docs/security.md); to have it: sudo dnf install -y bubblewrap\n")

    def test_what_is_missing_is_installed_at_once(self, checkout: Path) -> None:
        out, _ = self.run(checkout, 'install_system=yes; have() { [ "$1" = git ] || [ "$1" = apt-get ]; }; '
                                      "is_root() { true; }")
        assert out.splitlines()[-1] == "apt-get install -y --no-install-recommends tmux bubblewrap"

    def test_without_git_set_up_stops(self, checkout: Path) -> None:
        script = 'have() { [ "$1" = apk ]; }; in_container() { false; }; system_packages'
        done = shell(checkout, script)
        assert (done.returncode, done.stderr) == (1, "set-up: git is missing; type: sudo apk add git\n")


class TestTestPackages:
    """What tests need, on a machine without a browser, npm and Graphviz."""

    BARE = 'have() { [ "$1" = apt-get ]; }; apt_get() { echo "apt-get $*"; }; in_container() { false; }\n'

    @pytest.mark.parametrize(("script", "browser"), [
        ("", "chromium-headless-shell"),
        ('apt_get() { case "$*" in *headless*) return 100;; esac; echo "apt-get $*"; }', "chromium")])
    def test_all_are_installed_where_allowed_with_the_browser_that_there_is(self, checkout: Path, script: str,
                                                                           browser: str) -> None:
        done = shell(checkout, f"{self.BARE}{script}\nis_root() {{ true; }}; test_packages",
                     {"CI": "true", "PATH": "/usr/bin:/bin"})
        first, *rest = done.stdout.splitlines()
        assert (first, script or len(rest)) == ("apt-get update", script or 1)
        assert rest[-1] == f"apt-get install -y --no-install-recommends {browser} nodejs npm graphviz"

    def test_else_one_line_names_what_is_missing_and_nothing_stops(self, checkout: Path) -> None:
        script = self.BARE + 'have() { [ "$1" != dot ]; }; is_root() { false; }; test_packages; echo on'
        done = shell(checkout, script, {"PATH": "/usr/bin:/bin"})
        assert done.stdout == "on\n"
        assert done.stderr.endswith("to run them too: sudo apt-get install -y --no-install-recommends graphviz\n")

    def test_with_both_nothing_is_printed(self, checkout: Path) -> None:
        done = shell(checkout, "have() { true; }; test_packages", {"PATH": "/usr/bin:/bin"})
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class TestSetUpForTests:
    """The packages of the system come while .venv is made."""

    def test_both_run_at_the_same_time(self, checkout: Path) -> None:
        """Each waits for the other to start."""
        wait = 'until [ -e "$root/{}" ]; do sleep 0.01; done'
        script = MAKE.replace("echo made", f'touch "$root/making"; {wait.format("installing")}; echo made') + f"""
            test_packages() {{ touch "$root/installing"; {wait.format("making")}; echo installed >&2; }}
            set_up_for_tests"""
        done = shell(checkout, script)
        assert done.returncode == 0, done.stderr
        assert "installed" in done.stderr
        assert calls(checkout) == 1

    def test_without_git_set_up_stops(self, checkout: Path) -> None:
        script = MAKE + "system_packages() { die 'git is missing'; }\nset_up_for_tests\necho on"
        done = shell(checkout, script)
        assert (done.returncode, done.stdout) == (1, "")
        assert "git is missing" in done.stderr

    def test_apt_get_is_never_called_twice_at_once(self, checkout: Path) -> None:
        script = """
            have() { [ "$1" = apt-get ] || command -v "$1" >/dev/null; }
            is_root() { true; }
            apt_get() { mkdir "$root/busy" && sleep 0.1 && rmdir "$root/busy"; }
            try_install one & first=$!
            try_install two
            wait "$first"
        """
        done = shell(checkout, script, {"CI": "true", "PATH": "/usr/bin:/bin"})
        assert done.returncode == 0, done.stderr


def megabytes(folder: Path) -> int:
    return int(subprocess.run(["du", "-sm", str(folder)], capture_output=True, text=True, check=True).stdout.split()[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_set_up_from_nothing(tmp_path: Path, tool: str) -> None:
    uv = shutil.which("uv")
    if tool == "uv" and uv is None:
        pytest.skip("no uv on PATH")
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("scripts", "src"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "requirements.lock", "README.md"):
        shutil.copy(ROOT / name, root / name)
    env = {"PATH": f"{Path(uv).parent}:/usr/bin:/bin"} if tool == "uv" and uv else {}
    without_uv = 'have() { [ "$1" != uv ] && command -v "$1" >/dev/null 2>&1; }\n'
    start = prelude(root) + ("" if tool == "uv" else without_uv)
    script = ["/bin/sh", "-eu", "-c", start + "set_up base"]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ("with uv" in done.stderr, "with venv and pip" in done.stderr) == (tool == "uv", tool == "pip"), done.stderr
    told = re.search(r"(\d+) MB on disk", done.stderr)
    assert 0.7 * int(told[1]) < megabytes(root / ".venv") < 1.05 * int(told[1]), "correct `cost` in scripts/_setup.sh"
    where = subprocess.run([str(root / ".venv/bin/python"), "-c", "import garrison, click; print(garrison.__file__)"],
                           env={}, cwd="/", capture_output=True, text=True, check=True).stdout
    assert where.startswith(str(root / "src"))
    assert subprocess.run(script, env=env, capture_output=True, text=True, check=True).stderr == ""
    # The set-up for tests, killed half way; then with pip, which a .venv of uv's lacks.
    site = next((root / ".venv").glob("lib/python3*/site-packages"))
    script = ["/bin/sh", "-eu", "-c", start + "set_up test"]
    first = subprocess.Popen(script, env=env, stderr=subprocess.DEVNULL, start_new_session=True)
    while first.poll() is None and not (site / "mypy").exists():
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    script[-1] = prelude(root) + without_uv + "set_up test"
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "adding what tests need to .venv" in done.stderr
    tools = [str(root / ".venv/bin/python"), "-c", "import pytest, mypy.main, claude_agent_sdk, garrison"]
    subprocess.run(tools, env={}, cwd="/", check=True)
