"""Hostile agents: what they try, in which confinement it must fail, and what honest agents need to go on doing."""
