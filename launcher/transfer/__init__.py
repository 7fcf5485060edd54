"""Moving a run's seed in and its results out: archives, frames, and the clients of the in-pod programs."""
