"""Read models and views of runs, for the command line, the live screen, the web page and metrics.

`event_log` reads journals, `run_model` replays them, `run_view` adds what records and the machine show now; the others
are made of these. Views only read: they write nothing and render nothing.
"""
