"""Fold projections: states in Postgres, and the renderer that brings them to a sink."""
