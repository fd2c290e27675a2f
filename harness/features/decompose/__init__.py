"""Decompositions split the latency between the bare host and a guest into steps: `[decompose.NAME]` of a scenario.

A step is an arm of the scenario that differs from the arm before it in one thing, which `records.py` checks and names.
Each step is a contrast of two arms in the blocks that all arms of the decomposition share, so the steps add up to the
whole (results.json has them under `decompositions`). `report.py` shows them as a waterfall. All cells of a scenario
with decompositions get the same rounds.
"""
