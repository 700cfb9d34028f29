"""queue.lock excludes a plain flock of version 0.1 and a FileLock on it; a processor keeps processor.lock."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import contextmanager

import pytest
from filelock import FileLock, Timeout
from merge_support import FORK, World

from garrison.errors import Refused
from garrison.merge import commands
from garrison.merge.processor import MergeProcessor
from garrison.merge.queue import MergeQueue
from support import DEADLINE


@contextmanager
def plain_flock(path):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def file_lock(path):
    with FileLock(path):
        yield


def _hold(lock, path, taken, release):
    with lock(path):
        taken.set()
        release.wait(DEADLINE)


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.branch("one", {"one.txt": "1\n"})
    return world


def test_an_enqueue_waits_for_the_holder_of_the_lock(world):
    world.branch("two", {"two.txt": "2\n"})
    for node, lock in (("one", plain_flock), ("two", file_lock)):
        path, taken, release = world.queue.locks / "queue.lock", FORK.Event(), FORK.Event()
        holder = FORK.Process(target=_hold, args=(lock, path, taken, release))
        holder.start()
        assert taken.wait(DEADLINE)
        entries, before = [], len(world.queue.entries())
        enqueuer = threading.Thread(target=lambda node=node, entries=entries: entries.append(world.enqueue(node)))
        enqueuer.start()
        enqueuer.join(0.3)
        assert not entries
        assert len(MergeQueue(world.home, world.repo).entries()) == before
        release.set()
        enqueuer.join(DEADLINE)
        holder.join(DEADLINE)
        assert [entry.node for entry in entries] == [node]


def test_a_command_gives_up_on_a_lock_that_stays_taken_and_a_processor_gets_no_lease(world, monkeypatch):
    one = world.enqueue("one")
    monkeypatch.setattr(MergeQueue.lock, "__defaults__", (0.1,))
    processor = MergeProcessor(world.queue, trees=world.trees, environment={})
    for lock in (plain_flock, file_lock):
        with lock(world.queue.locks / "queue.lock"):
            with pytest.raises(Refused, match=r"stays locked after 0\.1 s"):
                commands.hold(world.queue, one.id)
            with pytest.raises(Refused, match="stays locked"):
                processor.acquire()
        assert not world.queue.is_processor_running()
    assert commands.hold(world.queue, one.id).status == "held"
    assert processor.acquire()
    assert processor.writer.epoch == world.queue.state.epoch > 0
    processor.close()


def test_others_wait_while_the_queue_is_locked(world):
    path = world.queue.locks / "queue.lock"
    with world.queue.locked():
        with pytest.raises(Timeout):
            FileLock(path).acquire(timeout=0)
        descriptor = os.open(path, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    FileLock(path).acquire(timeout=0).lock.release()


def test_a_processor_excludes_a_plain_flock_on_its_lock(world):
    processor = world.processor()
    descriptor = os.open(world.queue.processor_lock, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    processor.close()
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second = MergeProcessor(MergeQueue(world.home, world.repo), trees=world.trees, environment={})
    assert not second.acquire()
    assert world.queue.is_processor_running()
    os.close(descriptor)
    assert not world.queue.is_processor_running()
