"""Measure every figure that the README and the pages in docs quote, in one quiet run, together with the peers.

    benchmarks/all [--quick] [--write] [--loaded] [--only NAMES] [--fetch] [--no-fetch] [--from DIR] [--json]

First the peers are fetched into `--state` (default build/figures), where they stay for the next call; one that cannot
be had is left out, with the reason. Then the machine must be quiet: a load average below 0.5, for which it waits a few
minutes; else it refuses, unless `--loaded` says that the figures may be inflated. The programs run one after another,
the README's first; what the time (30 minutes, `--quick` 8) does not allow is left out and named. Each program's rows
are kept as JSON beside the peers. At the end the tables of the pages are printed; `--write` puts them into the pages,
where a line of which a figure was not measured stays as it was. `--quick` measures the README's figures alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import merge_peers
import peers
from engine import PEERS as ENGINES
from figures import BLOCKS, ROOT, Block, replaced

QUIET = 0.5
"""Load average up to which a machine counts as quiet."""
FOREIGN = 0.25
"""Cores that others may use between two programs without being named."""
INSTALL_SECONDS = 300


@dataclass(frozen=True)
class Program:
    """Benchmark: its options in a full run, time limit in seconds, and whether it prints JSON."""

    name: str
    words: tuple[str, ...]
    seconds: float
    quick: tuple[str, ...] | None = None
    """Options in a quick run; None: it is not part of one."""
    has_json: bool = True


PROGRAMS = (
    Program("supervision", ("--rows", "mechanism,felt,crew", "--rounds", "10"), 540,
            ("--rows", "mechanism", "--rounds", "5")),
    Program("merge_queue", (), 960, ("--rows", "landing,drain", "--rates", "0.01")),
    Program("waits", ("--rows", "script,first,memory,turn,status,node,growth,kill,git,setup"), 300,
            ("--rows", "first", "--rounds", "7")),
    Program("engine", ("--rounds", "3"), 240, ("--rows", "durable", "--rounds", "1")),
    Program("workflows", ("--rounds", "1"), 150),
    Program("web", ("--idle", "20", "--events", "300", "--clients", "100", "--half-open", "100"), 180),
    Program("claude", ("3", "--idle", "10", "--most", "60"), 120, has_json=False),
    Program("proxy", ("--calls", "200", "--mebibytes", "256"), 90, has_json=False),
    Program("agents", ("--rounds", "1"), 240),
)
"""In the order in which they run; the README's first."""


@dataclass
class Session:
    """One call."""

    options: argparse.Namespace
    state: Path
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What was left out, or disturbed, and why."""
    texts: list[tuple[str, str]] = field(default_factory=list)
    """Output of the programs that print no JSON."""

    def note(self, text: str) -> None:
        """Report a note for readers of the figures."""
        self.notes.append(text)
        self.say(text)

    def say(self, text: str) -> None:
        """Report the progress."""
        print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------------------- peers


def fetch(session: Session) -> None:
    """Fetch the missing peers; report unavailable ones."""
    tools = peers.Tools(session.state / "tools", not session.options.no_fetch)
    session.say("fetching the peers that are not there yet")
    for program in ("runsv", "s6-supervise", "monit", "pm2", "supervisord", "circusd"):
        with _left_out(session, program):
            tools.find(program)
    with _left_out(session, "agcoord"):
        merge_peers.Agcoord(session.state, fetch=not session.options.no_fetch)
    for engine, packages in ENGINES.items():
        with _left_out(session, engine):
            _install(session, engine, packages)


@contextlib.contextmanager
def _left_out(session: Session, name: str) -> Iterator[None]:
    try:
        yield
    except (peers.Missing, merge_peers.Missing) as error:
        session.note(f"left out: {name}: {error}")


def _install(session: Session, engine: str, packages: tuple[str, ...]) -> None:
    """Install an engine into the environment of the engines; Missing with the reason."""
    venv = session.state / "engines"
    stamp = venv / f"has-{engine}"
    if stamp.exists():
        return
    if session.options.no_fetch:
        raise peers.Missing("fetching is off (--no-fetch)")
    python = venv / "bin/python"
    steps = [[str(python), "-m", "pip", "install", "-q", *packages]]
    if not python.exists():
        steps.insert(0, [sys.executable, "-m", "venv", str(venv)])
    for words in steps:
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise peers.Missing(f"not installed within {INSTALL_SECONDS} s") from error
        if done.returncode:
            raise peers.Missing((done.stderr.strip() or "no reason given").splitlines()[-1][:120])
    stamp.touch()


def found_engines(session: Session) -> list[str]:
    """Return the options for the environment of the engines, if it contains any."""
    venv = session.state / "engines"
    has_any = any((venv / f"has-{engine}").exists() for engine in ENGINES)
    return ["--peers", str(venv / "bin/python")] if has_any else ["--no-fetch"]


def more_words(session: Session, program: str) -> list[str]:
    """Return the options that give a program its peers."""
    if program == "supervision":
        return ["--tools", str(session.state / "tools"), "--no-fetch"]
    if program in ("engine", "workflows"):
        return found_engines(session)
    return ["--no-fetch"] if program == "merge_queue" else []


# -------------------------------------------------------------------------------------------------------- machine


def wait_until_quiet(session: Session) -> bool:
    """Wait for a load average below QUIET; return whether the machine is quiet, or need not be."""
    until = time.monotonic() + session.options.wait * 60
    while (load := os.getloadavg()[0]) >= QUIET:
        if session.options.loaded:
            session.note(f"the machine was not quiet: load {load:.1f}")
            return True
        if time.monotonic() > until:
            return False
        session.say(f"load {load:.2f}: waiting until it is below {QUIET}")
        time.sleep(10)
    return True


def busy_cores(seconds: float = 2.0) -> float:
    """Return how many cores were busy on the average of some seconds in which this process sleeps."""
    def used() -> float:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        return (sum(map(int, words[:3])) + sum(map(int, words[5:8]))) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds


def machine() -> str:
    """Return the sentence about where and when the figures were measured."""
    kernel = ".".join(platform.release().split(".")[:2])
    done = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    at = f", commit {done.stdout.strip()}" if done.returncode == 0 else ""
    return (f"Measured by `benchmarks/all` on {os.cpu_count()} cores under Linux {kernel}, load "
            f"{os.getloadavg()[0]:.1f} at the start{at}.")


# ------------------------------------------------------------------------------------------------------- programs


def measure(session: Session, programs: list[Program]) -> None:
    """Run the programs one after another while there is time."""
    until = time.monotonic() + session.options.minutes * 60
    env = {**os.environ, "PATH": f"{session.state / 'agcoord/only'}:{os.environ.get('PATH', os.defpath)}"}
    _offer_agcoord(session)
    for program in programs:
        rest = until - time.monotonic()
        if rest < 20:
            session.note(f"left out: {program.name}: no time is left")
            continue
        if (busy := busy_cores()) > FOREIGN and not session.options.loaded:
            session.note(f"before {program.name} others used {busy:.1f} cores")
        began = time.monotonic()
        session.say(f"{program.name}: at most {min(rest, program.seconds):.0f} s")
        error = _run(session, program, min(rest, program.seconds), env)
        session.say(f"{program.name}: {time.monotonic() - began:.0f} s")
        if error:
            session.note(f"left out: {program.name}: {error}")


def _offer_agcoord(session: Session) -> None:
    """Put agcoord's command alone on the PATH, where `merge_queue.py` looks for it."""
    program = session.state / "agcoord/bin/agc"
    if program.exists():
        folder = session.state / "agcoord/only"
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (folder / "agc").symlink_to(program)


def _run(session: Session, program: Program, seconds: float, env: dict[str, str]) -> str:
    """Run one program; return why its rows are missing, '' if they exist."""
    words = program.quick if session.options.quick and program.quick is not None else program.words
    argv = [sys.executable, str(ROOT / "benchmarks" / f"{program.name}.py"), *words,
            *(["--json"] if program.has_json else []), *more_words(session, program.name)]
    with (session.state / f"{program.name}.err").open("w") as errors:
        child = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                 text=True, start_new_session=True)
        try:
            output = child.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            _end(child)
            return f"not done within {seconds:.0f} s"
        except KeyboardInterrupt:
            _end(child)
            raise
    if child.returncode:
        lines = (session.state / f"{program.name}.err").read_text(errors="replace").strip().splitlines()
        return f"it ended with {child.returncode}: {(lines or ['no reason given'])[-1][:160]}"
    if not program.has_json:
        session.texts.append((program.name, output))
        (session.state / f"{program.name}.txt").write_text(output)
        return ""
    try:
        session.rows[program.name] = json.loads(output)["rows"]
    except (ValueError, KeyError):
        return "it printed no JSON"
    (session.state / f"{program.name}.json").write_text(output)
    return ""


def _end(child: subprocess.Popen[str]) -> None:
    """End a program gracefully, so that it ends its processes; then its whole session."""
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(60)
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def load(session: Session, folder: Path) -> None:
    """Read the results of an earlier call."""
    for program in PROGRAMS:
        with contextlib.suppress(FileNotFoundError):
            session.rows[program.name] = json.loads((folder / f"{program.name}.json").read_text())["rows"]


# ---------------------------------------------------------------------------------------------------------- pages


def publish(session: Session, blocks: tuple[Block, ...], where: str) -> None:
    """Print the tables of the pages, and write them into the pages on request."""
    for block in blocks:
        page = ROOT / block.page
        made: list[tuple[str, list[str]]] = []

        def inner(old: str, block: Block = block, made: list[tuple[str, list[str]]] = made) -> str:
            made.append(block.render(session.rows, where, old))
            return made[-1][0]

        text = replaced(page.read_text(), block.name, inner)
        rendered, kept = made[0]
        if not session.options.json:
            print(f"\n{block.page}\n{rendered}", flush=True)
        if kept:
            session.note(f"{block.page}: not measured, stays as it was: {'; '.join(kept)}")
        if session.options.write and len(kept) < len(block.lines):
            page.write_text(text)
            session.say(f"written: {block.page}")


def report(session: Session) -> None:
    """Print every row of every program, and the notes."""
    if session.options.json:
        print(json.dumps({"rows": session.rows, "notes": session.notes}, ensure_ascii=False, indent=1))
        return
    for name, rows in session.rows.items():
        print(f"\n{name}")
        for row in rows:
            print(f"  {row['row']:10} {row['what']:62} {re.sub(' +', ' ', row['value'].strip())}")
    for name, text in session.texts:
        print(f"\n{name}\n" + "\n".join(f"  {line}" for line in text.splitlines()))
    print("\n".join(["", *session.notes]), flush=True)


# ----------------------------------------------------------------------------------------------------------- main


def arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="benchmarks/all", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the README's figures alone, in at most 8 minutes")
    parser.add_argument("--write", action="store_true", help="put the figures into the pages")
    parser.add_argument("--loaded", action="store_true", help="measure although the machine is not quiet")
    parser.add_argument("--wait", type=float, default=5.0, metavar="MINUTES",
                        help="wait so long for a quiet machine (5)")
    parser.add_argument("--minutes", type=float, help="begin and go on for so long (30; quick 8)")
    parser.add_argument("--only", metavar="NAMES", help=f"these of {','.join(one.name for one in PROGRAMS)}")
    parser.add_argument("--fetch", action="store_true", help="fetch the peers, measure nothing")
    parser.add_argument("--no-fetch", action="store_true", help="only peers that are there already")
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR",
                        help="measure nothing, use the JSON that an earlier call kept there")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "figures", metavar="DIR",
                        help="where peers and results are kept (build/figures)")
    parser.add_argument("--json", action="store_true", help="all rows as one JSON object instead of tables")
    chosen = parser.parse_args()
    if unknown := set((chosen.only or PROGRAMS[0].name).split(",")) - {one.name for one in PROGRAMS}:
        parser.error(f"no such program: {', '.join(sorted(unknown))}; there are "
                     f"{', '.join(one.name for one in PROGRAMS)}")
    chosen.minutes = chosen.minutes or (8.0 if chosen.quick else 30.0)
    return chosen


def main() -> int:
    """Fetch, wait, measure, print; return 1 if the machine is not quiet."""
    options = arguments()
    session = Session(options, options.state.resolve())
    session.state.mkdir(parents=True, exist_ok=True)
    if options.folder is not None:
        load(session, options.folder)
    else:
        fetch(session)
        if options.fetch:
            return 0
        if not wait_until_quiet(session):
            print(f"benchmarks/all: the machine is not quiet (load {os.getloadavg()[0]:.1f}, wanted below {QUIET}): "
                  "end what else runs, or pass --loaded and say so with the figures", file=sys.stderr)
            return 1
    where = machine()
    if options.folder is None:
        wanted = options.only.split(",") if options.only else [
            one.name for one in PROGRAMS if not options.quick or one.quick is not None]
        for name in wanted:
            for old in session.state.glob(f"{name}.[jt]*"):
                old.unlink()
        measure(session, [one for one in PROGRAMS if one.name in wanted])
    publish(session, BLOCKS[:1] if options.quick else BLOCKS, where)
    report(session)
    return 0


if __name__ == "__main__":
    shutil.which("git") or sys.exit("benchmarks/all: git is missing")
    sys.exit(main())
