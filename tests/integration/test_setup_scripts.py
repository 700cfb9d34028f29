"""scripts/_setup.sh, scripts/test and .ci/run as black boxes: a real sh, with stand-ins for what costs or changes much.

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
from pathlib import Path

import pytest

from support import DEADLINE, wait_for

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==\S+.*\\$", re.MULTILINE)
DEADLINE_S = DEADLINE

# A stand-in for uv's work: a .venv whose Python runs, and one line in `calls` each time.
MAKE = """
have() { [ "$1" = uv ] || command -v "$1" >/dev/null 2>&1; }
system_packages() { :; }
make_with_uv() {
    echo made >>"$root/calls"
    mkdir -p "$root/.venv/bin" && ln -s "$1" "$root/.venv/bin/python"
}
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What set-up needs of a checkout, and nothing else."""
    root = tmp_path / "a checkout"
    (root / "scripts").mkdir(parents=True)
    for name in ("scripts/_setup.sh", "scripts/test", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, root / name)
    return root


def shell(root: Path, script: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `script` after reading `_setup.sh`, in an empty environment."""
    return subprocess.run(["/bin/sh", "-eu", "-c", prelude(root) + script], env=env or {}, capture_output=True,
                          text=True, timeout=DEADLINE_S, check=False)


def prelude(root: Path) -> str:
    return f"root='{root}'; . '{root}/scripts/_setup.sh'\n"


def set_up(root: Path) -> str:
    done = shell(root, MAKE + "set_up")
    assert done.returncode == 0, done.stderr
    return done.stderr


def calls(root: Path) -> int:
    return len((root / "calls").read_text(encoding="utf-8").splitlines())


class TestLock:
    def test_every_requirement_is_pinned_with_hashes(self) -> None:
        entries = re.split(r"\n(?=[a-z0-9])", LOCK.partition("lock\n")[2])
        assert len(entries) > 20
        for entry in entries:
            assert PIN.match(entry), entry
            assert "--hash=sha256:" in entry

    def test_it_names_no_place(self) -> None:
        assert not re.findall(r"://|^-|@ ?file|(?<![\w/])/\w+/", LOCK, re.MULTILINE)

    def test_it_has_all_direct_requirements(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
        names = {re.split(r"[^\w.-]", each)[0].lower() for each in wanted}
        locked = {match[1] for line in LOCK.splitlines() if (match := PIN.match(line))}
        assert names - locked == set(), "run scripts/lock"


class TestScripts:
    @pytest.mark.parametrize("name", ["scripts/demo", "scripts/test", "scripts/lock", ".ci/run"])
    def test_they_are_programs_of_a_plain_shell(self, name: str) -> None:
        path = ROOT / name
        assert path.stat().st_mode & stat.S_IXUSR
        assert path.read_text(encoding="utf-8").startswith("#!/bin/sh\n")
        assert subprocess.run(["/bin/sh", "-n", str(path)], check=False).returncode == 0

    def test_an_empty_environment_gets_path_and_home(self, checkout: Path) -> None:
        done = shell(checkout, 'unset PATH; sane_environment; echo "$PATH"; echo "$HOME"; command -v sed')
        path, home, _ = done.stdout.splitlines()
        assert "/usr/bin" in path.split(":")
        assert home.startswith("/")

    def test_what_the_caller_put_first_stays_first(self, checkout: Path) -> None:
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
        done = shell(checkout, MAKE + "set_up", self.names(tmp_path / "bin", old))
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "Python 3.11 or newer, python3 is 3.9" in done.stderr

    def test_without_the_venv_module_one_line_says_what_to_install(self, checkout: Path, tmp_path: Path) -> None:
        script = """
            have() { [ "$1" = apt-get ]; }
            may_install_system() { return 1; }
            find_python() { [ $# = 0 ] && echo PYTHON; }
            system_packages() { :; }
            set_up
        """.replace("PYTHON", sys.executable)
        done = shell(checkout, script)
        assert done.returncode == 1
        version = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        assert f"no venv module; type: sudo apt-get install -y --no-install-recommends {version}" in done.stderr
        assert not (checkout / ".venv").exists()


class TestEnvironment:
    def test_it_is_made_once(self, checkout: Path) -> None:
        assert "making .venv" in set_up(checkout)
        assert set_up(checkout) == ""
        assert calls(checkout) == 1

    @pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
    def test_it_is_made_again_when_its_inputs_change(self, checkout: Path, name: str) -> None:
        set_up(checkout)
        with (checkout / name).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        set_up(checkout)
        assert calls(checkout) == 2

    def test_a_copied_checkout_makes_its_own(self, checkout: Path, tmp_path: Path) -> None:
        set_up(checkout)
        shutil.copytree(checkout, tmp_path / "copy", symlinks=True)
        set_up(tmp_path / "copy")
        assert calls(tmp_path / "copy") == 2

    def test_one_whose_python_is_gone_is_made_again(self, checkout: Path) -> None:
        set_up(checkout)
        (checkout / ".venv/bin/python").unlink()
        set_up(checkout)
        assert calls(checkout) == 2

    def test_one_killed_half_way_is_made_again(self, checkout: Path) -> None:
        (checkout / "slow").touch()
        slow = prelude(checkout) + MAKE.replace("mkdir", '[ ! -e "$root/slow" ] || sleep 60\n    mkdir') + "set_up"
        first = subprocess.Popen(["/bin/sh", "-eu", "-c", slow], env={}, start_new_session=True,
                                 stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + DEADLINE_S
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

    def test_two_at_once_make_one(self, checkout: Path) -> None:
        script = prelude(checkout) + MAKE.replace("mkdir", "sleep 0.3; mkdir") + "set_up"
        both = [subprocess.Popen(["/bin/sh", "-eu", "-c", script], env={}, stderr=subprocess.DEVNULL) for _ in "12"]
        assert [each.wait(DEADLINE_S) for each in both] == [0, 0]
        assert calls(checkout) == 1

    def test_pip_takes_over_when_uv_fails(self, checkout: Path) -> None:
        script = MAKE.replace("make_with_uv", "make_with_pip") + "make_with_uv() { return 1; }\nset_up"
        done = shell(checkout, script)
        assert (done.returncode, calls(checkout)) == (0, 1)
        assert "trying venv and pip" in done.stderr

    def test_a_failed_set_up_is_no_set_up(self, checkout: Path) -> None:
        done = shell(checkout, MAKE + "have() { false; }\nmake_with_pip() { return 1; }\nset_up")
        assert done.returncode == 1
        assert "run the same command again" in done.stderr
        assert not (checkout / ".venv/garrison-stamp").exists()


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

    def test_a_persons_machine_is_left_alone(self, checkout: Path) -> None:
        for where in ("in_container() { false; }", "is_root() { false; }"):
            out, err = self.run(checkout, where)
            assert out == ""
            assert err.endswith("to have it: sudo apt-get install -y --no-install-recommends tmux\n")

    @pytest.mark.parametrize(("where", "env"), [
        ("in_container() { true; }; is_root() { true; }", {}),
        ("in_container() { false; }; is_root() { true; }", {"CI": "true"}),
        ("in_container() { false; }; install_system=yes", {}),
    ])
    def test_where_it_may_it_installs(self, checkout: Path, where: str, env: dict[str, str]) -> None:
        out, err = self.run(checkout, where, **env)
        assert out.splitlines() == ["apt-get update", "apt-get install -y --no-install-recommends tmux"]
        assert "installing tmux" in err

    def test_a_failing_apt_get_is_said_and_survived(self, checkout: Path) -> None:
        _, err = self.run(checkout, "install_system=yes; apt_get() { return 100; }")
        assert "could not install tmux" in err
        assert "plain processes serve" in err

    def test_no_apt_get_is_said_and_survived(self, checkout: Path) -> None:
        _, err = self.run(checkout, 'install_system=yes; have() { [ "$1" = git ] || [ "$1" = dnf ]; }')
        assert "no apt-get on this machine" in err
        assert err.endswith("sudo dnf install -y tmux\n")

    def test_without_git_nothing_goes_on(self, checkout: Path) -> None:
        script = 'have() { [ "$1" = apk ]; }; in_container() { false; }; system_packages'
        done = shell(checkout, script)
        assert (done.returncode, done.stderr) == (1, "set-up: git is missing; type: sudo apk add git\n")


class TestTestPackages:
    """Of what tests need, without a browser and without Graphviz."""

    BARE = 'have() { [ "$1" = apt-get ]; }; apt_get() { echo "apt-get $*"; }; in_container() { false; }\n'

    def test_both_are_installed_where_that_may_be(self, checkout: Path) -> None:
        script = self.BARE + "is_root() { true; }; test_packages"
        done = shell(checkout, script, {"CI": "true", "PATH": "/usr/bin:/bin"})
        assert done.stdout.splitlines()[1] == "apt-get install -y --no-install-recommends chromium graphviz"

    def test_else_one_line_names_what_is_missing_and_nothing_stops(self, checkout: Path) -> None:
        script = self.BARE + 'have() { [ "$1" != dot ]; }; is_root() { false; }; test_packages; echo on'
        done = shell(checkout, script, {"PATH": "/usr/bin:/bin"})
        assert done.stdout == "on\n"
        assert done.stderr.endswith("to run them too: sudo apt-get install -y --no-install-recommends graphviz\n")

    def test_with_both_nothing_is_said(self, checkout: Path) -> None:
        done = shell(checkout, "have() { true; }; test_packages", {"PATH": "/usr/bin:/bin"})
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


STUB = """
import pathlib, signal, sys, time
words = " ".join(sys.argv)
mine = pathlib.Path("aside" if "isolation" in words else "main")
if "isolation" in words:
    signal.signal(signal.SIGINT, lambda *_: (pathlib.Path("heard").touch(), mine.unlink()))
if "--cov" in words:
    mine.touch()
    while mine.exists(): time.sleep(0.05)
"""
"""In place of pytest: works while there is a file of its name; the one that runs aside hears Ctrl-C."""


class TestTestScript:
    """scripts/test with programs that only note how they were called."""

    @pytest.fixture
    def stages(self, checkout: Path) -> Path:
        (checkout / "scripts/_setup.sh").write_text("set_up() { :; }; test_packages() { :; }\n", encoding="utf-8")
        (checkout / ".ci").mkdir()
        shutil.copy(ROOT / ".ci/run", checkout / ".ci/run")
        for name in ("ruff", "mypy", "lint-imports", "python", "coverage"):
            program(checkout / ".venv/bin" / name,
                    f'echo "{name} $*" >>calls; env >>env\n[ "{name}" != "$FAILING" ]\n')
        return checkout

    def run(self, root: Path, *arguments: str, failing: str = "", script: str = "scripts/test",
            **env: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "FAILING": failing, **env}
        return subprocess.run([str(root / script), *arguments], env=env, cwd="/", capture_output=True, text=True,
                              timeout=DEADLINE_S, check=False)

    def noted(self, root: Path) -> list[str]:
        return (root / "calls").read_text(encoding="utf-8").splitlines()

    def test_all_stages_in_order_from_anywhere(self, stages: Path) -> None:
        done = self.run(stages, script=".ci/run")
        assert done.returncode == 0, done.stderr
        noted = self.noted(stages)
        noted.remove("mypy ")  # beside the others
        (claude,) = [line for line in noted if "garrison.testing.isolation" in line]
        noted.remove(claude)  # too
        assert "tests/claude" in claude, "the real CLI runs where no network is"
        assert [line.split()[0] for line in noted] == ["ruff", "lint-imports", *["python"] * 2, "coverage"]
        once, rest = noted[2:4]
        assert "--collect-only" in once, "assertions are rewritten once, not in each process"
        assert "-m not slow" in rest
        assert "--cov" in rest
        assert re.search(r"coverage +\d+ s  ok\nscripts/test: all stages passed\n\Z", done.stdout)
        assert [line[3:] for line in done.stdout.splitlines() if line.startswith("== ")] == [
            "ruff check", "import-linter", "pytest", "mypy", "pytest claude", "coverage"]

    def test_what_was_rewritten_once_is_not_again(self, stages: Path) -> None:
        (stages / "tests/unit/__pycache__").mkdir(parents=True)
        assert self.run(stages).returncode == 0
        assert not any("--collect-only" in line for line in self.noted(stages))

    def test_the_coverage_of_what_runs_beside_the_others_is_added(self, stages: Path) -> None:
        program(stages / ".venv/bin/python", """case "$*" in
            *COVERAGE_FILE=*) for word; do case "$word" in COVERAGE_FILE=*) touch "${word#*=}";; esac; done;; esac""")
        assert self.run(stages).returncode == 0
        added, report = [line for line in self.noted(stages) if line.startswith("coverage")]
        assert re.fullmatch(r"coverage combine --quiet --append \S+/coverage", added)
        assert report == "coverage report"

    def test_who_gives_up_ends_what_runs_beside_the_others(self, stages: Path, tmp_path: Path) -> None:
        """The tests of the real CLI hear a Ctrl-C; nothing stays that was told nothing."""
        (stages / "stub.py").write_text(STUB, encoding="utf-8")
        program(stages / ".venv/bin/python", f'exec "{sys.executable}" stub.py "$@"\n')
        (tmp_path / "tmp").mkdir()
        child = subprocess.Popen([str(stages / "scripts/test")], cwd="/", stdout=subprocess.DEVNULL,
                                 env={"PATH": "/usr/bin:/bin", "FAILING": "", "TMPDIR": str(tmp_path / "tmp")})
        wait_for("both are at work", lambda: (stages / "main").exists() and (stages / "aside").exists())
        child.terminate()
        (stages / "main").unlink()  # a shell waits for what runs in front before it hears anything
        assert child.wait(DEADLINE_S) == 143
        assert (stages / "heard").exists() and not (stages / "aside").exists()
        assert not list((tmp_path / "tmp").iterdir())

    def test_what_runs_beside_the_others_is_told_whole_and_leaves_nothing(self, stages: Path, tmp_path: Path) -> None:
        program(stages / ".venv/bin/mypy", "echo a type is wrong; echo and another >&2; exit 3\n")
        (tmp_path / "tmp").mkdir()
        done = self.run(stages, TMPDIR=str(tmp_path / "tmp"))
        assert done.returncode == 1
        assert "== mypy\na type is wrong\nand another\n" in done.stdout
        assert re.search(r"mypy +\d+ s  FAILED \(3\)", done.stdout)
        assert not list((tmp_path / "tmp").iterdir())

    @pytest.mark.parametrize("aside", [False, True])
    @pytest.mark.parametrize(("many", "alone", "code"), [(1, 0, 0), (3, 0, 0), (3, 1, 1), (4, 0, 1), (0, 0, 1)])
    def test_few_failures_are_run_once_more_alone_and_named(self, stages: Path, many: int, alone: int, code: int,
                                                            aside: bool) -> None:
        """More than three, or none (it is something else than a test that failed), stay a failure at once."""
        main, claude = "--ignore=tests/claude", "isolation"
        program(stages / ".venv/bin/python", f"""echo "python $*" >>calls
            case "$*" in
            *--last-failed*) exit {alone};;
            *{main if aside else claude}*--cov*|*--collect-only*) exit 0;;
            *{claude if aside else main}*--cov*)
                for word; do case "$word" in cache_dir=*) cache="${{word#*=}}/v/cache";; esac; done
                mkdir -p "$cache"
                for number in $(seq {many}); do
                    echo "  \\"tests/test_a.py::test_b[$number]\\": true,"
                done >"$cache/lastfailed"
                exit 1;;
            esac""")
        done = self.run(stages)
        assert done.returncode == code, done.stdout
        again = [line for line in self.noted(stages) if "--last-failed" in line]
        assert len(again) == (0 < many <= 3) and all("-n " not in line for line in again)
        assert all(("isolation" in line) is aside for line in again)
        named = f"unsteady: failed beside the others, passed alone ({many}):\n  tests/test_a.py::test_b[1]\n"
        assert (named in done.stdout) is (code == 0)

    @pytest.mark.parametrize("stage", ["ruff", "mypy", "lint-imports", "python", "coverage"])
    def test_one_red_stage_is_red_and_the_others_run(self, stages: Path, stage: str) -> None:
        done = self.run(stages, failing=stage)
        assert done.returncode == 1
        assert done.stdout.count("FAILED (1)") == (2 if stage == "python" else 1)
        assert len(self.noted(stages)) == 7

    def test_what_cannot_be_isolated_is_skipped_and_said(self, stages: Path) -> None:
        program(stages / ".venv/bin/python", 'case "$*" in *isolation*) exit 77;; esac\n')
        done = self.run(stages)
        assert done.returncode == 0, done.stdout
        assert re.search(r"pytest claude +\d+ s  skipped, nothing can be isolated here", done.stdout)

    def test_all_includes_the_slow_ones(self, stages: Path) -> None:
        self.run(stages, "--all")
        assert not any("not slow" in line for line in self.noted(stages))
        assert "--cov" in self.noted(stages)[-2]

    def test_pytest_arguments_switch_the_threshold_off(self, stages: Path) -> None:
        self.run(stages, "--install-system", "tests/unit", "-k", "a or b")
        assert self.noted(stages)[-1] == "python -m pytest -m not slow tests/unit -k a or b"

    def test_nothing_of_the_callers_garrison_is_passed_on(self, stages: Path) -> None:
        self.run(stages, GARRISON_HOME="/mine", GARRISON_LIFE="x")
        assert "GARRISON_" not in (stages / "env").read_text(encoding="utf-8")


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
    hide = "" if tool == "uv" else 'have() { [ "$1" != uv ] && command -v "$1" >/dev/null 2>&1; }\n'
    script = ["/bin/sh", "-eu", "-c", prelude(root) + hide + "set_up"]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ("with uv" in done.stderr, "with venv and pip" in done.stderr) == (tool == "uv", tool == "pip"), done.stderr
    where = subprocess.run([str(root / ".venv/bin/python"), "-c", "import garrison, click; print(garrison.__file__)"],
                           env={}, cwd="/", capture_output=True, text=True, check=True).stdout
    assert where.startswith(str(root / "src"))
    assert subprocess.run(script, env=env, capture_output=True, text=True, check=True).stderr == ""
