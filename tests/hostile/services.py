"""Other programs of the victim: servers, sockets and shared memory that contain the secret. Started by `World`.

`python services.py FOLDER SECRET PORT`: everything is ready once FOLDER/ready exists; what strangers sent is appended
to FOLDER/heard. Standard library only. Hostile agents kill, trace and read this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

SHM_KEY = 0x6A000000
"""Key of the System V shared memory segment and message queue, to which the port is added."""


def serve(listener: socket.socket, secret: bytes, heard: Path) -> None:
    """Answer each connection with the secret."""
    while True:
        connection, _ = listener.accept()
        with connection, heard.open("ab") as file:
            file.write(b"connected\n")
            connection.settimeout(0.2)
            with contextlib.suppress(OSError):  # whatever it asks, read: else its end would find the connection reset
                connection.recv(4096)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + secret + b"\n")


def listen_datagrams(receiver: socket.socket, heard: Path) -> None:
    """Record each datagram that is not our own chatter."""
    while True:
        data = receiver.recv(2048)
        if not data.startswith(b"chatter"):
            with heard.open("ab") as file:
                file.write(data + b"\n")


def chatter(port: int, secret: bytes) -> None:
    """Talk to ourselves over loopback, as two local programs do."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        while True:
            sender.sendto(b"chatter " + secret, ("127.0.0.1", port))
            time.sleep(0.05)


def share_memory(secret: bytes, key: int) -> None:
    """Keep the secret in a shared memory segment; `World.close` removes it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(key, 4096, 0o1600)
    if segment >= 0:
        address = libc.shmat(segment, None, 0)
        ctypes.memmove(address, secret, len(secret))


def queue_message(secret: bytes, key: int) -> None:
    """Keep the secret in a System V message queue; `World.close` removes it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.msgsnd(libc.msgget(key, 0o1600), struct.pack("l", 1) + secret, len(secret), 0)


def unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


def main() -> None:
    folder, secret, port = Path(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
    heard = folder / "heard"
    heard.touch()
    listeners = [unix(str(folder / name)) for name in ("docker.sock", "bus", "ssh-agent.sock")]
    previews = Path(os.environ["GARRISON_HOME"], "previews")
    previews.mkdir(mode=0o700)
    os.chdir(previews)  # its path may be longer than a socket's
    listeners.append(unix("far.sock"))
    os.chdir("/")
    listeners.append(unix(f"\0hostile-{port}"))
    listeners.append(socket.create_server(("127.0.0.1", port)))
    for listener in listeners:
        threading.Thread(target=serve, args=(listener, secret, heard), daemon=True).start()
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", port))
    threading.Thread(target=listen_datagrams, args=(receiver, heard), daemon=True).start()
    threading.Thread(target=chatter, args=(port, secret), daemon=True).start()
    share_memory(secret, SHM_KEY + port)
    queue_message(secret, SHM_KEY + port)
    address = ctypes.create_string_buffer(b"in memory: " + secret)
    (folder / "memory").write_text(str(ctypes.addressof(address)))
    held = os.open(folder / "held", os.O_RDWR | os.O_CREAT)
    os.write(held, secret)
    (folder / "held").unlink()
    (folder / "held-fd").write_text(str(held))
    (folder / "ready").write_bytes(struct.pack("i", os.getpid()))
    while folder.exists():
        time.sleep(0.5)


if __name__ == "__main__":
    main()
