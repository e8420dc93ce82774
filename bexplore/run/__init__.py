"""What a run keeps and answers: its directory, journal and fingerprint, its result and events."""
