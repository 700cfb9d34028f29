"""`garrison doctor` and `garrison clean`: find and repair problems of a home; remove finished runs.

`examine.CHECKS` is the table of all checks. `processes`, `files`, `worktrees` and `machine` gather facts and change
nothing; `findings` decides and is pure; `fixes` is the table of repairs. `cleanup` removes finished runs.
"""
