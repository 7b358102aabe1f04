"""Applications built on Tidegate, as a user would build them."""
