"""Searches for the highest load at which a latency stays below a bound: `[search.NAME]` of a scenario.

A search follows the rounds of a group, and has rounds of its own (`measuring.py`). Each measures the arms at rates
that follow from what the rounds before showed (`curve.py`): first at full speed and at shares of it, then between the
fastest rate that keeps the bound and the slowest one that does not. Latency over load is a monotone curve, and the
highest load is where it reaches the bound. `request.py` is the table of a scenario, what the search costs in a plan,
and what results.json has under `searches`; `report.py` is the part of the report.
"""
