"""Outputs of events and results, for people and programs. A sink is called with each event and returns nothing."""
