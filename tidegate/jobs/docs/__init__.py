"""The document of a job, from its declaration alone: eleven sections in a fixed order, in English or in Russian."""
