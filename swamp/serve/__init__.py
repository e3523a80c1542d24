"""`swamp serve`: the orchestrator process. One listener for the API and for workers."""
