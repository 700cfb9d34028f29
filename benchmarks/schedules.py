"""What schedules cost between due times.

    python benchmarks/schedules.py

Fifty schedules of a home, none of them due: CPU of one call of what `garrison up` does for them, against reading their
files alone. Without a call nothing of them runs at all. Then one that is due: how long after `garrison up` is called
its start is recorded, and its run begun. Cron calls it once a minute, so that is added to at most 60 s.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from garrison.schedules.policy import Schedule, ScheduledStart, Stage
from garrison.schedules.starts import Schedules, tick

COUNT, ROUNDS = 50, 20


def cpu(call: object) -> float:
    """Return the median CPU milliseconds of a call."""
    times = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        call()  # type: ignore[operator]
        times.append(1000 * (time.process_time() - begun))
    return statistics.median(times)


def begin(folder: str) -> tuple[float, float]:
    """Return the seconds from a call until the start of a due schedule is recorded, and until its run has begun."""
    repo, home = f"{folder}/repo", Path(folder, "begun")
    subprocess.run(["git", "init", "-q", repo], check=True)
    subprocess.run(["git", "-C", repo, "-c", "user.name=b", "-c", "user.email=b@b", "commit", "-q", "--allow-empty",
                    "-m", "Begin"], check=True)
    words = ["run", "Make a file", "--command=date > made.txt", "--no-gate", "--terminal=process"]
    schedules, begun = Schedules(home), time.time()
    schedules.add(Schedule("due", "* * * * *", words, repo, begun - 65))
    program = [sys.executable, "-P", "-m", "garrison", "--home", str(home)]
    subprocess.run([*program, "up"], check=True, capture_output=True)
    subprocess.run([*program, "schedule", "pause", "due"], check=True, capture_output=True)
    recorded = min(start.at for start in schedules.starts("due")) - begun
    while not (launched := list(home.glob("runs/*/launch.json"))) and time.time() < begun + 60:
        time.sleep(0.01)
    started = launched[0].stat().st_mtime - begun
    while not all(start.is_over for start in schedules.starts("due")) and time.time() < begun + 90:
        subprocess.run([*program, "up"], check=True, capture_output=True)
    assert json.loads(subprocess.run([*program, "status", "--json"], check=True, capture_output=True).stdout)
    return recorded, started


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        schedules, now = Schedules(Path(folder)), time.time()
        for number in range(COUNT):
            schedules.add(Schedule(f"s{number}", "0 3 1 1 *", ["run", "x"], folder, now))
            for day in range(20):
                schedules.write_start(f"s{number}", ScheduledStart(now - 86_400 * (day + 1), Stage.SKIPPED, now))
        files = list(Path(folder).rglob("schedule.json"))
        whole, reading = cpu(lambda: tick(Path(folder))), cpu(lambda: [path.read_bytes() for path in files])
        print(f"{COUNT} schedules with 20 starts each, none due: {whole:.1f} ms of CPU a call (reading their "
              f"{len(files)} files alone: {reading:.1f}); between calls: no process")
        recorded, started = begin(folder)
        print(f"one that is due: recorded {recorded:.2f} s after `garrison up` is called, its run begun after "
              f"{started:.2f} s; under cron at most {60 + started:.0f} s after its time")


if __name__ == "__main__":
    main()
