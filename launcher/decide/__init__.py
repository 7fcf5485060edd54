"""Pure questions with answers: from values to a value, without IO, clock or randomness."""
