"""Merge processor: drives the merge queue as a supervised process."""
