"""What users need to test their own pipelines without a key and without a network.

`model_server` plays the Messages API from a script, `isolation` runs a command where nothing but the loopback device
exists; the scripted agent (`garrison.agents.scripted`) needs neither. Nothing of garrison imports this room.
"""
