"""Cost of the proxy of confined agents: latency of a call, throughput of a tunnel, memory, start and restart.

`python -m benchmarks.proxy [--calls N] [--mebibytes N]`. Server, proxy and client are on this machine; each figure is
the median, next to the server reached directly.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

from garrison.sandbox import network
from garrison.sandbox.place import Mode, Network, Rights

ANSWER = json.dumps({"type": "message", "id": "m", "model": "claude-haiku-4",
                     "content": [{"type": "text", "text": "x" * 2000}],
                     "usage": {"input_tokens": 10, "output_tokens": 5}}).encode()


class _Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def source(size: int) -> Iterator[int]:
    """Serve `size` bytes to each connection; yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    for _ in range(size >> 20):
                        client.sendall(bytes(1 << 20))

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def call(port: int, path: str, calls: int, headers: Mapping[str, str] | None = None) -> float:
    """Return the median milliseconds of a call on one connection."""
    client = HTTPConnection("127.0.0.1", port)
    client.connect()
    client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        client.request("POST", path, b"{}" * 500, headers or {})
        assert client.getresponse().read() == ANSWER
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def download(port: int, through: int | None) -> float:
    """Return the MiB/s of one download, through the proxy at a port if one is given."""
    client = socket.create_connection(("127.0.0.1", through or port))
    if through is not None:
        client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
    began, size, buffer = time.perf_counter(), 0, bytearray(1 << 18)
    while count := client.recv_into(buffer):
        size += count
    return size / (1 << 20) / (time.perf_counter() - began)


def _served(rights: Rights, mode: Mode, env: Mapping[str, str], user: network.NetworkUser) -> network.NetworkPlace:
    """Return a network with its proxy started, which otherwise waits for the first connection."""
    place = network.prepare(rights, mode, env, user)
    place.serve()
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--mebibytes", type=int, default=512)
    options = parser.parse_args()
    api = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    api.daemon_threads = True
    threading.Thread(target=api.serve_forever, daemon=True).start()
    api_port = api.server_address[1]
    with tempfile.TemporaryDirectory() as home, source(options.mebibytes << 20) as port:
        folder = Path(home) / "runs" / "r1" / "nodes" / "a" / "1"
        folder.mkdir(parents=True)
        env = {"ANTHROPIC_API_KEY": "sk-x", "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{api_port}"}
        user = network.NetworkUser(Path(home), "r1", "a", 1, folder)
        rights = Rights(network=Network.ALLOW, hosts=("127.0.0.1:*",))
        began = time.perf_counter()
        place = _served(rights, Mode.NONE, env, user)
        print(f"start of the proxy         {(time.perf_counter() - began) * 1000:7.1f} ms")
        began = time.perf_counter()
        with contextlib.closing(_served(rights, Mode.NONE, env, user)):
            print(f"one more agent             {(time.perf_counter() - began) * 1000:7.1f} ms")
        with contextlib.suppress(Exception), contextlib.closing(_served(rights, Mode.BUBBLEWRAP, env, user)):
            times = []
            for _ in range(20):
                began = time.perf_counter()
                _served(rights, Mode.BUBBLEWRAP, env, user).close()
                times.append(time.perf_counter() - began)
            print(f"  in a namespace of its own{statistics.median(times) * 1000:7.1f} ms")
        assert place.process is not None and place.client is not None
        through, process = place.client.listener.getsockname()[1], psutil.Process(place.process.pid)
        memory = process.memory_full_info()
        print(f"memory at rest             {memory.rss / 2**20:7.1f} MiB, {memory.uss / 2**20:.1f} of its own")
        direct = call(api_port, "/v1/messages", options.calls)
        key = {"x-api-key": place.environment["ANTHROPIC_API_KEY"]}
        proxied = call(through, "/anthropic/v1/messages", options.calls, key)
        print(f"call of an API             {proxied:7.2f} ms, directly {direct:.2f}")
        print(f"tunnel                     {download(port, through):7.0f} MiB/s, directly {download(port, None):.0f}")
        print(f"memory after that          {process.memory_info().rss / 2**20:7.1f} MiB")
        os.kill(place.process.pid, 9)
        began = time.perf_counter()
        while not place.serve():
            time.sleep(0.001)
        print(f"replacement after kill -9  {(time.perf_counter() - began) * 1000:7.1f} ms")
        place.close()


if __name__ == "__main__":
    main()
