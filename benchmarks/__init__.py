"""What a proven launch costs, beside what people use instead, measured in the same run."""
