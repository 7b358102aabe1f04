"""What changes state by hand asks for permission; the rest is the road's own and is named here."""

from __future__ import annotations

from tests.architecture.changes import Function, changing_queries, guarded_changes, unguarded_changes, used_queries
from tidegate_kernel.permissions import LEAST_ROLE, NEEDS_REASON, Action, Role

# Statements that nobody decides: consumers, relay and upkeep run them by themselves, or whoever holds the credentials
# of the database deploys with them.
WORKERS_OWN = {
    ("consumers/backfill_lease.py", "BackfillLease.finish"): "the work's own end",
    ("consumers/backfill_lease.py", "BackfillLease.release"): "a stopped process lets others resume",
    ("consumers/backfill_lease.py", "BackfillLease.renew"): "the lease of work that was permitted when it began",
    ("consumers/flood.py", "Floods.note"): "a worker stops what floods it",
    ("consumers/positions.py", "Positions.begin_newcomers"): "the first position of a partition that was added",
    ("consumers/positions.py", "Positions.note_attempt"): "a suspect record is counted before it is begun",
    ("consumers/positions.py", "Positions.note_group"): "suspect records are counted before they are begun",
    ("consumers/positions.py", "Positions.release"): "an owner that leaves in order",
    ("consumers/positions.py", "Positions.take_over"): "an owner takes what the group assigned",
    ("consumers/positions.py", "Positions.withdraw_attempt"): "a suspect record was not begun after all",
    ("consumers/positions.py", "advance"): "the settle",
    ("consumers/positions.py", "write_positions"): "the first position of a partition",
    ("consumers/presence.py", "Presence.tell"): "an owner says how it is",
    ("consumers/ranges.py", "begin_range"): "a stable batch is noted before it is applied",
    ("dlq/corrections.py", "keep_discards"): "part of a run that was permitted when it began",
    ("dlq/forgetting/upkeep.py", "LetterUpkeep._step"): "upkeep, by the policy of whoever deploys",
    ("dlq/letters.py", "record_dead_letters"): "the settle",
    ("dlq/parking.py", "park"): "the settle",
    ("dlq/runs/work.py", "decide"): "the work of a run that was permitted when it began",
    ("dlq/runs/work.py", "end"): "the run's own end",
    ("dlq/runs/work.py", "hold"): "the lease of a run that was permitted when it began",
    ("dlq/sequences/links.py", "put_in_place"): "the work of a run that was permitted when it began",
    ("dlq/sequences/links.py", "take_out"): "the work of a run that was permitted when it began",
    ("inbox/days.py", "attach_days"): "upkeep",
    ("inbox/days.py", "drop_day"): "upkeep",
    ("inbox/days.py", "empty_day"): "upkeep",
    ("inbox/store.py", "claim"): "the settle",
    ("inbox/store.py", "claim_and_settle"): "the settle",
    ("inbox/store.py", "claim_by_hand"): "the work of a run that was permitted when it began",
    ("inbox/store.py", "keep_horizon"): "a worker's start tells upkeep its job's horizon",
    ("inbox/store.py", "register_job"): "a worker's start numbers its job",
    ("inbox/sweep.py", "sweep"): "upkeep",
    ("inbox/upkeep.py", "InboxUpkeep._end"): "upkeep",
    ("inbox/upkeep.py", "InboxUpkeep._take"): "upkeep",
    ("projections/visibility.py", "Visibility.clear_trouble"): "a refresher tells what readers see",
    ("projections/visibility.py", "Visibility.note_trouble"): "a refresher tells what readers do not see",
    ("projections/visibility.py", "Visibility.show"): "a refresher tells what readers see",
    ("projections/folds/dirty.py", "DirtyKeys.clear"): "a renderer has rendered",
    ("projections/folds/dirty.py", "DirtyKeys.give_back"): "a renderer has not rendered",
    ("projections/folds/dirty.py", "DirtyKeys.rest"): "a renderer could not render",
    ("projections/folds/dirty.py", "DirtyKeys.retry"): "a new release tries what an old one could not",
    ("projections/folds/dirty.py", "DirtyKeys.take"): "a renderer takes what it renders",
    ("projections/folds/states.py", "lock_states"): "the settle",
    ("projections/folds/states.py", "write_states"): "the settle",
    ("tidegate/jobs/clockwork/history.py", "History.forget"): "upkeep, by the policy of the job",
    ("tidegate/jobs/clockwork/provider/cursor.py", "forget_replaced"): "the run's own end",
    ("tidegate/jobs/clockwork/provider/cursor.py", "move_cursor"): "the run's own end",
    ("tidegate/jobs/clockwork/provider/gate.py", "Gate.admit"): "a run takes its place among those that call",
    ("tidegate/jobs/clockwork/provider/gate.py", "Gate.answered"): "the provider answered a run",
    ("tidegate/jobs/clockwork/provider/gate.py", "Gate.failed"): "the provider did not answer a run",
    ("tidegate/jobs/clockwork/provider/gate.py", "Gate.pause"): "the provider wants to be left alone",
    ("tidegate/jobs/clockwork/runs.py", "claim_runs"): "a process takes what the schedule made due",
    ("tidegate/jobs/clockwork/runs.py", "end_run"): "the run's own end",
    ("tidegate/jobs/clockwork/runs.py", "end_stalled"): "a run whose process is gone",
    ("tidegate/jobs/clockwork/runs.py", "give_back_items"): "the run's own end",
    ("tidegate/jobs/clockwork/runs.py", "put_back"): "a process that leaves lets others go on",
    ("tidegate/jobs/clockwork/runs.py", "retry_run"): "by the policy of the job",
    ("tidegate/jobs/clockwork/runs.py", "settle_unit"): "the settle",
    ("tidegate/jobs/clockwork/scheduler.py", "Scheduler._insert"): "what the schedule makes due",
    ("tidegate/jobs/clockwork/scheduler.py", "Scheduler._make_runs_of"): "what the schedule has made due",
    ("tidegate/jobs/clockwork/scheduler.py", "Scheduler.begin"): "a worker's start tells since when a job is due",
    ("tidegate/jobs/clockwork/letters.py", "give_up"): "the settle",
    ("tidegate/jobs/clockwork/units.py", "Units.miss"): "the settle",
    ("tidegate/jobs/clockwork/units.py", "Units._take"): "the settle",
    ("tidegate/jobs/relay.py", "OutboxRelay._relay"): "the relay",
    ("tidegate/migrations/service.py", "ServiceMigrations._run"): "a deployment, by whoever holds the credentials",
    ("tidegate/testing/driver.py", "Driver.redeliver_all"): "a service's own tests, on a database of theirs",
    ("tidegate_kernel/audit.py", "_write"): "the audit itself",
    ("tidegate_kernel/audit_upkeep.py", "AuditUpkeep._step"): "upkeep, by the policy of whoever deploys",
    ("tidegate_kernel/lease.py", "Lease.release"): "the lease of work that nobody has to ask for",
    ("tidegate_kernel/lease.py", "Lease.renew"): "the lease of work that nobody has to ask for",
    ("tidegate_kernel/lease.py", "Lease.take"): "one worker of many does what all could",
    ("tidegate_kernel/outbox.py", "enqueue"): "what handlers publish, and dead letters",
}


def test_whatever_changes_state_by_hand_asks_for_permission() -> None:
    """A function that forgets it is a way round roles and audit, for every command that will ever call it."""
    strangers = {each for each in unguarded_changes() if each not in WORKERS_OWN}

    assert strangers == set(), "put the change into `async with permitted(...)`, or name it as the road's own"


def test_no_exception_outlives_its_reason() -> None:
    """A name that is listed and gone would let the next function of that name pass unseen."""
    assert {Function(*place) for place in WORKERS_OWN} - unguarded_changes() == set()


def test_every_changing_query_is_followed_to_a_function() -> None:
    """A query that the search loses sight of is one that it cannot judge."""
    assert changing_queries() - used_queries() == set()
    assert len(changing_queries()) > 30, "the search finds what is there"
    assert len(guarded_changes()) >= 8, "the search finds what is there"


def test_every_action_has_a_role_and_the_ones_to_explain_are_actions() -> None:
    """An action without a role would fail at the moment somebody needs it."""
    assert set(LEAST_ROLE) == set(Action)
    assert set(Action) >= NEEDS_REASON
    assert Role.VIEWER not in LEAST_ROLE.values(), "who only looks changes nothing"
