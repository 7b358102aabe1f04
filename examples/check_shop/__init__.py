"""Whether the shop's stores hold what the source says: `python -m examples.check_shop`.

Imports nothing of Tidegate and nothing of the shop: reads the source file and the servers, and states the rules again.
"""
