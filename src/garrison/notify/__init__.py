"""Notify: paired phones, and the services that deliver notifications. Loaded only when used.

`devices` stores paired devices, `push` the Web Push subscription of a browser, `buttons` the one-time answers of a
message; `services` is the program that sends. Only `services` needs the extra `notify`.
"""
