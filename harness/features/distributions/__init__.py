"""The whole distribution of the latencies of each arm, and latency over load.

The cells of a run store a histogram of each arm with few bins (`CellRecord.histograms`). For each workload, the report
draws percentiles up to the last ten I/Os, the histograms below each other, and mean and p99 over the achieved
throughput. A table has the same figures.
"""
