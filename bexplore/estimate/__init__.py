"""Times of kernels on a named device by a model, without running them: what they take, and how wrong that may be."""
