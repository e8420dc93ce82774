"""What both sides of the pipe between explorer and worker share."""
