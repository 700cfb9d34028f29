"""The hostile agent: runs the shell scripts that the test puts into `.orders`, one after the other.

It lies in the repository, so that any confinement can see it. Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

ORDERS = Path(".orders").absolute()
MOST_SECONDS = int(os.environ.get("GARRISON_ORDER_SECONDS", "15"))


def obey(order: Path) -> None:
    """Run one script, with its output in a file next to it."""
    with order.with_suffix(".out").open("wb") as output:
        child = subprocess.Popen(["sh", order], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                 start_new_session=True)
        try:
            child.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    order.with_suffix(".done").write_text(str(child.returncode))


def main() -> None:
    ORDERS.mkdir(exist_ok=True)
    (ORDERS / "ready").touch()
    number = 0
    while not (ORDERS / "end").exists():
        if (order := ORDERS / f"{number}.sh").exists():
            obey(order)
            number += 1
        else:
            time.sleep(0.01)


if __name__ == "__main__":
    main()
