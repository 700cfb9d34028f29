import unittest

from ledger.balance import balances
from ledger.parser import parse
from ledger.report import balance_report, register_report, table

JOURNAL = parse("""\
2024-03-01 Opening
    assets:bank       1,500.00
    equity:opening

2024-03-04 Landlord
    expenses:home:rent  640.00
    assets:bank

2024-03-05 Grocer
    expenses:home:soap    7.85
    assets:bank
""")


class BalanceTest(unittest.TestCase):
    def test_every_account(self):
        held = {account: str(total.amounts()[0]) for account, total in balances(JOURNAL).items()}
        self.assertEqual(held["assets:bank"], "852.15")
        self.assertEqual(held["expenses:home:rent"], "640.00")

    def test_depth_adds_up_what_lies_below(self):
        held = {account: str(total.amounts()[0]) for account, total in balances(JOURNAL, depth=2).items()}
        self.assertEqual(held["expenses:home"], "647.85")

    def test_the_whole_is_zero(self):
        cents = [amount.cents for total in balances(JOURNAL).values() for amount in total.amounts()]
        self.assertEqual(sum(cents), 0)


class ReportTest(unittest.TestCase):
    def test_balance(self):
        lines = balance_report(JOURNAL, depth=1).splitlines()
        self.assertEqual(lines, ["   852.15  assets", "-1,500.00  equity", "   647.85  expenses"])

    def test_register_runs_on(self):
        lines = register_report(JOURNAL, "assets").splitlines()
        self.assertEqual(lines[1], "2024-03-04   -640.00    860.00  Landlord")
        self.assertEqual(len(lines), 3)

    def test_a_name_is_not_a_prefix(self):
        self.assertEqual(register_report(JOURNAL, "asset"), "(nothing)")

    def test_table(self):
        self.assertEqual(table([("1", "a"), ("10", "b")]), " 1  a\n10  b")
