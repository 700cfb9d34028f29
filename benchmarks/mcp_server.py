"""What `garrison mcp` costs a client: its start, `status`, and idling during a run.

    python benchmarks/mcp_server.py

A real server on standard input and the official client, in both eras of the protocol, during an active run.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

PROGRAM = [sys.executable, "-P", "-m", "garrison"]
GRAPH = """digraph g { flow=dag; goal="g"; start [shape=Mdiamond]; exit [shape=Msquare];
  work [shape=box, command="sleep 600"]; start -> work -> exit; }"""
CALLS, IDLE = 40, 10.0
"""Calls of `status`, and seconds of idling."""


def cpu_of(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def server_of(home: str) -> int:
    """Return the pid of the server of a home."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"mcp" in words and home.encode() in words and b"garrison" in words:
            return int(path.parent.name)
    raise LookupError("there is no server")


async def measure(home: str, repo: str, era: str) -> str:
    """Return a line of figures of one era."""
    words = [*PROGRAM[1:], "mcp", "--home", home, "--repo", repo]
    begun = time.perf_counter()
    server = StdioServerParameters(command=PROGRAM[0], args=words, env=dict(os.environ))
    async with Client(stdio_client(server), mode=era) as client:
        await client.list_tools()
        start = time.perf_counter() - begun
        times = []
        for _ in range(CALLS):
            begun = time.perf_counter()
            await client.call_tool("status", {})
            times.append(1000 * (time.perf_counter() - begun))
        pid = server_of(home)
        used = cpu_of(pid)
        await asyncio.sleep(IDLE)
        idle = 100 * (cpu_of(pid) - used) / IDLE
    times.sort()
    return (f"{era}: first tools after {start:.2f} s; status {statistics.median(times):.1f} ms (95th percentile "
            f"{times[int(CALLS * 0.95)]:.1f} ms); idle {idle:.2f} % CPU")


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        repo, home = f"{folder}/repo", f"{folder}/home"
        for words in (["init", "-q", repo], ["-C", repo, "-c", "user.name=b", "-c", "user.email=b@b", "commit", "-q",
                                             "--allow-empty", "-m", "Begin"]):
            subprocess.run(["git", *words], check=True)
        graph = Path(folder, "g.dot")
        graph.write_text(GRAPH)
        launch = ["launch", str(graph), "--home", home, "--target-dir", repo, "--run", "r1", "--gate", "true",
                  "--detach"]
        subprocess.run([*PROGRAM, *launch], check=True, capture_output=True)
        try:
            for era in ("legacy", "2026-07-28"):
                print(asyncio.run(measure(home, repo, era)))
        finally:
            subprocess.run([*PROGRAM, "stop", "r1", "--home", home], check=True, capture_output=True)


if __name__ == "__main__":
    main()
