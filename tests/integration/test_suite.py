"""`tests/suite.py`, which scripts/test and .ci/run become: its checks with stand-ins for the programs, its processes
with a real pytest that is killed, signals that its caller ignores, and its list of unsteady tests."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from suite import FAST, MOST_UNSTEADY, UNSTEADY, entry_of, environment, read_unsteady, smoke_files
from support import DEADLINE, processes, read_process, stat, wait_for

ROOT = Path(__file__).resolve().parents[2]
TODAY = date(2026, 3, 20)

PROGRAM = """#!{python} -IS
import json, os, pathlib, sys
name, words = {name!r}, sys.argv[1:]
with open("{root}/calls", "a") as calls:
    calls.write(json.dumps([name, *words]) + chr(10))
pathlib.Path("{root}/environment").write_text(json.dumps(dict(os.environ)))
{script}
sys.exit(name in os.environ.get("FAILING", "").split())
"""
"""A stand-in for a program of .venv/bin: it notes how it was called."""


def stand_in(root: Path, name: str, script: str = "") -> None:
    path = root / ".venv/bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PROGRAM.format(python=sys.executable, root=root, name=name, script=script))
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with the suite and a stand-in for each program that it runs."""
    root = tmp_path / "checkout"
    for name in ("tests/suite.py", "scripts/test", ".ci/run"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    (root / "scripts/_setup.sh").write_text("set_up_for_tests() { :; }\n")
    (root / "tests/unit/__pycache__").mkdir(parents=True)
    for name in ("ruff", "mypy", "lint-imports", "python", "coverage"):
        stand_in(root, name)
    return root


def run(root: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the suite of a checkout to its end, from elsewhere."""
    (root / "tmp").mkdir(exist_ok=True)
    return subprocess.run([sys.executable, "-P", str(root / "tests/suite.py"), *arguments], cwd="/", check=False,
                          capture_output=True, text=True, timeout=DEADLINE,
                          env={"PATH": "/usr/bin:/bin", "TMPDIR": str(root / "tmp"), **env})


def calls(root: Path, *having: str) -> list[list[str]]:
    """Return the calls of programs that have all these words."""
    path = root / "calls"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [words for words in found if all(any(part in word for word in words) for part in having)]


def outcomes(*failed: str, skipped: tuple[str, ...] = ()) -> str:
    """Return Python that writes a pytest run's outcomes, as conftest.py does."""
    text = json.dumps({"failed": failed, "skipped": skipped})
    return f'pathlib.Path(words[words.index("--outcomes") + 1]).write_text({text!r})'


LARGE = 500_000


def executed_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a syntax tree but for the bodies of functions."""
    yield node
    later = {"body"} if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else set()
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name not in later and isinstance(child, ast.AST):
                yield from executed_at_import(child)


def factor(node: ast.AST) -> int:
    """Return how often an expression repeats a literal or calls a generator, as far as it is a number."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        repeated = [side for side in (node.left, node.right) if isinstance(side, ast.Constant | ast.List | ast.Tuple)]
        numbers = [side.value for side in repeated if isinstance(side, ast.Constant) and isinstance(side.value, int)]
        return max(numbers, default=0) if len(numbers) < len(repeated) else 0
    is_range = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"
    return max((each.value for each in node.args if isinstance(each, ast.Constant)), default=0) if is_range else 0


class TestTiers:
    def test_the_first_tier_runs_unit_contract_and_smoke_tests_and_passes_nothing_of_the_caller_on(
            self, checkout: Path) -> None:
        (checkout / "tests/e2e").mkdir()
        (checkout / "tests/e2e/test_a.py").write_text("@pytest.mark.smoke\ndef test_a(): pass\n")
        (checkout / "tests/e2e/test_b.py").write_text("def test_b(): pass\n")
        done = run(checkout, GARRISON_HOME="/mine", GIT_DIR="/mine/.git", PYTEST_ADDOPTS="-x", PYTHONPATH="/mine",
                   ANTHROPIC_API_KEY="mine", LANG="C.UTF-8")
        assert done.returncode == 0, done.stdout + done.stderr
        [main] = calls(checkout, "main.json")
        assert main[main.index("-m", 3) + 1] == "not slow and smoke"
        assert main[-2:] == ["worksteal", "tests/e2e/test_a.py"]
        [parts] = calls(checkout, "parts.json")
        assert parts[parts.index("-m", 3) + 1] == "not slow"
        assert parts[-3:] == ["worksteal", "tests/unit", "tests/contract"]
        [claude] = calls(checkout, "garrison.testing.isolation")
        assert "not slow and smoke" in claude and claude[-1] == "tests/claude"
        assert not calls(checkout, "--cov") and not calls(checkout, "--collect-only")
        assert [line[3:] for line in done.stdout.splitlines() if line.startswith("== ")] == [
            "ruff check", "page", "import-linter", "pytest", "mypy", "pytest unit and contract", "pytest claude"]
        assert done.stdout.endswith("scripts/test: all checks passed\n")
        found = json.loads((checkout / "environment").read_text())
        assert "mine" not in json.dumps(found)
        assert found["LANG"] == "C.UTF-8"
        assert not list((checkout / "tmp").iterdir()), "a run that passes leaves no file"

    def test_full_runs_all_but_the_slow_ones_and_adds_the_coverage_of_parallel_checks(
            self, checkout: Path) -> None:
        stand_in(checkout, "python", """
for word in [*words, f"COVERAGE_FILE={os.environ.get('COVERAGE_FILE', '')}"]:
    if word.startswith("COVERAGE_FILE=/"):
        pathlib.Path(word.partition("=")[2]).touch()""")
        assert run(checkout, "--full").returncode == 0
        [main] = calls(checkout, "main.json")
        assert main[main.index("-m", 3) + 1] == "not slow"
        assert {"--cov", *(f"--ignore=tests/{each}" for each in ("claude", "unit", "contract"))} <= set(main)
        [parts] = calls(checkout, "parts.json")
        assert parts[parts.index("-m", 3) + 1] == "not slow" and "--cov" in parts
        combined, report = calls(checkout, "coverage")[-2:]
        assert combined[:4] == ["coverage", "combine", "--quiet", "--append"]
        assert [Path(word).name for word in combined[4:]] == ["coverage-claude", "coverage-parts"]
        assert report == ["coverage", "report"]

    def test_all_runs_the_slow_ones_too(self, checkout: Path) -> None:
        assert run(checkout, "--all").returncode == 0
        [main] = calls(checkout, "main.json")
        [parts] = calls(checkout, "parts.json")
        assert main[main.index("-m", 3) + 1] == parts[parts.index("-m", 3) + 1] == ""
        assert "--cov" in main

    def test_arguments_are_pytests_in_one_process_and_measure_nothing(self, checkout: Path) -> None:
        assert run(checkout, "--install-system", "tests/unit", "-k", "a or b").returncode == 0
        [main] = calls(checkout, "pytest")
        assert main[-3:] == ["tests/unit", "-k", "a or b"]
        assert not {"-n", "--cov", "--install-system"} & set(main)
        assert not calls(checkout, "isolation")

    def test_ci_runs_the_full_tier_from_anywhere(self, checkout: Path) -> None:
        done = subprocess.run([str(checkout / ".ci/run"), "-x"], cwd="/", check=False, capture_output=True, text=True,
                              env={"PATH": "/usr/bin:/bin"})
        assert done.returncode == 0, done.stderr
        assert calls(checkout, "suite.py")[0][1:] == ["-P", f"{checkout}/tests/suite.py", "--full", "-x"]

    def test_this_checkout_has_its_smoke_tests(self) -> None:
        files = smoke_files(ROOT)
        assert len(smoke_files(ROOT, "claude")) > 0
        assert {"tests/e2e/test_promise.py", "tests/browser/test_page.py"} <= set(files)
        assert sum(path.startswith("tests/integration/") for path in files) >= 20
        assert "smoke" in FAST.markers

    def test_no_module_of_tests_makes_large_data_when_it_is_imported(self) -> None:
        """Each process of the suite would keep it to the end, and copy its pages whenever a test forks."""
        texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
        found = [f"{path.relative_to(ROOT)}:{node.lineno}" for path, text in texts.items()
                 if re.search(rf"\d[\d_]{{{len(str(LARGE)) - 1},}}", text)
                 for node in executed_at_import(ast.parse(text)) if factor(node) >= LARGE]
        assert not found, "make it within the test, or by a lambda that the test calls"


class TestChecks:
    @pytest.mark.parametrize(("programs", "failures"), [
        ("ruff", 1), ("coverage", 1), ("ruff mypy lint-imports python coverage", 7)])
    def test_one_red_check_is_red_and_the_others_run(self, checkout: Path, programs: str, failures: int) -> None:
        done = run(checkout, "--full", FAILING=programs)
        assert done.returncode == 1
        assert done.stdout.count("FAILED (1)") == failures
        assert done.stdout.endswith("scripts/test: failed\n")
        assert len(calls(checkout)) == 7

    def test_the_output_of_a_parallel_check_is_printed_whole(self, checkout: Path) -> None:
        stand_in(checkout, "mypy", "print('a type is wrong'); print('and another', file=sys.stderr); sys.exit(3)")
        done = run(checkout)
        assert done.returncode == 1
        assert "== mypy" in done.stdout
        assert {"a type is wrong", "and another"} <= set(done.stdout.splitlines())
        assert re.search(r"mypy +\d+ s  FAILED \(3\)", done.stdout)

    def test_what_is_skipped_is_named_and_a_fresh_checkout_has_its_assertions_rewritten_once(
            self, checkout: Path) -> None:
        (checkout / "tests/unit/__pycache__").rmdir()
        stand_in(checkout, "python", f"""
if "--outcomes" in words:
    {outcomes(skipped=("no browser", "no browser", "not root"))}
sys.exit(77 * ("garrison.testing.isolation" in words))""")
        done = run(checkout)
        assert done.returncode == 0, done.stdout
        assert "skipped 9 tests:\n     6  no browser\n     3  not root\n" in done.stdout, "summed over all three"
        assert re.search(r"pytest claude +\d+ s  skipped, nothing can be isolated here", done.stdout)
        assert len(calls(checkout, "--collect-only")) == 1


class TestUnsteady:
    """Tests that fail in the parallel run and pass alone."""

    @staticmethod
    def failing(root: Path, *tests: str, alone: int = 0, where: tuple[str, ...] = ("main",)) -> None:
        """Let these tests fail in parallel, and exit with `alone` when repeated; tests/test_a.py::test_b is listed."""
        (root / UNSTEADY).write_text(f"{date.today()} tests/test_a.py::test_b waits too short\n")
        stand_in(root, "python", f"""
if any(word.endswith(tuple(f"/{{name}}.json" for name in {where})) for word in words):
    {outcomes(*tests)}
    sys.exit(1)
if any(word.endswith("again.json") for word in words):
    sys.exit({alone})""")

    def test_one_that_passes_alone_fails_the_run_though_another_is_listed(self, checkout: Path) -> None:
        self.failing(checkout, "tests/test_a.py::test_b[1]", "tests/test_a.py::test_c")
        done = run(checkout)
        assert done.returncode == 1, done.stdout
        [again] = calls(checkout, "again.json")
        assert again[-2:] == ["tests/test_a.py::test_b[1]", "tests/test_a.py::test_c"]
        assert "-n" not in again
        assert f"tests/test_a.py::test_c  (not in {UNSTEADY}: repair it, or list it" in done.stdout

    def test_a_listed_one_that_passes_alone_does_not_fail_the_run(self, checkout: Path) -> None:
        self.failing(checkout, "tests/test_a.py::test_b[1]")
        done = run(checkout)
        assert done.returncode == 0, done.stdout
        assert f"tests/test_a.py::test_b[1]  (listed since {date.today()}: waits too short)" in done.stdout
        assert re.search(r"pytest +\d+ s  ok, unsteady tests, listed", done.stdout)

    def test_one_that_also_fails_alone_fails_the_run_though_it_is_listed(self, checkout: Path) -> None:
        self.failing(checkout, "tests/test_a.py::test_b", alone=1)
        done = run(checkout)
        assert done.returncode == 1
        assert "unsteady:" not in done.stdout

    def test_many_failures_are_not_repeated(self, checkout: Path) -> None:
        self.failing(checkout, *(f"tests/test_a.py::test_{number}" for number in range(4)))
        assert run(checkout).returncode == 1
        assert not calls(checkout, "again.json")

    def test_failed_unit_tests_are_repeated_and_those_with_the_real_cli_in_isolation(self, checkout: Path) -> None:
        self.failing(checkout, "tests/test_a.py::test_d", where=("parts", "claude"))
        done = run(checkout)
        assert done.returncode == 1
        [parts] = calls(checkout, "parts-again.json")
        [claude] = calls(checkout, "claude-again.json")
        assert parts[-1] == claude[-1] == "tests/test_a.py::test_d"
        assert "garrison.testing.isolation" in claude and "garrison.testing.isolation" not in parts
        assert done.stdout.count(f"tests/test_a.py::test_d  (not in {UNSTEADY}") == 2, "both passed alone"

    def test_a_bad_list_stops_the_run_at_once(self, checkout: Path) -> None:
        (checkout / UNSTEADY).write_text("2020-01-01 tests/test_a.py::test_b waits too short\n")
        done = run(checkout)
        assert done.returncode == 1
        assert "line 1: tests/test_a.py::test_b is listed since 2020-01-01" in done.stdout
        assert not calls(checkout)

    def test_the_list_is_read(self) -> None:
        listed = read_unsteady("# a comment\n\n2026-03-19 tests/a.py::test_b  it is slow on one core\n", TODAY)
        [entry] = listed
        assert (entry.test, entry.since, entry.reason) == ("tests/a.py::test_b", date(2026, 3, 19),
                                                           "it is slow on one core")
        assert entry_of("tests/a.py::test_b[x]", listed) is entry
        assert entry_of("tests/a.py::test_bb", listed) is None

    @pytest.mark.parametrize(("text", "complaint"), [
        ("2026-03-05 a.py::b it is slow", "14 days are over"),
        ("2026-03-22 a.py::b it is slow", "is listed since 2026-03-22"),
        ("soon a.py::b it is slow", "'soon' is not a date"),
        ("2026-03-20 a.py::b", "line 1: write DATE TEST REASON"),
        ("2026-03-20 a.py it is slow", "line 1: write DATE TEST REASON"),
        ("\n".join(f"2026-03-20 a.py::b{number} it is slow" for number in range(6)), "6 tests are listed, at most 5"),
    ])
    def test_invalid_entries_of_the_unsteady_list_are_refused(self, text: str, complaint: str) -> None:
        with pytest.raises(ValueError, match=re.escape(complaint)):
            read_unsteady(text, TODAY)

    def test_the_limits_themselves_are_allowed(self) -> None:
        text = "\n".join(f"2026-03-06 a.py::b{number} it is slow" for number in range(MOST_UNSTEADY))
        assert len(read_unsteady(text, TODAY)) == 5

    def test_the_list_of_this_checkout_is_valid_and_names_tests_that_exist(self) -> None:
        for entry in read_unsteady((ROOT / UNSTEADY).read_text(), date.today()):
            path, _, name = entry.test.partition("::")
            assert f"def {name.rpartition('::')[2].partition('[')[0]}(" in (ROOT / path).read_text(), entry


# ----------------------------------------------------------------------------------------------- processes, for real

STARTS_DAEMONS = """
import os, subprocess, time
from pathlib import Path
def test_a(tmp_path):
    folder = Path({folder!r})
    shell = "echo $$ > {folder}/{{}}; exec sleep 987"
    subprocess.Popen(["sh", "-c", shell.format("child")])
    subprocess.Popen(["setsid", "-f", "sh", "-c", shell.format("daemon")])
    subprocess.Popen(["setsid", "-f", "sh", "-c", shell.format("named")], cwd="/", env={{"A": str(tmp_path),
                     "PATH": os.environ["PATH"]}})
    while len(list(folder.iterdir())) < 3:
        time.sleep(0.01)
    (folder / "ready").touch()
    {then}
"""
RUNS_IT = """
import subprocess, sys
sys.path.insert(0, {tests!r})
from suite import environment, supervise
def work(scratch):
    words = [word.format(scratch=scratch) for word in {words}]
    return subprocess.run([sys.executable, *words], cwd={folder!r}, env=environment({env}, scratch)).returncode == 0
sys.exit(supervise(work))
"""


PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:pytest_cov", "--basetemp",
          "{scratch}/main", "-n", "1", "test_daemons.py")
CALL = ("-c", "from pathlib import Path; from test_daemons import test_a; test_a(Path('{scratch}'))")


class Supervised:
    """A supervised program, by default pytest, whose test starts a child, a daemon, and one that names the run in its
    environment alone."""

    def __init__(self, folder: Path, then: str, words: tuple[str, ...] = PYTEST) -> None:
        self.pids = folder / "pids"
        self.pids.mkdir()
        test = folder / "test_daemons.py"
        test.write_text(STARTS_DAEMONS.format(folder=str(self.pids), then=then))
        self.program = RUNS_IT.format(tests=str(ROOT / "tests"), words=words, folder=str(folder),
                                      env={"PATH": os.environ["PATH"]})
        self.environment = {"PATH": os.environ["PATH"], "TMPDIR": str(folder)}
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        """Start it, and wait until the test has started its processes."""
        self.process = subprocess.Popen([sys.executable, "-P", "-c", self.program], env=self.environment, text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wait_for("the test has started its processes", (self.pids / "ready").exists)
        return self.process

    def living(self) -> list[int]:
        """Return those of the test's processes that live."""
        pids = [int(path.read_text()) for path in self.pids.iterdir() if path.name != "ready"]
        return [pid for pid in pids if (found := read_process(pid)) is not None and "sleep 987" in found.argv]

    def worker(self) -> int:
        """Return the worker's pid: a fork of the supervisor, and its child."""
        program = read_process(self.process.pid)
        [pid] = [one.pid for one in processes("supervise") if one.ppid == self.process.pid and program
                 and one.argv == program.argv]
        return pid


@pytest.fixture
def supervised(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Supervised]:
    made = Supervised(tmp_path, "time.sleep(600)", request.param)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
    for pid in made.living():
        os.kill(pid, signal.SIGKILL)


class TestProcesses:
    @pytest.mark.parametrize(("supervised", "number", "code"), [
        (PYTEST, signal.SIGTERM, 143), (CALL, signal.SIGINT, 143), (CALL, signal.SIGHUP, 143),
        (PYTEST, signal.SIGKILL, -9)], indirect=["supervised"])
    def test_the_end_of_the_supervisor_ends_all(self, supervised: Supervised, number: int, code: int) -> None:
        process = supervised.start()
        assert len(supervised.living()) == 3
        process.send_signal(number)
        assert process.wait(DEADLINE) == code
        wait_for("everything is ended", lambda: not supervised.living())
        wait_for("its files are removed", lambda: not list(supervised.folder.glob("gt-*")))

    @pytest.mark.parametrize("supervised", [CALL], indirect=True)
    def test_the_end_of_the_worker_ends_all(self, supervised: Supervised) -> None:
        process = supervised.start()
        orphans = [pid for pid in supervised.living() if stat(pid)[2] == process.pid]
        assert len(orphans) == 2, "daemons are the supervisor's to reap"
        os.kill(supervised.worker(), signal.SIGKILL)
        assert process.wait(DEADLINE) == 137
        assert not supervised.living()

    def test_leftovers_of_a_passing_run_are_named_and_fail_it(self, tmp_path: Path) -> None:
        made = Supervised(tmp_path, "pass")
        output, _ = made.start().communicate(timeout=DEADLINE)
        assert made.process.returncode == 1
        assert "1 passed" in output
        assert output.partition("left behind by the tests, and killed:")[2].count("sleep 987") == 3
        assert not made.living()

    def test_the_suite_passes_whatever_its_caller_ignores_blocks_or_closes(self, tmp_path: Path) -> None:
        """As under `nohup`, from a shell without job control, with a closed standard input and no terminal."""
        def hostile() -> None:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
            os.setsid()
            os.close(0)

        tests = ["tests/integration/test_event_loop.py", "-k", "signal"]
        done = subprocess.run(  # one thread
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "t"), *tests],
            cwd=ROOT, preexec_fn=hostile, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert " passed" in done.stdout


def test_the_environment_is_the_callers_without_what_tests_must_not_see(tmp_path: Path) -> None:
    source = {"PATH": "/bin", "GIT_DIR": "x", "GITHUB_ACTIONS": "true", "PYTHONHOME": "x", "PYENV_ROOT": "y", "CI": "1",
              "TMPDIR": "/elsewhere", "CLAUDECODE": "1", "CLAUDE_CONFIG_DIR": "x"}
    assert environment(source, tmp_path) == {
        "PATH": "/bin", "GITHUB_ACTIONS": "true", "PYENV_ROOT": "y", "CI": "1", "TMPDIR": f"{tmp_path}/tmp",
        "PYTHONUNBUFFERED": "1"}
