"""The command line; errors are one line on stderr and exit code 1."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

from ledger.model import Journal
from ledger.parser import parse
from ledger.report import balance_report, register_report


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(prog="ledger", description="plain-text double-entry bookkeeping")
    parser.add_argument("-f", "--file", default="-", help="journal to read (default: standard input)")
    parser.add_argument("--from", dest="first", type=datetime.date.fromisoformat, metavar="DATE")
    parser.add_argument("--to", dest="last", type=datetime.date.fromisoformat, metavar="DATE")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    balance = commands.add_parser("balance", help="what each account holds")
    balance.add_argument("--depth", type=int, help="cut account names to so many parts")
    balance.set_defaults(run=run_balance)

    register = commands.add_parser("register", help="each posting to an account")
    register.add_argument("account")
    register.set_defaults(run=run_register)

    accounts = commands.add_parser("accounts", help="names of all accounts")
    accounts.set_defaults(run=run_accounts)

    check = commands.add_parser("check", help="read the journal and say how many transactions it has")
    check.set_defaults(run=run_check)

    return parser


def run_balance(journal: Journal, options: argparse.Namespace) -> str:
    """`ledger balance`."""
    return balance_report(journal, options.depth)


def run_register(journal, options):
    return register_report(journal, options.account)


def run_accounts(journal, _options):
    return "\n".join(journal.accounts())


def run_check(journal, _options):
    return f"{len(journal.transactions)} transactions balance"


def read_text(name):
    return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 for a bad journal, 2 for bad usage."""
    options = build_parser().parse_args(arguments)
    try:
        journal = parse(read_text(options.file)).between(options.first, options.last)
        print(options.run(journal, options))
    except (ValueError, OSError) as error:
        print(f"ledger: {error}", file=sys.stderr)
        return 1
    return 0
