"""A provider's catalogue, brought here: how it may be called, where a run begins, and what a failed one leaves."""
