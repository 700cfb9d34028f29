"""Read exchange rates from the journal and show balances in one currency. Builds on add_currency."""

from __future__ import annotations

import sys

from steps import Create, Edit, Step, run

RATES = '''\
"""Exchange rates by day."""

from __future__ import annotations

import datetime
from fractions import Fraction

from ledger.amounts import Amount, AmountError


class RateError(AmountError):
    """There is no rate for a conversion."""


class Rates:
    """What one unit of a currency cost in another, from a day on."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], list[tuple[datetime.date, Fraction]]] = {}

    def add(self, day: datetime.date, currency: str, price: Amount) -> None:
        """From `day` on, one unit of `currency` costs `price`; the way back follows from it."""
        if price.cents <= 0:
            raise RateError(f"a rate must be above zero: {price}")
        rate = Fraction(price.cents, 100)
        self._known.setdefault((currency, price.currency), []).append((day, rate))
        self._known.setdefault((price.currency, currency), []).append((day, 1 / rate))

    def convert(self, amount: Amount, target: str) -> Amount:
        """The amount in the target currency at the latest rate, rounded half to even."""
        if amount.currency == target:
            return amount
        known = self._known.get((amount.currency, target))
        if not known:
            raise RateError(f"no rate from {amount.currency or 'amounts without currency'} to {target}")
        _, rate = max(known, key=lambda each: each[0])
        return Amount(round(amount.cents * rate), target)
'''

TESTS = '''\
import contextlib
import datetime
import io
import unittest
from unittest import mock

from ledger.amounts import Amount
from ledger.cli import build_parser, main
from ledger.parser import ParseError, parse
from ledger.rates import RateError, Rates
from ledger.report import balance_report

JOURNAL = """\\
P 2024-03-01 USD 0.80 EUR
P 2024-03-09 USD 0.50 EUR

2024-03-02 Hotel
    expenses:trip   80.00 USD
    assets:card

2024-03-03 Bakery
    expenses:food   12.40 EUR
    assets:card
"""


class RatesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.rates = Rates()
        self.rates.add(datetime.date(2024, 3, 1), "USD", Amount(80, "EUR"))

    def test_both_ways(self) -> None:
        self.assertEqual(self.rates.convert(Amount(1000, "USD"), "EUR"), Amount(800, "EUR"))
        self.assertEqual(self.rates.convert(Amount(800, "EUR"), "USD"), Amount(1000, "USD"))
        self.assertEqual(self.rates.convert(Amount(5, "EUR"), "EUR"), Amount(5, "EUR"))

    def test_unknown(self) -> None:
        with self.assertRaisesRegex(RateError, "no rate from CHF to EUR"):
            self.rates.convert(Amount(1, "CHF"), "EUR")

    def test_zero_is_no_rate(self) -> None:
        with self.assertRaises(RateError):
            self.rates.add(datetime.date(2024, 3, 1), "USD", Amount(0, "EUR"))


class ReportTest(unittest.TestCase):
    def test_latest_rate_counts(self) -> None:
        lines = balance_report(parse(JOURNAL), target="EUR").splitlines()
        self.assertEqual(lines, ["-52.40 EUR  assets:card", " 12.40 EUR  expenses:food", " 40.00 EUR  expenses:trip"])

    def test_without_target_nothing_changes(self) -> None:
        self.assertIn("80.00 USD", balance_report(parse(JOURNAL)))

    def test_dates_keep_the_rates(self) -> None:
        out = io.StringIO()
        with mock.patch("sys.stdin", io.StringIO(JOURNAL)), contextlib.redirect_stdout(out):
            self.assertEqual(main(["--to", "2024-03-02", "balance", "--in", "EUR"]), 0)
        self.assertIn("40.00 EUR", out.getvalue())

    def test_bad_rate_names_its_line(self) -> None:
        with self.assertRaisesRegex(ParseError, "line 1: expected a rate"):
            parse("P 2024-03-01 dollar 1\\n")

    def test_option(self) -> None:
        self.assertEqual(build_parser().parse_args(["balance", "--in", "EUR"]).target, "EUR")
'''

PARSE_RATE = '''\
def parse_rate(number: int, line: str, rates: Rates) -> None:
    """Read `P DATE CURRENCY PRICE`."""
    match = RATE.fullmatch(line)
    if match is None:
        raise ParseError(number, f"expected a rate such as `P 2024-03-01 USD 0.80 EUR`, found {line!r}")
    date, currency, price = match.groups()
    try:
        rates.add(parse_date(number, date), currency, Amount.parse(price))
    except AmountError as error:
        raise ParseError(number, str(error)) from None


'''

CONVERTED = '''\
def converted(total: Total, rates: Rates, target: str | None) -> list[Amount]:
    """The amounts of a total, summed up in the target currency if there is one."""
    if target is None:
        return total.amounts()
    whole = Total()
    for amount in total.amounts():
        whole.add(rates.convert(amount, target))
    return whole.amounts()


'''

STEPS = [
    Step("Exchange rates", [Create("ledger/rates.py", RATES)]),
    Step(
        "Read rates from the journal",
        [
            Edit(
                "ledger/model.py",
                "from ledger.amounts import Amount\n",
                "from ledger.amounts import Amount\nfrom ledger.rates import Rates\n",
            ),
            Edit(
                "ledger/model.py",
                "    transactions: list[Transaction] = field(default_factory=list)\n",
                "    transactions: list[Transaction] = field(default_factory=list)\n"
                "    rates: Rates = field(default_factory=Rates)\n",
            ),
            Edit("ledger/model.py", "        return Journal(kept)\n", "        return Journal(kept, self.rates)\n"),
            Edit(
                "ledger/parser.py",
                "from ledger.model import Journal, Posting, Transaction\n",
                "from ledger.model import Journal, Posting, Transaction\nfrom ledger.rates import Rates\n",
            ),
            Edit(
                "ledger/parser.py",
                "POSTING = re.compile",
                'RATE = re.compile(r"P\\s+(\\d{4}-\\d{2}-\\d{2})\\s+([A-Z]{3})\\s+(\\S+\\s+[A-Z]{3})")\n'
                "POSTING = re.compile",
            ),
            Edit(
                "ledger/parser.py",
                "        journal.transactions.append(parse_transaction(block))\n",
                '        if block[0][1].startswith("P "):\n'
                "            for number, line in block:\n"
                "                parse_rate(number, line, journal.rates)\n"
                "        else:\n"
                "            journal.transactions.append(parse_transaction(block))\n",
            ),
            Edit("ledger/parser.py", "def parse_transaction(", PARSE_RATE + "def parse_transaction("),
        ],
    ),
    Step(
        "Balances in one currency",
        [
            Edit(
                "ledger/report.py",
                "from ledger.balance import balances, running\nfrom ledger.model import Journal\n",
                "from ledger.amounts import Amount, Total\n"
                "from ledger.balance import balances, running\n"
                "from ledger.model import Journal\n"
                "from ledger.rates import Rates\n",
            ),
            Edit(
                "ledger/report.py",
                "def balance_report(journal: Journal, depth: int | None = None) -> str:\n",
                "def balance_report(journal: Journal, depth: int | None = None, target: str | None = None) -> str:\n",
            ),
            Edit(
                "ledger/report.py",
                "        for amount in total.amounts():\n            rows",
                "        for amount in converted(total, journal.rates, target):\n            rows",
            ),
            Edit("ledger/report.py", "def register_report(", CONVERTED + "def register_report("),
        ],
    ),
    Step(
        "Option --in of the balance command",
        [
            Edit(
                "ledger/cli.py",
                '    balance.add_argument("--depth", type=int, help="cut account names to so many parts")\n',
                '    balance.add_argument("--depth", type=int, help="cut account names to so many parts")\n'
                '    balance.add_argument("--in", dest="target", metavar="CURRENCY", help="at the latest rates")\n',
            ),
            Edit(
                "ledger/cli.py",
                "    return balance_report(journal, options.depth)\n",
                "    return balance_report(journal, options.depth, options.target)\n",
            ),
            Create("tests/test_convert.py", TESTS),
            Edit(
                "README.md",
                "python3 -m ledger -f sample.journal balance --depth 1\n",
                "python3 -m ledger -f sample.journal balance --depth 1\n"
                "python3 -m ledger -f sample.journal balance --in EUR     # rates: `P 2024-03-01 USD 0.92 EUR`\n",
            ),
        ],
    ),
]

if __name__ == "__main__":
    sys.exit(run("convert_report", STEPS))
