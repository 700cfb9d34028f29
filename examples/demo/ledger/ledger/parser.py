"""From text to a journal; errors name the line."""

from __future__ import annotations

import datetime
import re

from ledger.amounts import Amount, AmountError, Total
from ledger.model import Journal, Posting, Transaction

HEADING = re.compile(r"(\d{4}-\d{2}-\d{2})\s+(\*\s+)?([^|]+?)\s*(?:\|\s*(.*))?")
POSTING = re.compile(r"([a-z][\w:-]*)(?:\s{2,}(\S.*))?")


class ParseError(ValueError):
    """A journal is malformed; `line` counts from 1."""

    def __init__(self, line, why):
        super().__init__(f"line {line}: {why}")
        self.line = line


def parse(text: str) -> Journal:
    """Read a whole journal; raise ParseError at the first line that does not fit."""
    journal = Journal()
    for block in blocks(text):
        journal.transactions.append(parse_transaction(block))
    return journal


def blocks(text):
    """Split into paragraphs of (line number, text) without comments and blank lines."""
    block: list[tuple[int, str]] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = strip_comment(raw)
        if line:
            block.append((number, line))
        elif not raw.strip() and block:
            yield block
            block = []
    if block:
        yield block


def strip_comment(line):
    return line.split(";", 1)[0].rstrip()


def parse_transaction(block: list[tuple[int, str]]) -> Transaction:
    """Read a heading and its postings, and fill in the one amount that may be missing."""
    (number, heading), *lines = block
    match = HEADING.fullmatch(heading)
    if match is None:
        raise ParseError(number, f"expected a date and a payee, found {heading!r}")
    date, mark, payee, note = match.groups()
    postings = balance_postings(number, [parse_posting(*line) for line in lines])
    return Transaction(parse_date(number, date), payee, note or "", bool(mark), tuple(postings), number)


def parse_date(number, text):
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise ParseError(number, str(error)) from None


def parse_posting(number: int, line: str) -> tuple[str, Amount | None]:
    """Read `account  amount`; the amount may be missing."""
    match = POSTING.fullmatch(line.strip())
    if match is None or not line.startswith(" "):
        raise ParseError(number, f"expected an indented posting, found {line!r}")
    account, text = match.groups()
    try:
        return account, Amount.parse(text) if text else None
    except AmountError as error:
        raise ParseError(number, str(error)) from None


def balance_postings(number: int, postings: list[tuple[str, Amount | None]]) -> list[Posting]:
    """Give the posting without an amount what is left over; refuse a transaction that does not sum up to zero."""
    total = Total()
    missing = 0
    for _, amount in postings:
        if amount is None:
            missing += 1
        else:
            total.add(amount)
    if len(postings) < 2 or missing > 1:
        raise ParseError(number, "a transaction needs two postings, at most one of them without an amount")
    rest = total.amounts()
    if rest and not missing:
        raise ParseError(number, f"the postings do not balance, {rest[0]} is left over")
    filled = -rest[0] if rest else Amount(0)
    return [Posting(account, filled if amount is None else amount) for account, amount in postings]
