"""The protocol of the pipe between explorer and worker, which both sides share."""
