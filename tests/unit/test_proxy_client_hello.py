"""The name in a TLS client's first message, from the real thing and from nonsense."""

from __future__ import annotations

import ssl

import pytest

from garrison.sandbox.proxy.target import is_complete, server_name


def hello(name: str | None) -> bytes:
    """Return the first message of Python's own TLS client."""
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def split(data: bytes, size: int) -> bytes:
    """Return the same message in several records."""
    body = data[5:]
    return b"".join(data[:3] + len(part).to_bytes(2, "big") + part
                    for part in (body[at:at + size] for at in range(0, len(body), size)))


@pytest.mark.parametrize("name", ["pypi.org", "a" * 60 + ".example.org"])
def test_reads_the_name(name: str) -> None:
    data = hello(name)
    assert server_name(data) == name
    assert server_name(split(data, 50)) == name
    assert server_name(data + b"more") == name


def test_a_hello_without_a_name_has_none() -> None:
    assert server_name(hello(None)) == ""


def test_a_hello_with_two_names_is_none() -> None:
    """A server may take either."""
    data = hello("pypi.org")
    name = b"\0\0\x08pypi.org"
    at = data.index(name) - 6  # kind and length of the extension, length of its list
    extension = data[at:at + 6] + name
    for first, second in ((b"pypi.org", b"evil.org"), (b"pypi.org", b"pypi.org")):
        more = data[:at] + extension.replace(b"pypi.org", first) + extension.replace(b"pypi.org", second) \
            + data[at + len(extension):]
        grown = len(extension)
        extensions = 5 + 4 + 2 + 32
        extensions += 1 + more[extensions]
        extensions += 2 + int.from_bytes(more[extensions:extensions + 2], "big")
        extensions += 1 + more[extensions]
        size = int.from_bytes(more[extensions:extensions + 2], "big") + grown
        more = more[:extensions] + size.to_bytes(2, "big") + more[extensions + 2:]
        more = more[:3] + (len(more) - 5).to_bytes(2, "big") + more[5:6] + (len(more) - 9).to_bytes(3, "big") + more[9:]
        assert server_name(more) == (None if first != second else "pypi.org")


def test_waits_for_the_whole_message() -> None:
    data = hello("pypi.org")
    for size in range(len(data)):
        assert not is_complete(data[:size])
        assert server_name(data[:size]) is None
    assert is_complete(data)


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\n\r\n",
                                  b"\x16\x02\x00\x00\x05aaaaa", b"\x17\x03\x03\x00\x01a",
                                  b"\x16\x03\x01\x00\x00", b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
                                  b"\x16\x03\x01\x00\x06\x01\x00\x00\x02\x03\x03"])
def test_anything_else_is_no_hello(data: bytes) -> None:
    assert is_complete(data)
    assert server_name(data) is None
