"""Observations -> the next probe and the recommendation. No torch."""
