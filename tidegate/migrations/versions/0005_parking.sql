-- Parked events.
SELECT 1;
