"""Stand-ins for a home's keeper and a host's service, as programs: real dispatcher, real work, nothing around them.

`python host_stub.py keeper HOME ADDRESS CREW` serves the home's socket. `python host_stub.py host HOME ADDRESS CREW
NAME SLOTS QUEUE...` does claims of those queues.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from garrison.dispatch.claimed_work import MachinePace, work_on
from garrison.dispatch.late import settle
from garrison.dispatch.relay import Relay, socket_path
from garrison.dispatch.temporal.client import TemporalDispatcher
from garrison.processes.remote.work import make_work
from garrison.records.hosts import Host


def keep(home: Path, address: str, crew: str) -> None:
    dispatcher = TemporalDispatcher(address, crew, serves_workflows=True)
    Relay(dispatcher, socket_path(home))
    while True:
        settle(home, dispatcher, print)
        time.sleep(1.0)


def serve(home: Path, address: str, crew: str, name: str, queue: str) -> None:
    dispatcher = TemporalDispatcher(address, crew, worker=name, queue=queue)
    host = Host(name, home=str(home))
    while True:
        claim = dispatcher.claim(5.0)
        if claim is not None:
            with MachinePace() as pace:
                ending = work_on(dispatcher, claim, make_work(home, host, claim), pace)
            print(f"{claim.attempt.id}: {ending}", flush=True)


if __name__ == "__main__":
    role, folder, server, name_of_crew, *rest = sys.argv[1:]
    if role == "keeper":
        keep(Path(folder), server, name_of_crew)
    threads = [threading.Thread(target=serve, args=(Path(folder), server, name_of_crew, rest[0], queue))
               for queue in rest[2:] for _ in range(int(rest[1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
