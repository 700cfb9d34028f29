"""What schedules cost between due times.

    python benchmarks/schedules.py

Fifty schedules of a home, none of them due: CPU of one call of what `garrison up` does for them, against reading their
files alone. Without a call nothing of them runs at all.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from garrison.schedules.plan import Schedule, ScheduledStart, Stage
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


if __name__ == "__main__":
    main()
