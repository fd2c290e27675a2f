"""The history of runs: one Parquet file per run, its trends and change points."""
