"""Whose shop it is: every tenant with each of its brands. Jobs by the clock get a run for each."""

from tidegate import Scope

TENANTS = ("aurora", "borealis", "cascade")
BRANDS = ("classics", "vinyl")
SCOPES = [Scope(tenant, brand) for tenant in TENANTS for brand in BRANDS]
