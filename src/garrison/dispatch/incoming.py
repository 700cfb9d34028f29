"""Incoming work: the ref under which home keeps what it fetches of a claim.

It is one of its own for each claim, `refs/garrison/incoming/HOST/RUN/NODE/ATTEMPT-CLAIM`. It is not read by its name:
the run takes the commit that an accepted result names. So what a worker made that lost its claim is beside that of its
successor, and lands nowhere. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.records.hosts import check_host

if TYPE_CHECKING:
    from garrison.dispatch.records import Token

NAMESPACE = "refs/garrison/incoming"


def incoming_ref(host: str, token: Token) -> str:
    return (f"{NAMESPACE}/{check_host(host)}/{token.id.run}/{token.id.node}/"
            f"{token.id.number}-{token.claim}")
