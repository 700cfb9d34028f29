"""Forges: pull requests, checks, reviews and issues on GitHub, GitLab, Gitea and Forgejo.

`client.Forge` is what garrison needs from a forge, `model` has the records that it returns, `errors` the ways in which
a call fails. `github`, `gitlab` and `gitea` contain the differences, `transport` sends the requests.
"""
