-- SQL that lets dead letters go. Every query is PREPAREd by a test.

-- name: drop_decided
-- Removes letters that were decided long ago; how many of each job. $1 service, $2 how long they are kept, $3 how many.
SELECT g.code, g.dropped FROM tidegate.drop_decided_letters($1, $2, $3) AS g;

-- name: unresolved_letters
-- How many letters of each job of a service nobody has decided about, and the age of the oldest in seconds; read from an
-- index alone. $1 service, $2 their states.
SELECT
    j.code,
    count(d.state) AS letters,
    coalesce(extract(epoch FROM now() - min(d.first_failed_at)), 0)::float8 AS oldest_seconds
FROM tidegate.job AS j
LEFT JOIN tidegate.dead_letter AS d ON d.job = j.id AND d.state = ANY ($2::text[])
WHERE j.service = $1
GROUP BY j.code;
