"""Test support for users: run pipelines without a key and without a network.

`model_server` plays the Messages API from a script; `isolation` runs a command with no network but the loopback device;
the scripted agent (`garrison.agents.scripted`) needs neither. No other room imports this one.
"""
