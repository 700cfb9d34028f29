"""Whole proof run: `python -m tests.proof [--only TEXT] [--jobs N] [--seeds N] [--write]`.

Every planted bug is found by one proof: those of `mutations.py` of the simulator by a seed, those of
`proof_cells.toml` and `trouble.py` by a test. Each worker has a scratch copy of the source and a warm process, from
which every proof is forked. A seed's bug is planted in what the process imports, and the seed that found it before
(its `found.toml`) is played first; a test's is planted in the copy. Exit code 1 if one is not found that is not
listed as such, or if a seed breaks a rule without any bug: then none of it proves anything.

`--write` records who found what: in `found.toml`, in the cells and on the page.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.planting import Misplanted, Planting, changed, plant_all
from tests.proof_table import PAGE, Cell, insert, note_red, read_cells, render
from tests.simulator.mutations import MUTATIONS, SHELLS
from tests.trouble import PLANTED

ROOT = Path(__file__).resolve().parents[1]
FOUND = ROOT / "tests/simulator/found.toml"
BEGIN = "<!-- planted bugs: python -m tests.proof --write -->"
END = "<!-- end of the planted bugs -->"
NOBODY = "nobody"
"""Stands for the seed of a bug that is known as not found."""
FLOWS_EVERY = 4
"""Seeds of plain graphs for each one of a graph with flows."""
LIMIT, LONGEST_HUNT = 240.0, 900.0
"""Seconds for one test, and for all seeds of a bug, on a loaded machine."""
PATIENCE = 30.0
"""Seconds that a test waits for what the bug may keep from happening: twice the longest wait of a sound one."""
WARM = ("_pytest.assertion.rewrite", "_pytest.pytester", "click", "coverage", "hypothesis.strategies", "msgspec",
        "multiprocessing.connection", "pytest", "pytest_cov.plugin", "pytest_timeout", "xdist.plugin")
"""What each proof would load again: libraries, and nothing of ours."""


@dataclass(frozen=True)
class Proof:
    """One planted bug and who finds it: the test, or a seed of the simulator."""

    name: str
    what: str
    plantings: tuple[Planting, ...]
    test: str = ""


@dataclass(frozen=True)
class Verdict:
    """What became of a bug: who found it ('' no one), what was said, its processor time and duration in seconds."""

    by: str
    why: str
    cpu: float = 0.0
    seconds: float = 0.0


def name_cell(cell: Cell) -> str:
    return f"{cell.fault} × {cell.component}: {cell.function.removeprefix('test_')}"


def proofs() -> list[Proof]:
    """Return all, those that take longest first: whole runs, other tests, seeds."""
    cells = [Proof(name_cell(cell), cell.defect, cell.bugs, cell.test)
             for cell in read_cells() if cell.bugs and not cell.mutation]
    seeds = [Proof(bug.name, bug.what, bug.plantings) for bug in MUTATIONS]
    stories = [Proof(bug.name, bug.what, bug.plantings, "tests/integration/test_trouble.py") for bug in PLANTED]
    known = read_found()
    return sorted([*cells, *stories, *seeds], key=lambda one: (known.get(one.name) != NOBODY, "/e2e/" not in one.test,
                                                     not one.test))


def read_found(path: Path = FOUND) -> dict[str, str]:
    """Return which seed found which bug: its number, with `f` if its graphs branch and loop."""
    return dict(tomllib.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


# ---- one proof, in a process forked from a worker --------------------------------------------------------------------


class _Planted(importlib.machinery.SourceFileLoader):
    """Loads a module with its bug."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self.tree = tree

    def get_code(self, fullname: str) -> object:
        return compile(ast.fix_missing_locations(self.tree), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as ever, with bugs in some."""

    def __init__(self, plantings: Sequence[Planting]) -> None:
        self.trees = {str(ROOT / name): tree for name, tree in changed(plantings, ROOT).items()}

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.origin in self.trees:
            spec.loader = _Planted(name, spec.origin, self.trees[spec.origin])
        return spec


def play(plantings: Sequence[Planting], first: Sequence[str], count: int, skipped: Container[str] = (),
         ) -> tuple[str, str]:
    """Return the first seed that breaks a rule, and which; the `first` are played before all below `count`."""
    sys.meta_path.insert(0, _Finder(plantings))
    from tests.simulator.simulation import Failed, simulate

    import garrison

    assert str(garrison.__file__).startswith(str(ROOT)), garrison.__file__
    rest = (f"{seed}{flows}" for seed in range(count) for flows in (("", "f") if seed % FLOWS_EVERY == 0 else ("",)))
    for seed in dict.fromkeys([*first, *rest]):
        try:
            if seed not in skipped:
                simulate(int(seed.rstrip("f")), flows=seed.endswith("f"))
        except Failed as error:
            return seed, error.why
    return "", f"{count} seeds"


def hunt(proof: Proof, count: int) -> Verdict:
    """Return which seed finds a bug; one that breaks a rule without it proves nothing."""
    known, broken = read_found().get(proof.name, NOBODY), set[str]()
    while True:
        verdict = fork(partial(play, proof.plantings, [known] if known != NOBODY else [], count, broken))
        if verdict.by in ("", known) or not fork(partial(play, (), [verdict.by], 0)).by:
            return verdict
        broken.add(verdict.by)


def run_test(test: str) -> tuple[str, str]:
    """Return the test if it fails, and the last line of its output, which stands on the descriptor 1."""
    import pytest

    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--timeout", str(LIMIT / 2), test])
    sys.stdout.flush()
    printed = os.pread(1, 1 << 22, 0).decode(errors="replace").splitlines()
    said = next((line for line in reversed(printed) if line.strip()), "")
    return (test if code == 1 and " failed" in said else ""), f"exit {int(code)}: {said}"


def fork(act: Callable[[], tuple[str, str]], limit: float = LONGEST_HUNT) -> Verdict:
    """Return what a function says in a process of its own, ended after `limit` seconds."""
    began, (there, here) = time.monotonic(), os.pipe()
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            end_with_parent()
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            try:
                said = act()
            except BaseException as error:
                said = "", f"{type(error).__name__}: {error}"
            os.write(here, json.dumps(said).encode())
            os._exit(0)
        os.close(here)
        answers = select.select([there], [], [], limit)[0]
        text = os.read(there, 1 << 20).decode() if answers else ""
        os.close(there)
        if not answers:
            os.killpg(pid, signal.SIGKILL)
        _, _, used = os.wait4(pid, 0)
    by, why = json.loads(text) if text else ("", "it did not end" if not answers else "it died")
    return Verdict(by, why, used.ru_utime + used.ru_stime, time.monotonic() - began)


def end_with_parent() -> None:
    """Let this process be killed once its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def prove(proof: Proof, count: int) -> Verdict:
    """Return what finds a bug; a test's is in the files of this copy for that time."""
    if not proof.test:
        return hunt(proof, count)
    before: dict[Path, str] = {}
    try:
        before = plant_all(proof.plantings, ROOT)
        return fork(lambda: run_test(proof.test), LIMIT)
    except Misplanted as error:
        return Verdict("", str(error))
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")


def serve() -> None:
    """Be a worker: answer each line, the name of a proof and a number of seeds, by a line."""
    end_with_parent()
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    known = {proof.name: proof for proof in proofs()}
    sound = dict.fromkeys(seed for seed in read_found().values() if seed != NOBODY)
    for line in sys.stdin:
        name, count = json.loads(line)
        verdict = prove(known[name], count) if name else fork(partial(play, (), () if count else tuple(sound), count))
        print(json.dumps([verdict.by, verdict.why, verdict.cpu, verdict.seconds]), flush=True)


# ---- all proofs ------------------------------------------------------------------------------------------------------


def copy_tree(target: Path) -> Path:
    """Copy what tests need, with an environment that imports garrison from the copy; return its Python."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    ours = ROOT / ".venv"
    (target / ".venv/bin").mkdir(parents=True)
    shutil.copy2(ours / "pyvenv.cfg", target / ".venv/pyvenv.cfg")
    for program in (ours / "bin").iterdir():
        (target / ".venv/bin" / program.name).symlink_to(program.readlink() if program.is_symlink() else program)
    packages = next((ours / "lib").glob("python3*/site-packages"))
    inside = target / ".venv/lib" / packages.parent.name / "site-packages"
    inside.mkdir(parents=True)
    for entry in packages.iterdir():
        if entry.name != "_garrison.pth":
            (inside / entry.name).symlink_to(entry)
    (inside / "_garrison.pth").write_text(f"{target / 'src'}\n")
    return target / ".venv/bin/python"


@contextlib.contextmanager
def serve_from(root: Path, python: Path | str) -> Iterator[Callable[[str, int], Verdict]]:
    """Yield a function that asks a worker in `root` about a bug and so many seeds; without a name, about the source
    as it is and the seeds on record."""
    path = f"{Path(python).parent}:{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    process = subprocess.Popen([str(python), "-m", "tests.proof", "--serve"], cwd=root, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env={**kept, "PATH": path, "GARRISON_TEST_DEADLINE": f"{PATIENCE:g}"})
    assert process.stdin is not None and process.stdout is not None
    asked, told = process.stdin, process.stdout

    def ask(name: str, count: int) -> Verdict:
        asked.write(json.dumps([name, count]) + "\n")
        asked.flush()
        return Verdict(*json.loads(told.readline()))

    try:
        yield ask
    finally:
        asked.close()
        process.wait()


def prove_all(chosen: Sequence[Proof], count: int, jobs: int) -> Iterator[tuple[Proof | None, Verdict]]:
    """Yield each proof with its verdict as it ends; None stands for the seeds without a bug."""
    waiting: queue.SimpleQueue[Proof | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Proof | None, Verdict]] = queue.SimpleQueue()
    for proof in (*chosen, None):
        waiting.put(proof)

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="proof-") as folder, contextlib.suppress(queue.Empty):
            root = Path(folder).resolve() / "copy"
            with serve_from(root, copy_tree(root)) as ask:
                while True:
                    proof = waiting.get_nowait()
                    done.put((proof, ask(proof.name, count) if proof else ask("", 0)))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for _ in range(len(chosen) + 1):
        yield done.get()
    for thread in threads:
        thread.join()


def write(verdicts: dict[str, Verdict], summary: str) -> None:
    """Record who found what in `found.toml`, in the cells and on the page."""
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.strip()
    found = {**read_found(), **{bug.name: verdicts[bug.name].by or NOBODY for bug in MUTATIONS if bug.name in verdicts}}
    lines = [f'{bug.name} = "{found[bug.name]}"' for bug in MUTATIONS if bug.name in found]
    FOUND.write_text("\n".join(["# Which seed found which bug, written by `python -m tests.proof --write`; `f`: its "
                                "graphs branch and loop.", "", *lines, ""]), encoding="utf-8")
    for cell in read_cells():
        if (verdict := verdicts.get(cell.mutation or name_cell(cell))) is not None:
            note_red(cell, commit if verdict.by else "")
    page = insert(PAGE.read_text(encoding="utf-8"), render(read_cells()))
    if len(verdicts) == len(proofs()):
        lost = [bug for bug in proofs() if not verdicts[bug.name].by]
        lines = [f"`python -m tests.proof` at `{commit}`: **{summary}**. {sum(bug in SHELLS for bug in MUTATIONS)} of "
                 "them stand in the simulator's own processes, and show only that a wrong order of effects is found."]
        lines += ["", "Not found:", "", *(f"- `{bug.name}`: {bug.what}" for bug in lost)] if lost else []
        page = insert(page, "\n".join(lines), BEGIN, END)
    PAGE.write_text(page, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proofs; return 1 if a bug is not found that was found before."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--seeds", type=int, default=400, help="seeds to try for each bug of the simulator (400)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="workers (as many as there are cores)")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT",
                        help="bugs whose name or test has TEXT (repeatable)")
    parser.add_argument("--write", action="store_true", help="record who found what, in the files and on the page")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return 0
    chosen = [proof for proof in proofs()
              if not options.only or any(text in f"{proof.name} {proof.test}" for text in options.only)]
    known, began, cpu, failed = read_found(), time.monotonic(), 0.0, False
    verdicts: dict[str, Verdict] = {}
    for proof, verdict in prove_all(chosen, options.seeds, min(options.jobs, len(chosen) + 1)):
        cpu += verdict.cpu
        if proof is None:
            if verdict.by or verdict.why != "0 seeds":
                print(f"without any bug: {verdict.by} {verdict.why}; so what is found proves nothing", file=sys.stderr)
                failed = True
            continue
        verdicts[proof.name] = verdict
        failed |= not verdict.by and known.get(proof.name) != NOBODY
        line = (verdict.why.splitlines() or [""])[0][:110]
        how = "NOT FOUND" if not verdict.by else "test" if proof.test else f"seed {verdict.by}"
        print(f"{how:10} {verdict.cpu:6.1f} {verdict.seconds:6.1f} s  {proof.name}: {line}", flush=True)
    found = sum(bool(verdict.by) for verdict in verdicts.values())
    summary = f"{found} of {len(verdicts)} planted bugs found"
    print(f"{summary}; {time.monotonic() - began:.0f} s, {cpu:.0f} s of processor time")
    if options.write:
        write(verdicts, f"{summary} ({found / max(1, len(verdicts)):.1%})")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
