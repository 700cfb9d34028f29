"""Notify: paired phones, and the services that notify people. Loaded only where they are used.

`devices` keeps what was paired, `push` what a browser gave for pushing to it, `buttons` the one-time answers of a
message, and `services` is the program that sends. Only `services` needs the extra `notify`.
"""
