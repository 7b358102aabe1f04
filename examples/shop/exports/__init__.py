"""What customers asked to have of their data: a row each in Postgres, a file each on disk, both gone after 30 days."""
