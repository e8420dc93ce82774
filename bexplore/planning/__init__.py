"""From a size to a plan: how long a training takes, on how many devices, what it costs, and what holds it back."""
