"""Engine of the storms: seeds and command line, a folder for each trial, what was wrong with it, and the exit code; and
the signals that befall the processes of a home.

A storm is a module about one world. It gives `play_all` what makes the trial of a seed in a folder; the trial does and
judges what follows from its seed. The instants are never the same twice.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from support import Place, Process

SIGNALS = (*[signal.SIGKILL] * 8, *[signal.SIGSTOP] * 3, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGSEGV,
           signal.SIGABRT, signal.SIGPIPE)
TIMING = {"GARRISON_BEAT_TIMEOUT": "4", "GARRISON_RESTART_WINDOW": "3", "GARRISON_HEALTHY_AFTER": "1",
          "GARRISON_RESCAN": "0.5", "GARRISON_PROBE_AFTER": "2", "GARRISON_SPAWN_DEADLINE": "20"}
"""Short times, so that a minute of storm shows what hours would."""
MOST_TOLD = 20
"""Lines that are printed of what was wrong with one trial."""


class Trial(Protocol):
    """What a seed does to a world."""

    did: Counter[str]
    """What was done → how often."""

    def play(self) -> list[str]:
        """Do it; return what is wrong at its end."""


def parse_seeds(text: str) -> Iterable[int]:
    """Return the seeds of `N`, of `A..B`, or of `A..`, which has no end; ValueError otherwise."""
    first, dots, last = text.partition("..")
    return range(int(first), int(last or first) + 1) if last or not dots else itertools.count(int(first))


def make_parser(prog: str, about: str | None, seeds: str = "1", minutes: float | None = None,
                ) -> argparse.ArgumentParser:
    """Return a parser with the options of every storm; `minutes`: the default of one that may continue for long."""
    parser = argparse.ArgumentParser(prog=prog, description=(about or "").partition("\n")[0])
    parser.add_argument("--seeds", "--seed", type=parse_seeds, default=seeds, metavar="N|A..B|A..",
                        help=f"which trials to play ({seeds})")
    if minutes is not None:
        parser.add_argument("--minutes", type=float, default=minutes,
                            help=f"begin no trial after that time ({minutes:g})")
    parser.add_argument("--keep", action="store_true", help="keep the folder even of a trial that went well")
    return parser


def play_all(again: str, seeds: Iterable[int], begin: Callable[[int, Path], Trial], *, keep: bool = False,
             enough: Callable[[Counter[str]], bool] = lambda _: False, minutes: float = math.inf, jobs: int = 1) -> int:
    """Play the trial of each seed until `enough` has been done or the time is over, print how each went and how to play
    it `again`; return 1 if anything was wrong. The folder of a trial with which something was wrong stays."""
    began, total, played, failed = time.monotonic(), Counter[str](), list[int](), list[int]()

    def is_over() -> bool:
        return enough(total) or time.monotonic() > began + 60 * minutes

    def play(seed: int) -> None:
        folder, begun = Path(tempfile.mkdtemp(prefix=f"garrison-storm-{seed}-")), time.monotonic()
        trial = begin(seed, folder)
        try:
            wrong = trial.play()
        except AssertionError as error:
            wrong = [str(error) or "an assertion failed"]
        except Exception:
            wrong = [traceback.format_exc(limit=3)]
        print(f"seed {seed}: {tell(trial.did)}; {time.monotonic() - begun:.0f} s; {len(wrong)} wrong", flush=True)
        played.append(seed)
        total.update(trial.did)
        if wrong:
            failed.append(seed)
            print("\n".join(wrong[:MOST_TOLD]))
        if wrong or keep:
            print(f"kept: {folder}; again: {again} --seed {seed}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)

    if jobs == 1:
        for seed in itertools.takewhile(lambda _: not is_over(), seeds):
            play(seed)
    else:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(play, seeds))
    print(f"{len(played) - len(failed)} of {len(played)} went well in {time.monotonic() - began:.0f} s"
          + (f"; not: {sorted(failed)}" if failed else "") + f"; {tell(total)}")
    return 1 if failed else 0


def tell(did: Counter[str]) -> str:
    """Return in one line what was done."""
    return ", ".join(f"{count} {what}" for what, count in sorted(did.items())) or "nothing was done"


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Weather:
    """Random signals to the processes of a home's runs; each has a line in the log."""

    def __init__(self, place: Place, dice: random.Random, *, forgotten: float = 0.5) -> None:
        self.place, self.dice, self.forgotten = place, dice, forgotten
        self.did: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.stopped: dict[int, tuple[int, float]] = {}
        """pid → its start ticks, and when it is continued; as many as are `forgotten` stay stopped."""
        self.log = (place.root / "storm.log").open("a", buffering=1)

    def note(self, text: str) -> None:
        """Add a line to the log."""
        self.log.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}\n")

    def victims(self) -> list[Process]:
        """Return the processes of the home's runs, without ours that only watch."""
        return [one for one in self.place.living_processes() if ":" in one.environ.get("GARRISON_LIFE", "")
                or " tmux " in f" {one.argv} "]

    def strike(self) -> None:
        """Send one signal to one process."""
        if not (victims := self.victims()):
            return
        victim, number = self.dice.choice(victims), self.dice.choice(SIGNALS)
        self.note(f"{number.name} {victim.pid} {victim.environ.get('GARRISON_LIFE', '').rpartition(':')[2]} "
                  f"{victim.argv[-90:]}")
        self.did[number.name] += 1
        send(victim.pid, number)
        if number == signal.SIGSTOP and self.dice.random() >= self.forgotten:
            self.stopped[victim.pid] = (victim.ticks, time.monotonic() + self.dice.uniform(0.2, 8.0))

    def let_go(self, *, at_once: bool = False) -> None:
        """Continue what was stopped for a while only."""
        due = {pid: ticks for pid, (ticks, at) in self.stopped.items() if at_once or time.monotonic() > at}
        for one in self.place.living_processes() if due else ():
            if due.get(one.pid) == one.ticks:
                send(one.pid, signal.SIGCONT)
        self.stopped = {pid: when for pid, when in self.stopped.items() if pid not in due}
