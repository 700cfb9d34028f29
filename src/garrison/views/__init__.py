"""Read models and views of runs, for the command line, the live screen, the web page and metrics.

`event_log` reads journals, `run_model` replays them, `run_view` adds the current records and processes; the others
build on these. Views only read: they write nothing and render nothing.
"""
