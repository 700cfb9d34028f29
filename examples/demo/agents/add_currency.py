"""Give every amount a currency, through parser and reports, with tests."""

from __future__ import annotations

import sys

from steps import Create, Edit, Step, run

TESTS = '''\
import unittest

from ledger.amounts import Amount, AmountError, Total
from ledger.balance import balances
from ledger.parser import ParseError, parse
from ledger.report import balance_report


class AmountTest(unittest.TestCase):
    def test_reads_and_prints(self) -> None:
        self.assertEqual(Amount.parse("-1,200.50 USD"), Amount(-120050, "USD"))
        self.assertEqual(str(Amount(1240, "EUR")), "12.40 EUR")
        self.assertEqual(str(Amount(1240)), "12.40")

    def test_refuses_other_names(self) -> None:
        for text in ("1 Euro", "1 eur", "1 EU", "EUR"):
            with self.subTest(text), self.assertRaises(AmountError):
                Amount.parse(text)

    def test_negation_keeps_it(self) -> None:
        self.assertEqual(-Amount(1, "CHF"), Amount(-1, "CHF"))


class TotalTest(unittest.TestCase):
    def test_one_sum_for_each(self) -> None:
        total = Total()
        for cents, currency in ((5, "USD"), (7, "EUR"), (5, "USD")):
            total.add(Amount(cents, currency))
        self.assertEqual(total.amounts(), [Amount(7, "EUR"), Amount(10, "USD")])


class JournalTest(unittest.TestCase):
    def test_missing_amount(self) -> None:
        (trip,) = parse("2024-03-02 Hotel\\n  expenses:trip  80 USD\\n  assets:card\\n").transactions
        self.assertEqual(trip.postings[1].amount, Amount(-8000, "USD"))

    def test_currencies_do_not_balance_each_other(self) -> None:
        with self.assertRaisesRegex(ParseError, "-80.00 EUR, 80.00 USD is left over"):
            parse("2024-03-02 Hotel\\n  expenses:trip  80 USD\\n  assets:card  -80 EUR\\n")

    def test_missing_amount_in_one_currency_only(self) -> None:
        with self.assertRaisesRegex(ParseError, "several currencies"):
            parse("2024-03-02 Hotel\\n  a  80 USD\\n  b  80 EUR\\n  c\\n")

    def test_report(self) -> None:
        journal = parse("2024-03-02 A\\n  a  80 USD\\n  b\\n\\n2024-03-03 B\\n  a  5 EUR\\n  b\\n")
        self.assertEqual(len(balances(journal)["a"].amounts()), 2)
        self.assertEqual(balance_report(journal).splitlines()[0], "  5.00 EUR  a")
'''

STEPS = [
    Step(
        "Amounts carry a currency",
        [
            Edit("ledger/amounts.py", r'(?:\.(\d{1,2}))?")', r'(?:\.(\d{1,2}))?(?:\s+([A-Z]{3}))?")'),
            Edit("ledger/amounts.py", "    cents: int\n", '    cents: int\n    currency: str = ""\n'),
            Edit("ledger/amounts.py", "`12`, `-1,234.50` or `0.5`;", "`12`, `-1,234.50` or `0.5 EUR`;"),
            Edit(
                "ledger/amounts.py",
                "        return cls(parse_cents(*match.groups()))\n",
                "        *number, currency = match.groups()\n"
                '        return cls(parse_cents(*number), currency or "")\n',
            ),
            Edit("ledger/amounts.py", "return Amount(-self.cents)", "return Amount(-self.cents, self.currency)"),
            Edit(
                "ledger/amounts.py",
                "return format_cents(self.cents)",
                'return f"{format_cents(self.cents)} {self.currency}".rstrip()',
            ),
        ],
    ),
    Step(
        "Totals keep one sum for each currency",
        [
            Edit("ledger/amounts.py", "        self._cents = 0\n", "        self._cents: dict[str, int] = {}\n"),
            Edit(
                "ledger/amounts.py",
                "        self._cents += amount.cents\n",
                "        self._cents[amount.currency] = self._cents.get(amount.currency, 0) + amount.cents\n",
            ),
            Edit(
                "ledger/amounts.py",
                '        """The sum as amounts, none if it is zero."""\n'
                "        return [Amount(self._cents)] if self._cents else []\n",
                '        """The sum as one amount for each currency, without those that are zero."""\n'
                "        return [Amount(cents, name) for name, cents in sorted(self._cents.items()) if cents]\n",
            ),
        ],
    ),
    Step(
        "A transaction balances in each of its currencies",
        [
            Edit(
                "ledger/parser.py",
                '        raise ParseError(number, f"the postings do not balance, {rest[0]} is left over")\n',
                '        left = ", ".join(str(amount) for amount in rest)\n'
                '        raise ParseError(number, f"the postings do not balance, {left} is left over")\n'
                "    if len(rest) > 1:\n"
                '        raise ParseError(number, "the missing amount would have several currencies; write it out")\n',
            ),
        ],
    ),
    Step(
        "Test currencies",
        [
            Create("tests/test_currency.py", TESTS),
            Edit(
                "README.md",
                "it takes what makes the transaction balance.\n",
                "it takes what makes the transaction balance.\n"
                "An amount may name its currency (`12.40 EUR`); currencies are summed up apart.\n",
            ),
        ],
    ),
]

if __name__ == "__main__":
    sys.exit(run("add_currency", STEPS))
