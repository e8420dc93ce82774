"""A Runner of the user's own training command: start it with a size, observe its steps, end it."""
