"""The user's project: how it is built and tested, a trial of that, and pipeline templates."""
