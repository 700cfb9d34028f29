"""Pull requests: how a branch becomes one, is followed on its forge, and lands."""
