"""Hosts and addresses that the proxy admits."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from garrison.errors import UsageError
from garrison.sandbox.proxy.allowed_hosts import (
    HostRights,
    RefusedHost,
    describe_permission,
    entry_for,
    find_rule,
    forbidden_reason,
    normalize_host,
    parse_rules,
    permitted_addresses,
)


@pytest.mark.parametrize(("entry", "host", "port", "admitted"), [
    ("pypi.org", "pypi.org", 443, True), ("pypi.org", "pypi.org", 80, True), ("pypi.org", "pypi.org", 8443, False),
    ("PyPI.org", "pypi.org", 443, True), ("pypi.org", "a.pypi.org", 443, False), ("pypi.org", "xpypi.org", 443, False),
    ("*.pypi.org", "a.pypi.org", 443, True), ("*.pypi.org", "pypi.org", 443, False),
    ("*.pypi.org", "a.b.pypi.org", 443, True), ("*.pypi.org", "xpypi.org", 443, False),
    ("git.example:8443", "git.example", 8443, True), ("git.example:8443", "git.example", 443, False),
    ("git.example:*", "git.example", 22, True), ("*", "anything.example", 443, True), ("*", "10.0.0.1", 443, False),
    ("10.0.0.1:5432", "10.0.0.1", 5432, True), ("[fd00::1]:80", "fd00::1", 80, True), ("fd00::1", "fd00::1", 443, True),
    ("default", "registry.npmjs.org", 443, True), ("default", "github.com", 443, False)])
def test_an_entry_admits_its_hosts_and_ports(entry: str, host: str, port: int, admitted: bool) -> None:
    assert (find_rule(parse_rules([entry]), host, port) is not None) is admitted


@pytest.mark.parametrize("entry", ["", "http://pypi.org", "a b", "pypi.org:0", "pypi.org:99999", "pypi.org:x",
                                   "pypi.org/x", "*pypi.org", "a.*.org", "127.1", "private", "public pypi.org",
                                   "-x.org"])
def test_a_malformed_entry_is_refused_by_name(entry: str) -> None:
    with pytest.raises(UsageError, match="hosts: "):
        parse_rules([entry])


@pytest.mark.parametrize(("text", "host"), [
    ("PyPI.org", "pypi.org"), ("pypi.org.", "pypi.org"), ("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("0:0::1", "::1"),
    ("2130706433", ""), ("127.1", ""), ("0x7f.0.0.1", ""), ("0x7f000001", ""), ("fe80::1%eth0", ""), ("a..b", ""),
    ("pypi.org..", ""), ("p\u0443pi.org", ""), ("a" * 64 + ".org", ""), ("", ""), (".", ""), ("a/b", "")])
def test_a_host_has_one_form(text: str, host: str) -> None:
    assert normalize_host(text) == host


@pytest.mark.parametrize("address", [
    "127.0.0.1", "127.255.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.1.1", "169.254.169.254", "0.0.0.0",
    "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1", "168.63.129.16", "::", "::1",
    "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1",
    "2001:0:7f00:1::", "2001:db8::1", "::ffff:169.254.169.254", "::7f00:1", "64:ff9b:1::7f00:1", "nonsense"])
def test_only_public_addresses_may_be_reached(address: str) -> None:
    assert forbidden_reason(address)
    for public in ("8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "2002:808:808::1"):
        assert forbidden_reason(public) == ""


@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
                                     "2002:a9fe:a9fe::1", "fd00:ec2:0::254"])
def test_a_private_name_reaches_the_users_network_but_no_cloud_metadata(address: str) -> None:
    [rule] = parse_rules(["private db.example"])
    assert permitted_addresses(["10.0.0.1", address], rule) == (["10.0.0.1"], "")
    assert permitted_addresses([address], rule)[1] == "it resolves to a metadata address"
    assert entry_for(normalize_host(address), 80) == ""
    [named] = parse_rules(["169.254.169.254"])
    assert permitted_addresses(["169.254.169.254"], named) == (["169.254.169.254"], "")


@pytest.mark.parametrize(("host", "port", "private", "entry"), [
    ("pypi.org", 443, True, "private pypi.org"), ("example.org", 80, False, "example.org"),
    ("example.org", 8443, False, "example.org:8443"), ("10.1.2.3", 5432, False, "10.1.2.3:5432"),
    ("::1", 443, False, "::1"), ("::1", 8080, False, "[::1]:8080"), ("localhost", 3000, False, "localhost:3000")])
def test_the_entry_offered_for_a_refused_host_admits_it(host: str, port: int, private: bool, entry: str) -> None:
    """Regression: `add "private pypi.org" to hosts`, taken literally, dropped the default list."""
    assert entry_for(host, port, private=private) == entry
    refused = [RefusedHost(f"{host}:{port}", "why", "", "", entry=each) for each in (entry, entry, "")]
    hint = describe_permission(refused, HostRights(Path("/h/config.toml"), ("default", "x.org")))
    assert hint.startswith("to allow it, write this below [sandbox] in /h/config.toml: hosts = [")
    pasted = tomllib.loads(hint.partition("config.toml: ")[2])["hosts"]
    rule = find_rule(parse_rules(pasted), host, port)
    assert rule is not None and rule.private is (private or host != "example.org")
    assert pasted[:2] == ["default", "x.org"]
    assert describe_permission(refused[2:], HostRights()) == entry_for("169.254.169.254", 80) == ""


def test_one_forbidden_address_refuses_a_name() -> None:
    rule = find_rule(parse_rules(["pypi.org"]), "pypi.org", 443)
    assert permitted_addresses(["8.8.8.8", "10.0.0.1"], rule) == ([], "it resolves to a private address")
    assert permitted_addresses(["8.8.8.8", "8.8.8.8"], rule) == (["8.8.8.8"], "")
    assert permitted_addresses([], rule)[1] == "it has no address"
