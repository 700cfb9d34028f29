"""Every kind of durable write, and a server whose children do one of them while strace spoils a system call.

An `Op` writes numbered values: `begin` has made value 1 durable, `act` writes the number it is given, `seen` is what a
fresh reader finds, oldest first, and raises if anything is torn. Run as a program this file is the server: for each
line of JSON it forks a child that prepares, stops itself (strace attaches now, so that calls are counted from here)
and acts; what became of it goes out by a socket, whose calls are not traced.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from garrison.errors import GarrisonError
from garrison.records import atomic, journal, run, signals
from garrison.records.hook import Hook, update_notes
from garrison.records.identity import Identity
from garrison.records.life_lock import LifeLock, read_heartbeat
from garrison.records.names import Key
from garrison.records.run import Result, RunFiles
from garrison.records.store import Store

AT = "2026-01-01T00:00:00.000000Z"
KEY = Key("runner", "a", "r1")
BULK = 3000
"""A value longer than this many times its digit does not fit into one page, so that torn would show."""


@dataclass(frozen=True)
class Op:
    """One kind of durable write."""

    name: str
    open: Callable[[Path], Any]
    act: Callable[[Any, int], object]
    seen: Callable[[Path], list[int]]
    keeps: bool = False
    """Whether earlier values are kept (journals, inboxes) or replaced."""
    begins: bool = True
    """Whether value 1 exists before; else the write also makes its folders."""

    def begin(self, folder: Path) -> None:
        if self.begins:
            self.act(self.open(folder), 1)


def _number(text: str) -> int:
    """Return the value in a text of its digit; AssertionError if it is torn."""
    assert re.fullmatch(r"(\d)\1*", text), f"torn: {text[:40]!r}"
    assert len(text) == BULK, f"torn after {len(text)} bytes"
    return int(text[0])


def _text(number: int) -> str:
    return str(number) * BULK


def _read(path: Path) -> list[int]:
    return [_number(path.read_text())] if path.exists() else []


def _store(folder: Path) -> Store:
    return Store(folder / "home")


def _identity(store: Store, number: int, *, named: bool = True) -> None:
    def change(old: Identity | None) -> Identity:
        return Identity(f"id{number}", KEY.role, KEY.name, KEY.run, AT, metadata={"value": _text(number)})

    store.update(Identity, KEY, change, named=named)


def _lease(store: Store, number: int) -> None:
    """Write as a fence and a lease are written: the directory is not synced."""
    _identity(store, number, named=False)


def _identities(folder: Path) -> list[int]:
    found = _store(folder).read(Identity, KEY)
    return [_number(found.metadata["value"])] if found else []


def _hook(store: Store, number: int) -> None:
    def change(old: Hook | None) -> Hook:
        return update_notes(old or Hook("h", KEY.role, KEY.name, KEY.run, AT, AT), AT, text=_text(number))

    store.update(Hook, KEY, change)


def _hooks(folder: Path) -> list[int]:
    found = _store(folder).read(Hook, KEY)
    return [_number(found.resumption_instructions)] if found else []


def _writer(folder: Path) -> journal.Writer:
    return journal.Writer(folder / "runs" / "journal.jsonl", "t#1")


def _open_and_append(folder: Path, number: int) -> None:
    """Start as a process does: open (cut, read, next epoch), append, close."""
    writer = _writer(folder)
    try:
        writer.append("value", {"value": _text(number)}, AT, sync=True)
    finally:
        writer.close()


def _entries(path: Path) -> list[int]:
    entries = journal.Reader(path).read()
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1)) or entries[0].kind == "snapshot"
    return [_number(entry.data["value"][-BULK:]) for entry in entries if entry.kind != "open"]


def _blobs(folder: Path) -> list[int]:
    path = folder / "runs" / "journal.jsonl"
    return [_number(journal.load_blobs(path.parent, entry.data)["value"][:BULK])
            for entry in journal.Reader(path).read()]


def _compact(writer: journal.Writer, number: int) -> None:
    """Compact a journal: its snapshot is the value; a record after it must also be found."""
    writer.append("value", {"value": _text(number)}, AT, sync=True)
    writer.compact({"value": _text(number)}, AT)


def _folded(folder: Path) -> list[int]:
    return _entries(folder / "runs" / "journal.jsonl")[-1:]


def _torn(folder: Path) -> Path:
    """Append to a shared journal whose last writer died in the middle of its line."""
    path = folder / "merge" / "journal.jsonl"
    if path.exists():
        with path.open("ab") as file:
            file.write(b'{"seq":2,"epo')
    return path


def _share(path: Path, number: int) -> None:
    journal.append_shared(path, "t#1", "value", {"value": _text(number)}, AT, take=True, sync=True)


def _signal(number: int) -> signals.Signal:
    return signals.Signal(f"s{number}", {"role": "guardian", "name": "c", "incarnation": 1},
                          {"role": KEY.role, "name": KEY.name}, "GUIDANCE", KEY.run,
                          AT.replace("00Z", f"0{number}Z"), payload={"value": _text(number)})


def _posted(folder: Path) -> list[int]:
    waiting = signals.list_pending(folder, KEY)
    assert all(one.signal for one in waiting), waiting
    return list(dict.fromkeys(_number(one.signal.payload["value"]) for one in waiting if one.signal))


def _moved(where: str) -> Callable[[Path], list[int]]:
    def seen(folder: Path) -> list[int]:
        """Return acknowledged or refused signals, after a check that each is in exactly one place."""
        inbox = signals.inbox_path(folder, KEY)
        moved = {path.name for path in (inbox / where).glob("*.json")}
        assert not moved & {one.path.name for one in signals.list_pending(folder, KEY)}, "in two places"
        return sorted(int(signals.read(inbox / where / name).id[1:]) for name in moved)

    return seen


def _take(folder: Path, number: int) -> None:
    signals.acknowledge(_wait(folder, number))


def _refuse(folder: Path, number: int) -> None:
    signals.refuse(_wait(folder, number), _text(number))


def _wait(folder: Path, number: int) -> Path:
    name = signals.file_name(_signal(number), number)
    return signals.inbox_path(folder, KEY) / name


def _with_waiting(folder: Path) -> Path:
    for number in (1, 2, 3):
        signals.post(folder, _signal(number), number)
    return folder


def _result(folder: Path, number: int) -> None:
    run.save(RunFiles(folder, "r1").attempt("a", 1) / "result.json",
             Result("r1", "a", 1, number, "success", AT, tail=_text(number)))


def _results(folder: Path) -> list[int]:
    found = run.load(Result, RunFiles(folder, "r1").attempt("a", 1) / "result.json")
    return [_number(found.tail)] if found else []


def _live(folder: Path, number: int) -> None:
    lock = LifeLock.try_acquire(folder / "x.life")
    try:
        lock.beat(number * 10 ** 9, number * 10 ** 9)
    finally:
        lock.release()


def _beats(folder: Path) -> list[int]:
    beat = read_heartbeat(folder / "x.life")
    return [int(beat[0])] if beat and beat[0] < 10 else []


def _same(folder: Path) -> Path:
    return folder


OPS = {op.name: op for op in (
    Op("write", lambda folder: folder / "file", lambda path, n: atomic.write(path, _text(n).encode()),
       lambda folder: _read(folder / "file")),
    Op("write-new", lambda folder: folder / "file", lambda path, n: atomic.write(path, _text(n).encode()),
       lambda folder: _read(folder / "file"), begins=False),
    Op("graph", lambda folder: folder / "runs" / "r1" / "graph.dot", lambda path, n: (
        atomic.make_directory(path.parent), atomic.write(path, _text(n).encode())),
       lambda folder: _read(folder / "runs" / "r1" / "graph.dot"), begins=False),
    Op("result", _same, _result, _results),
    Op("identity", _store, _identity, _identities),
    Op("lease", _store, _lease, _identities),
    Op("identity-new", _store, _identity, _identities, begins=False),
    Op("hook", _store, _hook, _hooks),
    Op("journal-open", _same, _open_and_append, lambda folder: _entries(folder / "runs" / "journal.jsonl"), keeps=True),
    Op("journal-new", _same, _open_and_append, lambda folder: _entries(folder / "runs" / "journal.jsonl"), keeps=True,
       begins=False),
    Op("append", _writer, lambda writer, n: writer.append("value", {"value": _text(n)}, AT),
       lambda folder: _entries(folder / "runs" / "journal.jsonl"), keeps=True),
    Op("append-sync", _writer, lambda writer, n: writer.append("value", {"value": _text(n)}, AT, sync=True),
       lambda folder: _entries(folder / "runs" / "journal.jsonl"), keeps=True),
    Op("append-blob", _writer, lambda writer, n: writer.append("value", {"value": _text(n) * 4}, AT, sync=True),
       _blobs, keeps=True),
    Op("compact", _writer, _compact, _folded),
    Op("merge-journal", _torn, _share, lambda folder: _entries(folder / "merge" / "journal.jsonl"), keeps=True),
    Op("merge-journal-new", _torn, _share, lambda folder: _entries(folder / "merge" / "journal.jsonl"), keeps=True,
       begins=False),
    Op("post", _same, lambda folder, n: signals.post(folder, _signal(n)), _posted, keeps=True),
    Op("post-new", _same, lambda folder, n: signals.post(folder, _signal(n), n), _posted, keeps=True, begins=False),
    Op("take", _with_waiting, _take, _moved("taken"), keeps=True, begins=False),
    Op("refuse", _with_waiting, _refuse, _moved("refused"), keeps=True, begins=False),
    Op("beat", _same, _live, _beats, begins=False),
)}


# ------------------------------------------------------------------------------------------------------ the server


def serve() -> None:
    """Fork a child for each request until stdin ends; the socket of its answers is descriptor 3."""
    said = socket.socket(fileno=int(sys.argv[1]))
    for op in OPS.values():  # so that no import and no first use is traced
        folder = Path(sys.argv[2]) / op.name
        folder.mkdir()
        op.begin(folder)
        op.act(op.open(folder), 2)
        op.seen(folder)
    said.send(b"ready")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        if os.fork() == 0:
            _child(OPS[request["op"]], Path(request["folder"]), said, request["tries"])
            os._exit(0)


def _child(op: Op, folder: Path, said: socket.socket, tries: int) -> None:
    op.begin(folder)
    opened = op.open(folder)
    said.send(json.dumps({"pid": os.getpid()}).encode())
    os.kill(os.getpid(), signal.SIGSTOP)
    word = {"acked": False, "error": ""}
    for again in range(tries):
        try:
            op.act(opened, 2)
        except (GarrisonError, OSError) as error:
            word["error"] = word["error"] or f"{type(error).__name__}: {error}"
            word["again" if again else "first"] = str(error)
        except BaseException as error:
            word["fault"] = repr(error)
            break
        else:
            word["acked"] = True
            break
    said.send(json.dumps(word).encode())


class Faults:
    """Server with children that strace injects faults into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._word, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        scratch = folder / "scratch"
        scratch.mkdir()
        self._server = subprocess.Popen([sys.executable, __file__, str(theirs.fileno()), str(scratch)], text=True,
                                        stdin=subprocess.PIPE, pass_fds=[theirs.fileno()])
        theirs.close()
        assert self._hear() == "ready"

    def close(self) -> None:
        self._server.stdin.close()
        self._server.wait()
        self._word.close()

    def _hear(self, seconds: float = 300.0) -> str:
        """Return the next answer; empty if none comes in time."""
        if not select.select([self._word], [], [], seconds)[0]:
            return ""
        return self._word.recv(65536).decode()

    def run(self, op: Op, *inject: str) -> tuple[Path, list[tuple[str, int]], dict[str, Any] | None]:
        """Do `op` once under strace: its folder, the calls it made as (name, how many of that name till then), and its
        last word, None if it was killed."""
        self._count += 1
        folder = self.folder / f"{op.name}-{self._count}"
        folder.mkdir()
        # A close that fails has closed all the same; strace leaves it out, and a lock so kept would stop a second try.
        tries = 1 if any(each.startswith("close:") for each in inject) else 2
        self._server.stdin.write(json.dumps({"op": op.name, "folder": str(folder), "tries": tries}) + "\n")
        self._server.stdin.flush()
        pid = json.loads(self._hear())["pid"]
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "Tt":
            time.sleep(0.0005)  # it is on its way to its stop
        log = self.folder / "strace.log"
        traced = [word for each in inject for word in ("-e", f"inject={each}")]
        tracer = subprocess.Popen(["strace", "-o", str(log), "-e", "trace=%file,%desc", "-e", "signal=none", *traced,
                                   "-p", str(pid)], stderr=subprocess.PIPE, text=True)
        assert "attached" in tracer.stderr.readline()
        os.kill(pid, signal.SIGCONT)
        try:
            tracer.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            tracer.communicate()
            raise AssertionError(f"it hangs with {inject}") from None
        said = self._hear(0.0)
        calls: dict[str, int] = {}
        made = []
        for line in log.read_text().splitlines():
            if found := re.match(r"(\w+)\(", line):
                calls[found[1]] = calls.get(found[1], 0) + 1
                made.append((found[1], calls[found[1]]))
        return folder, made, json.loads(said) if said else None

    @staticmethod
    def works() -> str:
        """Return why no fault can be injected here; empty if it can."""
        if shutil.which("strace") is None:
            return "strace is not installed"
        tried = subprocess.run(["strace", "-qq", "-o", "/dev/null", "-e", "inject=close:error=EIO:when=9999", "true"],
                               capture_output=True, text=True, check=False)
        return f"strace cannot trace here: {tried.stderr.strip().splitlines()[-1:]}" if tried.returncode else ""


if __name__ == "__main__":
    serve()
