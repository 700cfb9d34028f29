"""Dispatch by Temporal: one workflow an attempt, with one activity that a worker holds by heartbeats.

Needs the extra `garrison[hosts]`. Nothing outside this package imports the Temporal SDK.
"""
