"""A trial of the shop on real servers: everything that goes wrong in production, in two minutes, with a proof."""
