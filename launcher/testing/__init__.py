"""A cluster in memory, its node, and ordered faults: what tests of launchers run on, ours and those of others."""
