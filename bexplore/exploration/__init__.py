"""One whole run of one job: plan, trace, search, finish; its events and its directory."""
