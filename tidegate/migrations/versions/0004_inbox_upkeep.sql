-- Upkeep of the inbox.
SELECT 1;
