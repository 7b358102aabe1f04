-- SQL of the migrations. Every query is PREPAREd by a test.

-- name: leave_our_schema
-- For this transaction unqualified names mean the service's schemas, also for a role that is called `tidegate`: its own
-- schema ("$user") comes first in the path, and there its tables would stand among ours.
SELECT set_config(
    'search_path',
    coalesce(
        (SELECT string_agg(quote_ident(s), ', ') FROM unnest(current_schemas(false)) AS s WHERE s <> 'tidegate'),
        'public'
    ),
    true
)

-- name: applied_files
-- The files of a service that were run, with the digest each had. $1 service.
SELECT name, sha256
FROM tidegate.user_migration
WHERE service = $1

-- name: record_file
-- A file was run. $1 service, $2 name, $3 digest.
INSERT INTO tidegate.user_migration (service, name, sha256)
VALUES ($1, $2, $3)
