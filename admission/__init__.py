"""Admission: weighted permits that return exactly once, whatever happens to the caller."""
