"""What is known about a run: the record, what may happen to it, and how it is kept."""
