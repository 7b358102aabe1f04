-- Looking at dead letters.
SELECT 1;
