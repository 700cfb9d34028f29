"""Run the checks of one tier, report what was skipped or unsteady, and end everything that the checks started.

    scripts/test                 ruff, import-linter, mypy; unit and contract tests and those marked `smoke`
    scripts/test --full          all tests but those marked `slow`, with coverage; continuous integration runs this
    scripts/test --all           the slow ones too
    scripts/test ARGUMENT...     pytest with these arguments in one process, after the other checks

Invariants:
 * Two processes: a supervisor that is a subreaper and reaps every orphan, and a worker that runs the checks. Whichever
   of them is ended, by whatever signal, the other ends all that the checks have started: their descendants, and each
   process whose command line or environment names this run's temporary directory. Only by pid.
 * Nothing of the caller reaches the tests but PATH, locale and the like: signals that it ignores or blocks, a closed
   standard input, and variables of git, pytest and garrison do not.
 * A test that fails alongside the others and passes alone is a failure, unless `tests/unsteady.txt` lists it.

Standard library only, and nothing of garrison: the checks must run when garrison is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
UNSTEADY = "tests/unsteady.txt"
MOST_UNSTEADY = 5
OLDEST = timedelta(days=14)
MOST_RETRIED = 3
"""More failures than these are not unsteady tests, and are not run once more."""
GRACE = 10.0
"""Seconds for a check to end after a signal, and for the last processes of the tests to end by themselves."""
NOT_ISOLATED = 77
"""Exit code of `garrison.testing.isolation` where nothing can be isolated."""
OLDEST_NODE = 20
"""Major version that ESLint needs."""
NOT_THERE = 78
"""Exit code of a check whose tools are not installed."""
SKIPPED = {NOT_ISOLATED: "nothing can be isolated here", NOT_THERE: "its tools are not installed"}
CALLERS = re.compile(r"(GARRISON|GIT|PYTEST|COVERAGE|CLAUDE|ANTHROPIC)_|(CDPATH|TMPDIR|PYTHON[A-Z]+|CLAUDECODE)$")
"""Variables of the caller that tests must not see."""


# ---------------------------------------------------------------------------------------------------------- the tiers


@dataclass(frozen=True)
class Tier:
    """Which tests are run, and how; `parts` are unit and contract tests."""

    markers: str
    parts_markers: str
    coverage: bool


FAST = Tier("not slow and smoke", "not slow", coverage=False)
FULL = Tier("not slow", "not slow", coverage=True)
ALL = Tier("", "", coverage=True)
PARTS = ("tests/unit", "tests/contract")


def smoke_files(root: Path, folder: str = "") -> list[str]:
    """Return the test files with smoke tests, so that no others are collected: those of a folder, or of all folders but
    unit, contract and claude."""
    return [str(path.relative_to(root)) for path in sorted((root / "tests").glob(f"{folder or '*'}/test_*.py"))
            if (folder or path.parent.name not in ("unit", "contract", "claude")) and "mark.smoke" in path.read_text()]


# ------------------------------------------------------------------------------------------------- unsteady tests


@dataclass(frozen=True)
class Unsteady:
    """A test that may fail alongside the others if it passes alone."""

    test: str
    since: date
    reason: str


def read_unsteady(text: str, today: date) -> list[Unsteady]:
    """Parse the list; ValueError names every line that is not `DATE TEST REASON`, is too old, or one too many."""
    found, wrong = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        day, test, reason = [*line.split(maxsplit=2), "", "", ""][:3]
        try:
            entry = Unsteady(test, date.fromisoformat(day), reason.strip())
        except ValueError:
            wrong.append(f"line {number}: {day!r} is not a date; write DATE TEST REASON")
            continue
        if "::" not in test or not reason:
            wrong.append(f"line {number}: write DATE TEST REASON")
        elif not today - OLDEST <= entry.since <= today + timedelta(days=1):
            wrong.append(f"line {number}: {test} is listed since {day}; repair the test, {OLDEST.days} days are over")
        found.append(entry)
    if len(found) > MOST_UNSTEADY:
        wrong.append(f"{len(found)} tests are listed, at most {MOST_UNSTEADY} may be; repair one")
    if wrong:
        raise ValueError("\n".join(wrong))
    return found


def entry_of(test: str, listed: list[Unsteady]) -> Unsteady | None:
    """Return the entry that lists a test; one without parameters lists all of them."""
    return next((entry for entry in listed if entry.test in (test, test.partition("[")[0])), None)


# ----------------------------------------------------------------------------------------------------------- checks


@dataclass
class Check:
    """One check: a command, its output if it runs alongside others, its exit code and duration once it has ended."""

    name: str
    command: list[str]
    environment: dict[str, str]
    output: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    watcher: threading.Thread | None = None
    began: float = 0.0
    seconds: float = 0.0
    code: int = -1
    note: str = ""

    def start(self, root: Path) -> Check:
        """Start the command; it is ended if the worker dies."""
        self.began = time.monotonic()
        out = self.output.open("wb") if self.output else None
        self.process = subprocess.Popen(self.command, cwd=root, env=self.environment, stdin=subprocess.DEVNULL,
                                        stdout=out, stderr=subprocess.STDOUT if out else None)
        if out:
            out.close()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()
        return self

    def watch(self) -> None:
        """Note when and how the process ends, whatever runs in the foreground."""
        self.code = self.process.wait()
        self.seconds = time.monotonic() - self.began

    def wait(self) -> Check:
        """Wait until it has ended; print what it printed."""
        self.watcher.join()
        if self.output:
            sys.stdout.write(self.output.read_text(errors="replace"))
            sys.stdout.flush()
        return self

    def end(self) -> None:
        """Ask pytest to end as at Ctrl-C, anything else to terminate."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT if "pytest" in self.name else signal.SIGTERM)

    @property
    def result(self) -> str:
        """Return the word of the table."""
        if self.code in SKIPPED:
            return f"skipped, {SKIPPED[self.code]}"
        return (f"FAILED ({self.code})" if self.code else "ok") + (f", {self.note}" if self.note else "")

    @property
    def failed(self) -> bool:
        return self.code != 0 and self.code not in SKIPPED


@dataclass
class Suite:
    """One run of the checks of a tier."""

    root: Path
    scratch: Path
    tier: Tier
    arguments: list[str]
    listed: list[Unsteady] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bin = self.root / ".venv/bin"
        self.environment = environment(os.environ, self.scratch)

    def run(self) -> bool:
        """Run all checks; whether all passed."""
        try:
            mypy = self.check("mypy", str(self.bin / "mypy"), beside=True).start(self.root)
            parts = claude = None
            if not self.arguments:
                words = smoke_files(self.root, "claude") if self.tier is FAST else ["-n", "2", "tests/claude"]
                claude = self.claude(self.tier.markers, *(words or ["tests/claude"])).start(self.root)
                self.rewrite_assertions()
                parts = self.parts().start(self.root)
            self.run_one(self.check("ruff check", str(self.bin / "ruff"), "check"))
            self.check_page()
            self.run_one(self.check("import-linter", str(self.bin / "lint-imports")))
            self.run_main()
            print("\n== mypy", flush=True)
            mypy.wait()
            if parts is not None:
                print("\n== pytest unit and contract", flush=True)
                self.retry(parts.wait(), self.again("pytest unit and contract, once more", "parts-again.json"))
            if claude is not None:
                print("\n== pytest claude", flush=True)
                self.retry(claude.wait(), lambda *tests: self.claude("", *tests, again=True))
                if self.tier.coverage:
                    self.run_one(self.coverage())
        finally:
            self.end()
        self.report()
        return not any(check.failed for check in self.checks)

    def check(self, name: str, *command: str, beside: bool = False) -> Check:
        """Make a check; `beside` the others its output is kept and printed in its turn."""
        output = self.scratch / name.replace(" ", "-") if beside else None
        self.checks.append(Check(name, list(command), self.environment, output))
        return self.checks[-1]

    def run_one(self, check: Check) -> Check:
        """Run a check in front."""
        print(f"\n== {check.name}", flush=True)
        return check.start(self.root).wait()

    def pytest(self, markers: str, name: str, *words: str, coverage: bool) -> list[str]:
        """Return a pytest command that writes its outcomes to a file of that name."""
        measured = ["--cov", "--cov-report=", "--cov-fail-under=0", "--durations=40"] if coverage else []
        return [str(self.bin / "python"), "-m", "pytest", "-m", markers, "--outcomes", str(self.scratch / name),
                "--basetemp", str(self.scratch / name.partition(".")[0]), "-o", f"cache_dir={self.scratch}/cache",
                *measured, *words]

    def rewrite_assertions(self) -> None:
        """Let pytest rewrite the assertions of all test modules in a fresh checkout: once, and not in each process."""
        if not (self.root / "tests/unit/__pycache__").is_dir():
            where = [*PARTS, *smoke_files(self.root)] if self.tier is FAST else ["--ignore=tests/claude"]
            subprocess.run([str(self.bin / "python"), "-m", "pytest", "--collect-only", "-q", *where], cwd=self.root,
                           env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def run_main(self) -> None:
        """Run all tests but unit and contract tests and those with the real Claude CLI."""
        if self.arguments:
            words = self.pytest(self.tier.markers, "main.json", *self.arguments, coverage=False)
            self.run_one(self.check("pytest", *words))
            return
        where = smoke_files(self.root) if self.tier is FAST else [f"--ignore={each}" for each in (
            "tests/claude", *PARTS)]
        # Whole runs mostly wait for one another's processes; what the first tier has of them computes.
        count = "2" if self.tier is FAST else "4"
        check = self.check("pytest", *self.pytest(self.tier.markers, "main.json", "-n", count, "--dist", "worksteal",
                                                  *where, coverage=self.tier.coverage))
        self.retry(self.run_one(check), self.again("pytest, once more", "again.json"))

    def parts(self) -> Check:
        """Make the check of unit and contract tests, in processes of its own: those of whole runs fork often, and the
        thousands of small tests, held by the same process, would make each fork three times as expensive. Each of its
        processes takes 12 s of the processor to collect them, so there are no more than two."""
        check = self.check("pytest unit and contract", *self.pytest(
            self.tier.parts_markers, "parts.json", "-n", "2", "--dist", "worksteal", *PARTS,
            coverage=self.tier.coverage), beside=True)
        check.environment = {**self.environment, "COVERAGE_FILE": f"{self.scratch}/coverage-parts"}
        return check

    def again(self, name: str, outcomes: str) -> Callable[..., Check]:
        """Return what makes the check that runs tests once more, alone."""
        return lambda *tests: self.check(name, *self.pytest("", outcomes, *tests, coverage=False))

    def claude(self, markers: str, *words: str, again: bool = False) -> Check:
        """Make the check of tests with the real Claude CLI, where there is no network but loopback."""
        coverage = self.tier.coverage and not again
        name = "claude-again.json" if again else "claude.json"
        inner = self.pytest(markers, name, *words, coverage=coverage)
        # What is measured alongside other tests has a file of its own.
        isolated = [str(self.bin / "python"), "-P", "-m", "garrison.testing.isolation", "--env",
                    f"COVERAGE_FILE={self.scratch}/coverage-claude", "--", *inner]
        return self.check("pytest claude, once more" if again else "pytest claude", *isolated, beside=not again)

    def check_page(self) -> None:
        """Check the page's code, its format, rules and types, where their tools are installed."""
        tools = self.root / "node_modules/.bin/eslint"
        node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout \
            if shutil.which("node") and shutil.which("npm") else ""
        check = self.check("page", "npm", "run", "--silent", "check")
        if tools.exists() and node.startswith("v") and int(node[1:].partition(".")[0]) >= OLDEST_NODE:
            self.run_one(check)
        else:
            print(f"\n== page\nnot checked: it needs Node.js {OLDEST_NODE}, npm, and what package.json names (npm ci)")
            check.code = NOT_THERE

    def coverage(self) -> Check:
        """Make the check that the coverage of all tests together is enough."""
        if found := [str(path) for path in sorted(self.scratch.glob("coverage-*")) if path.is_file()]:
            subprocess.run([str(self.bin / "coverage"), "combine", "--quiet", "--append", *found], cwd=self.root,
                           env=self.environment, check=False)
        return self.check("coverage", str(self.bin / "coverage"), "report")

    def retry(self, check: Check, again: Callable[..., Check]) -> None:
        """Run few failed tests once more, alone: those that pass then are unsteady, and pass if they are listed."""
        failed = self.outcomes(check).get("failed", [])
        if check.code != 1 or not 0 < len(failed) <= MOST_RETRIED:
            return
        if self.run_one(again(*failed)).code == 0:
            self.unsteady += failed
            if all(entry_of(test, self.listed) for test in failed):
                check.code, check.note = 0, "unsteady tests, listed"

    def outcomes(self, check: Check) -> dict[str, list[str]]:
        """Return what a pytest check wrote: its failed tests, and why others were skipped."""
        try:
            path = check.command[check.command.index("--outcomes") + 1]
            found: dict[str, list[str]] = json.loads(Path(path).read_text())
        except (ValueError, OSError):
            return {}
        return found

    def end(self) -> None:
        """End what still runs."""
        running = [check for check in self.checks if check.process is not None and check.process.poll() is None]
        for check in running:
            check.end()
        end = time.monotonic() + GRACE
        for check in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                check.process.wait(max(0.0, end - time.monotonic()))

    def report(self) -> None:
        """Print what was skipped and why, which tests were unsteady, and the table."""
        skipped = Counter(reason for check in self.checks for reason in self.outcomes(check).get("skipped", []))
        if skipped:
            print(f"\nskipped {skipped.total()} tests:")
            for reason, count in skipped.most_common():
                print(f"  {count:4}  {reason}")
        if self.unsteady:
            print("\nunsteady: failed beside the others, passed alone:")
            for test in self.unsteady:
                entry = entry_of(test, self.listed)
                print(f"  {test}  " + (f"(listed since {entry.since}: {entry.reason})" if entry else
                                       f"(not in {UNSTEADY}: repair it, or list it with date and reason)"))
        print()
        for check in self.checks:
            print(f"{check.name:26} {check.seconds:4.0f} s  {check.result}")


def environment(source: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Return the environment of the checks: the caller's without what tests must not see, and a TMPDIR of their own."""
    kept = {name: value for name, value in source.items() if not CALLERS.match(name)}
    folder = scratch / "tmp"
    folder.mkdir(exist_ok=True)
    return {**kept, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}


# ------------------------------------------------------------------------------------- processes: supervise and sweep


class Ended(BaseException):
    """The worker was told to end."""


def scratch_root() -> str:
    """Return the folder for the folders of tests: below the user's cache, for no HOME of a user's lies in `/tmp`, of
    which a sandbox shows nothing; `/tmp` where that cannot be written."""
    try:
        folder = Path.home() / ".cache/garrison-tests"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return tempfile.gettempdir()
    return str(folder) if os.access(folder, os.W_OK) else tempfile.gettempdir()


def supervise(work: Callable[[Path], bool]) -> int:
    """Run `work(scratch)` in a worker process and return the exit code; nothing that it started survives."""
    hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    scratch = Path(tempfile.mkdtemp(prefix="gt-", dir=scratch_root()))
    _prctl(_SET_CHILD_SUBREAPER, 1)
    supervisor = os.getpid()
    worker = os.fork()
    if worker == 0:
        _work(work, scratch, supervisor)
    for number in (signal.SIGTERM, signal.SIGINT, *([] if hangup_ignored else [signal.SIGHUP])):
        signal.signal(number, lambda number, _: os.kill(worker, signal.SIGTERM))
    status = None
    while status is None:
        pid, found = os.waitpid(-1, 0)  # orphans too: a process that tests look for must not stay as a zombie
        status = found if pid == worker else None
    code = os.waitstatus_to_exitcode(status)
    left = sweep(scratch, patience=GRACE if code in (0, 1) else 0.0)
    if left and code in (0, 1):
        print("\nleft behind by the tests, and killed:", *left, sep="\n  ")
        code = 1
    if code == 1 and any(scratch.glob("main*")):
        print(f"the tests' files are kept in {scratch}")
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _work(work: Callable[[Path], bool], scratch: Path, supervisor: int) -> NoReturn:
    """Be the worker: in a session of its own, with default signals, ended when the supervisor ends."""
    code = 70
    try:
        os.setsid()
        reset_signals()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _raise_ended)
        _prctl(_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == supervisor:
            code = 0 if work(scratch) else 1
    except Ended as ended:
        code = 128 + int(ended.args[0])
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        if os.getppid() != supervisor:
            sweep(scratch, patience=0.0)
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(code)


def _raise_ended(number: int, _: object) -> None:
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)  # once is enough: what follows ends within GRACE
    raise Ended(number)


def reset_signals() -> None:
    """Undo what the caller ignores and blocks."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def sweep(scratch: Path, patience: float) -> list[str]:
    """Kill what this process's children and the tests have left running; returns what it was.

    For `patience` seconds they may end by themselves.
    """
    left: dict[int, str] = {}
    began = time.monotonic()
    while True:
        _reap()
        found = dict(leftovers(scratch))
        if not found or time.monotonic() > began + patience + GRACE:
            return list(left.values())
        if time.monotonic() > began + patience:
            left |= found
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def leftovers(scratch: Path) -> Iterator[tuple[int, str]]:
    """Find living processes below this one, and those whose command line or environment names `scratch`."""
    parents = {int(path.name): parent for path in Path("/proc").glob("[0-9]*")
               if (parent := _living_parent(path)) is not None}
    above, pid = set(), os.getpid()
    while pid and pid not in above:
        above.add(pid)
        pid = parents.get(pid, 0)
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    for pid in parents.keys() - above:
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes()
            named = os.fsencode(scratch) in argv + Path(f"/proc/{pid}/environ").read_bytes()
            if pid in below or named:
                yield pid, f"{pid} {argv.decode(errors='replace').replace(chr(0), ' ').strip()[:200]}"


def _living_parent(path: Path) -> int | None:
    """Return the parent of a process; None if it is gone or a zombie."""
    try:
        state, parent = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(parent)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


# ------------------------------------------------------------------------------------------------------ the program


def main() -> int:
    """Run the tier that the command line names."""
    parser = argparse.ArgumentParser(
        prog="scripts/test", description="Run the checks of a tier, or pytest with ARGUMENTs.", allow_abbrev=False,
        epilog="Without an option: ruff, import-linter, mypy, and the unit, contract and smoke tests.")
    parser.add_argument("--full", action="store_true", help="all tests but the slow ones, with coverage")
    parser.add_argument("--all", action="store_true", help="the slow tests too")
    parser.add_argument("--install-system", action="store_true", help="install missing system packages with sudo")
    options, arguments = parser.parse_known_args()
    tier = ALL if options.all else FULL if options.full or arguments else FAST
    path = ROOT / UNSTEADY
    try:
        listed = read_unsteady(path.read_text() if path.exists() else "", date.today())
    except ValueError as error:
        print(f"scripts/test: {UNSTEADY}:\n{error}")
        return 1
    code = supervise(lambda scratch: Suite(ROOT, scratch, tier, arguments, listed).run())
    print("scripts/test: " + {0: "all checks passed", 1: "failed"}.get(code, f"ended ({code})"))
    return code


if __name__ == "__main__":
    sys.exit(main())
