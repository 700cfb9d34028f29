"""Hostile agents: what they try, in which confinement it must fail, and what honest agents must still be able to do."""
