"""The user's project: what it is built and tested with, a first try of that, and pipelines from templates."""
