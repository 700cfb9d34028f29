"""Pull requests: open one for a branch, follow it on its forge, and land it."""
