-- name: dead_letters
-- All dead letters of a service in the order of their failing. $1 service.
SELECT
    j.code AS job, d.topic, d.partition, d."offset", d.key, d.value, d.header_names, d.header_values, d.event_id,
    d.event_type, d.tenant, d.brand, d.reason, d.error_class, d.error_message, d.handler, d.attempts, d.occurrences,
    d.state
FROM tidegate.dead_letter AS d
JOIN tidegate.job AS j ON j.id = d.job
WHERE j.service = $1
ORDER BY d.first_failed_at, d.topic, d.partition, d."offset", j.code;

-- name: rewind
-- The live positions of these jobs stand at the given offset. $1 job numbers, $2 offset.
UPDATE tidegate.position
SET next_offset = $2
WHERE job = ANY ($1::smallint[]) AND run = 0;
