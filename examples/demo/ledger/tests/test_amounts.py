import unittest

from ledger.amounts import Amount, AmountError, Total


class AmountTest(unittest.TestCase):
    def test_reads_units_and_cents(self):
        self.assertEqual(Amount.parse("12"), Amount(1200))
        self.assertEqual(Amount.parse("0.5"), Amount(50))
        self.assertEqual(Amount.parse("-1,234.50"), Amount(-123450))

    def test_refuses_what_is_no_amount(self):
        for text in ("", "1.234", "1,23", "--1", "ten", "1.2.3"):
            with self.subTest(text), self.assertRaises(AmountError):
                Amount.parse(text)

    def test_prints_what_it_reads(self):
        for text in ("0.00", "12.05", "-0.07", "1,234,567.89"):
            with self.subTest(text):
                self.assertEqual(str(Amount.parse(text)), text)

    def test_negation(self):
        self.assertEqual(-Amount(5), Amount(-5))


class TotalTest(unittest.TestCase):
    def test_sums_up(self):
        total = Total()
        for cents in (100, 250, -50):
            total.add(Amount(cents))
        self.assertEqual(total.amounts(), [Amount(300)])

    def test_zero_has_no_amounts(self):
        total = Total()
        self.assertTrue(total.is_zero())
        total.add(Amount(7))
        total.add(Amount(-7))
        self.assertTrue(total.is_zero())
