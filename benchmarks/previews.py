"""Previews and services: what a request costs more through a preview, and what a PostgreSQL of its own costs a node.

    .venv/bin/python benchmarks/previews.py [--requests N] [--nodes N]

Rows: `request` (GET of a small page, over one connection: from a server in a network namespace through a preview,
beside the same server asked directly; bar: 2 ms more), `service` (a PostgreSQL from a kept template, until
`pg_isready` says so; bar: 1 s a node; left out, with the reason, where there is none). Medians, with the least in
brackets: that is what a busy machine would need if it were idle. While no preview is open, no line of it is loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from garrison.errors import Shortage
from garrison.preview.gateway import Gateway
from garrison.preview.listeners import Tree
from garrison.preview.rules import PreviewRules
from garrison.preview.ways import NodeWay
from garrison.sandbox import network, services
from garrison.system import processes
from garrison.system.sockets import Listener

SERVER = ("import http.server, socketserver\n"
          "class Handler(http.server.BaseHTTPRequestHandler):\n"
          "    protocol_version, disable_nagle_algorithm = 'HTTP/1.1', True\n"
          "    def log_message(self, *words): pass\n"
          "    def do_GET(self):\n"
          "        self.send_response(200); self.send_header('Content-Length', '3'); self.end_headers()\n"
          "        self.wfile.write(b'hi\\n')\n"
          "socketserver.ThreadingTCPServer(('127.0.0.1', 3000), Handler).serve_forever()\n")
POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)), None)


def ask(port: int, host: str, number: int) -> list[float]:
    """Return the milliseconds of each of a number of requests over one connection."""
    found = []
    with socket.create_connection(("127.0.0.1", port)) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(number):
            began = time.perf_counter()
            end.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            data = b""
            while not data.endswith(b"hi\n"):
                data += end.recv(65536)
            found.append(1000 * (time.perf_counter() - began))
    return found


def measure_requests(number: int) -> dict[str, list[float]]:
    """Measure a server asked directly, in its own namespace, and through a preview."""
    namespace = network.create()
    namespace.listener.close()
    server = subprocess.Popen([*namespace.entry(), sys.executable, "-c", SERVER])
    direct = [*namespace.entry(), sys.executable, "-c", "import sys; sys.path[:0] = sys.argv[1:3]\n"
              f"from previews import ask; print(*ask(3000, 'localhost', {number}))",
              str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]
    try:
        time.sleep(1.0)
        told = subprocess.run(direct, capture_output=True, text=True, check=True).stdout
        found = processes.probe(server.pid)
        assert found is not None
        tree = Tree(found.id, (Listener(3000, "127.0.0.1", 0),))
        return {"direct": [float(word) for word in told.split()], "preview": asyncio.run(_through(tree, number))}
    finally:
        server.kill()
        server.wait()
        namespace.close()


async def _through(tree: Tree, number: int) -> list[float]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    gateway = Gateway(NodeWay(lambda: tree, 3000), PreviewRules(f"a.localhost:{port}", 3000))
    await gateway.listen([listener])
    try:
        return await asyncio.to_thread(ask, port, f"a.localhost:{port}", number)
    finally:
        await gateway.close()


def measure_services(nodes: int) -> list[float]:
    """Return the milliseconds until each node's PostgreSQL was ready, the first of which made the template."""
    assert POSTGRES is not None
    own = processes.probe(os.getpid())
    assert own is not None
    found = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "home").mkdir()
        (root / "home/config.toml").write_text(
            f'[services.db]\ncommand = "{POSTGRES} -D {{data}} -p {{port}} -k /tmp"\nport = 5432\n'
            f'template = "{POSTGRES.with_name("initdb")} -D {{data}} -U postgres --auth trust --no-sync"\n'
            f'ready = "{POSTGRES.with_name("pg_isready")} -h 127.0.0.1 -p {{port}}"\n')
        for number in range(nodes + 1):
            user = services.ServiceUser("r", root / f"{number}/services", root / "run", root / "templates",
                                        process=own.id)
            began = time.perf_counter()
            while True:
                try:
                    services.provide(root / "home", user, os.environ)
                    break
                except Shortage:  # the template takes longer than a user waits at a time
                    continue
            found.append(1000 * (time.perf_counter() - began))
            services.stop(user.folder)
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=5)
    given = parser.parse_args()
    rows = measure_requests(given.requests)
    if POSTGRES is None:
        print("service: left out, there is no PostgreSQL here (apt-get install postgresql)")
    else:
        rows["service"] = measure_services(given.nodes)
    for name, times in rows.items():
        print(f"{name:10} {statistics.median(times):8.2f} ms ({min(times):.2f})")
    more = statistics.median(rows["preview"]) - statistics.median(rows["direct"])
    print(f"a preview adds {more:.2f} ms to a request ({min(rows['preview']) - min(rows['direct']):.2f})")


if __name__ == "__main__":
    main()
