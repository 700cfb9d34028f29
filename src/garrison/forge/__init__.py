"""Forges: pull requests, checks, reviews and issues on GitHub, GitLab, Gitea and Forgejo.

`client.Forge` is what garrison needs of a forge, `model` the records that it returns, `errors` the ways in which a call
fails. `github`, `gitlab` and `gitea` say what each does in its own way, `transport` sends the requests.
"""
