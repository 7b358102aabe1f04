-- SQL of the status. Every query is PREPAREd by a test.

-- name: dead_letters_by_state
-- Dead letters per job and state. $1 service. Generations of a job count together.
SELECT j.code, d.state, count(*) AS letters
FROM tidegate.dead_letter AS d
JOIN tidegate.job AS j ON j.id = d.job
WHERE j.service = $1
GROUP BY j.code, d.state
ORDER BY j.code, d.state
