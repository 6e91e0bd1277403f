"""Networks: region graphs laid out as arrays, and parameters as values."""
