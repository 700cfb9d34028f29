"""Journals as text for people."""

from __future__ import annotations

from ledger.balance import balances, running
from ledger.model import Journal


def balance_report(journal: Journal, depth: int | None = None) -> str:
    """One line an account with what it holds; empty accounts are left out."""
    rows = []
    for account, total in balances(journal, depth).items():
        for amount in total.amounts():
            rows.append((str(amount), account))
    return table(rows)


def register_report(journal: Journal, account: str) -> str:
    """Each posting to the account or below it, with the running total."""
    rows = []
    for transaction, posting, total in running(journal, account):
        held = ", ".join(str(amount) for amount in total.amounts()) or "0.00"
        rows.append((str(transaction.date), str(posting.amount), held, transaction.payee))
    return table(rows)


def table(rows):
    """Columns of equal width; numbers to the right, the last column as it is."""
    if not rows:
        return "(nothing)"
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(format_row(row, widths) for row in rows)


def format_row(row, widths):
    *cells, last = row
    return "  ".join([cell.rjust(width) for cell, width in zip(cells, widths[:-1], strict=True)] + [last])
