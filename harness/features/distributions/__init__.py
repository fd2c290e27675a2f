"""How the values of a workload spread: the latencies of each arm over its I/Os, latency over load, and block by block.

The cells of a run store a histogram of each arm with few bins (`CellRecord.histograms`). For each workload, the report
draws percentiles up to the last ten I/Os, the histograms below each other, and mean and p99 over the achieved
throughput. A table has the same figures. order.py shows the blocks in the order of time, with their spread and drift.
"""
