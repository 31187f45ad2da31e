"""lockapp beside its peers, in one run, as ratios. Not tests: what a figure misses is printed."""
