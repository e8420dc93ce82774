"""Small trainings with real packages: for each family of configurations the file that its package reads."""
