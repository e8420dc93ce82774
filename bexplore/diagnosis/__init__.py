"""What limits a job, and what to try: rules over what was measured and traced."""
