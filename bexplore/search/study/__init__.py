"""The Optuna study: ask and tell, its trials, its storage."""
