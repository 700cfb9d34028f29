"""What each account holds."""

from __future__ import annotations

from ledger.amounts import Total
from ledger.model import Journal


def balances(journal: Journal, depth: int | None = None) -> dict[str, Total]:
    """Sum up every account, cut to `depth` parts of its name if that is given; sorted by name."""
    totals: dict[str, Total] = {}
    for transaction in journal.transactions:
        for posting in transaction.postings:
            totals.setdefault(cut(posting.account, depth), Total()).add(posting.amount)
    return dict(sorted(totals.items()))


def cut(account, depth):
    return account if depth is None else ":".join(account.split(":")[:depth])


def running(journal: Journal, account: str):
    """Yield (transaction, posting, total so far) for each posting to the account or below it."""
    total = Total()
    for transaction in journal.transactions:
        for posting in transaction.postings:
            if posting.is_under(account):
                total.add(posting.amount)
                yield transaction, posting, total
