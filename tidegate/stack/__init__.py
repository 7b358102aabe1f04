"""Real servers on one machine for `tidegate dev`, the demo and the tests; `tidegate[dev]` holds what it needs."""
