"""Relay of a home: what its clients follow, what it refuses, and what happens when it goes away."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dispatch_lab import RelayLab, attempt
from garrison.hosts.attempts import AttemptId, AttemptResult, AttemptState, AttemptView, Completion, DispatcherLost
from garrison.hosts.relay import MAX_BYTES, Following, RelayClient, from_json, to_json
from support import wait_for

ID = AttemptId("r1", "work", 1, 2)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[RelayLab]:
    with closing(RelayLab(tmp_path / "relay.sock")) as made:
        yield made


def client(lab: RelayLab) -> RelayClient:
    return RelayClient(lab.relay.path)


def next_view(following: Following) -> AttemptView:
    """Wait for the next state as an event loop does."""
    ready, _, _ = select.select([following], [], [], 20.0)
    assert ready, "nothing came"
    view = following.take()
    assert view is not None
    return view


def test_a_client_follows_an_attempt_to_its_end(lab: RelayLab) -> None:
    offered = attempt(lab)
    client(lab).submit(offered)
    following = client(lab).follow(offered.id)
    assert next_view(following).state is AttemptState.WAITING
    worker = lab.worker("box2")
    claim = worker.claim(0.0)
    assert (found := next_view(following)).state is AttemptState.CLAIMED and found.worker == "box2"
    worker.heartbeat(claim.token, "half")
    assert next_view(following).progress == "half"
    worker.complete(claim.token, AttemptResult(Completion.DONE, "green"))
    assert next_view(following).result == AttemptResult(Completion.DONE, "green")
    assert following.take() is None
    following.close()
    wait_for("the relay forgets who is gone", lambda: not lab.relay.connections)


def test_each_of_several_clients_hears_of_every_state(lab: RelayLab) -> None:
    offered = attempt(lab)
    client(lab).submit(offered)
    first, second = client(lab).follow(offered.id), client(lab).follow(offered.id)
    assert next_view(first) == next_view(second)
    lab.worker("box2").claim(0.0)
    assert next_view(first).state is next_view(second).state is AttemptState.CLAIMED
    first.close()
    second.close()


def test_a_relay_that_ends_is_unreachable_as_is_a_missing_one(lab: RelayLab, tmp_path: Path) -> None:
    following = client(lab).follow(attempt(lab).id)
    next_view(following)
    lab.relay.close()
    select.select([following], [], [], 20.0)
    with pytest.raises(DispatcherLost, match="ended the connection"):
        following.take()
    following.close()
    with pytest.raises(DispatcherLost, match="keeper of this home's hosts does not answer"):
        client(lab).submit(attempt(lab))
    with pytest.raises(DispatcherLost, match=r"No such file or directory: .*/none"):
        RelayClient(tmp_path / "none").watch(ID)


def test_the_socket_is_private_to_its_user(lab: RelayLab) -> None:
    assert lab.relay.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"op": "follow"}\n', b'{"op": "none", "id": "r1/work/1"}\n',
                                  b"[" * 100_000 + b"\n", b"x" * (MAX_BYTES + 100_000)])
def test_a_client_that_sends_nonsense_is_dropped_and_others_are_served(lab: RelayLab, line: bytes) -> None:
    stranger = socket.socket(socket.AF_UNIX)
    stranger.settimeout(20.0)
    stranger.connect(str(lab.relay.path))
    try:
        stranger.sendall(line)
        assert stranger.recv(10) == b""
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        stranger.close()
    assert client(lab).watch(ID).state is AttemptState.UNKNOWN


def test_a_view_comes_back_as_it_was() -> None:
    view = AttemptView(ID, AttemptState.DONE, 3, "box2", "ü", AttemptResult(Completion.DONE, "x"), "why")
    assert from_json(AttemptView, to_json(view)) == view
