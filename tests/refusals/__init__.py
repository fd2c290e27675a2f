"""Everything that keeps the guard from letting a disk be written to, each on a real device: see `catalogue`."""
