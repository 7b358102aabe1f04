-- Tokens and the audit.
SELECT 1;
