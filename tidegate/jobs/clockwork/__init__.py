"""Jobs by the clock: when they are due, who runs them, and what became of each run."""
