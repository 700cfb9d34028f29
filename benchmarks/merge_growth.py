"""Merge growth: milliseconds of CPU of a landing with an empty gate in a queue, or a repository, of some size.

    python benchmarks/merge_growth.py waiting|landed|files SIZE

`waiting`: entries that wait behind it. `landed`: entries that landed before it. `files`: of the repository. The median
of five landings, of this process and all that it starts. It measures the garrison of the Python that runs it.
"""

from __future__ import annotations

import os
import resource
import select
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from merge_peers import WHO, branches, repository

from garrison.merge.config import QueueConfig
from garrison.merge.processor import MergeProcessor, StepResult
from garrison.merge.queue import MergeQueue
from garrison.system.environment import child_environment

LANDINGS = 5


def used() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


class Worker:
    """A queue with a processor in this process, which lands one entry after the other."""

    def __init__(self, root: Path, repo: Path, config: QueueConfig) -> None:
        self.queue = MergeQueue(root / "home", repo, token="benchmark")
        self.queue.configure(config)
        self.processor = MergeProcessor(self.queue, trees=root / "trees", environment=child_environment(os.environ),
                                        max_batch=1)
        assert self.processor.acquire()
        self.processor.recover()

    def land_one(self) -> None:
        while True:
            done = self.processor.step()
            if isinstance(done, StepResult):
                if done.what == "landed":
                    return
            elif done.kind in ("gate", "ref_locked"):
                poller = select.poll()
                if done.fd >= 0:
                    poller.register(done.fd, select.POLLIN)
                poller.poll(200)
            else:
                raise SystemExit(f"the queue stands still: {done}")


def main() -> None:
    what, size = sys.argv[1], int(sys.argv[2])
    os.environ.update(WHO)
    with tempfile.TemporaryDirectory(prefix="garrison-bench-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        repo = repository(root / "r", size if what == "files" else 1000)
        before, behind = (size if what == each else 0 for each in ("landed", "waiting"))
        names = [f"b{number}" for number in range(before + LANDINGS + 1 + behind)]
        branches(repo, names)
        if before:
            worker = Worker(root, repo, QueueConfig(no_gate=True))
            for name in names[:before]:
                worker.queue.enqueue("r", name, 1, name)
                worker.land_one()
            worker.processor.close()
        worker = Worker(root, repo, QueueConfig("true"))
        for name in names[before:]:
            worker.queue.enqueue("r", name, 1, name)
        worker.land_one()
        took = []
        for _ in range(LANDINGS):
            begun = used()
            worker.land_one()
            took.append(1e3 * (used() - begun))
        worker.processor.close()
    print(statistics.median(took))


if __name__ == "__main__":
    main()
