"""What a journal consists of."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from ledger.amounts import Amount


@dataclass(frozen=True)
class Posting:
    """One amount moved into an account (or out of it, if negative)."""

    account: str
    amount: Amount

    def is_under(self, parent):
        return self.account == parent or self.account.startswith(parent + ":")


@dataclass(frozen=True)
class Transaction:
    """Postings of one day that sum up to zero."""

    date: datetime.date
    payee: str
    note: str
    cleared: bool
    postings: tuple[Posting, ...]
    line: int

    def touches(self, account):
        return any(posting.is_under(account) for posting in self.postings)


@dataclass
class Journal:
    """All transactions in the order of the file."""

    transactions: list[Transaction] = field(default_factory=list)

    def accounts(self) -> list[str]:
        """Names of all accounts, sorted."""
        return sorted({posting.account for each in self.transactions for posting in each.postings})

    def between(self, first, last):
        kept = [each for each in self.transactions if is_between(each.date, first, last)]
        return Journal(kept)


def is_between(day, first, last):
    return (first is None or first <= day) and (last is None or day <= last)
