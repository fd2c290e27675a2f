"""Published figures that results are shown beside, if a scenario names them by its key `published`, or if they are of
the class of the disk and of the same job.

figures.toml has the data with their sources, figures.py its schema, and which figure belongs to which cell. report.py
shows both. The figures are for comparison only: no verdict, budget or exit status depends on them.
A new figure is a line of figures.toml; a new study or disk is also named in docs/scenarios.md.
"""
