"""The comparison of runs, and baselines to compare with.

`virt-overhead compare` and `--baseline` of a measurement find the cells of two runs that belong together and what else
differs between the runs, estimate the change of each arm and judge it among all that are compared (comparison.py).
records.py is the JSON document, words.py says it in words for a terminal and as Markdown, page.py as a page.
`virt-overhead baseline` names a run (command.py).
"""
