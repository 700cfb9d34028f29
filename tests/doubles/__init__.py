"""Doubles that garrison's own tests use: forges, a process table, a dispatcher and a clock."""
