"""Testing: run pipelines without a key and without a network.

`model_server` plays the Messages API from a script; `isolation` runs a command where only the loopback device exists.
The scripted agent (`garrison.agents.scripted`) needs neither. No other room imports this one.
"""
