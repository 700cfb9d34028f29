"""Forges: pull requests, checks, reviews and issues on GitHub, GitLab, Gitea and Forgejo.

`protocol.Forge` is what garrison needs of a forge, `model` the records that it returns, `errors` the ways in which a
call fails. The clients' libraries are an extra (`garrison[forges]`); a client loads its library when it is opened.
"""
