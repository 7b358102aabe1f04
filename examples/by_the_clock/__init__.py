"""The applications of docs/jobs-by-the-clock.md: three jobs by the clock, each whole in a module of its own."""
