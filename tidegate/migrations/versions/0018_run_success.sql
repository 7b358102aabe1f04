-- When a run of a scope last ended well: asked once a minute for every job that promises how old that may be. Neither what
-- was told something nor what does single items again counts: it may have left something out.
CREATE INDEX job_run_succeeded ON tidegate.job_run (job, tenant, brand, finished_at)
WHERE state = 'done' AND NOT is_replay AND parameters = '{}';
