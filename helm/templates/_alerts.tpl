{{/* All alerts: name, expression, how long it has to hold, severity, one sentence. `critical` is for the night, `warning` for
the day. (dict "of" LABELS "rules" VALUES) */}}
{{- define "tidegate.alerts" -}}
{{- $of := .of -}}
- name: TidegateWorkersGone
  severity: critical
  for: 5m
  summary: No worker answers, so that nothing is consumed.
  # What is absent has no labels of its own.
  labels: { {{- $of | replace "=" ": " | replace "," ", " -}} }
  expr: absent(up{ {{- $of -}} } == 1)
- name: TidegatePartitionBlocked
  severity: critical
  for: 2m
  summary: "{{ "{{ $labels.topic }}" }} {{ "{{ $labels.partition }}" }} of {{ "{{ $labels.job }}" }} has stopped and waits for a person."
  expr: max by (namespace, service, job, topic, partition) (tidegate_partition_blocked{ {{- $of -}} }) == 1
- name: TidegateJobStuck
  severity: critical
  for: 5m
  summary: "{{ "{{ $labels.topic }}" }} {{ "{{ $labels.partition }}" }} of {{ "{{ $labels.job }}" }} is behind and not fetched."
  expr: max by (namespace, service, job, topic, partition) (tidegate_partition_stalled{ {{- $of -}} }) == 1
- name: TidegateBacklog
  severity: warning
  for: 10m
  summary: "{{ "{{ $labels.job }}" }} is {{ "{{ $value | humanizeDuration }}" }} behind."
  expr: >-
    max by (namespace, service, job) (tidegate_seconds_behind{ {{- $of -}} }
    unless on (job, topic, partition) (tidegate_partition_blocked{ {{- $of -}} } == 1)
    unless on (job, topic, partition) (tidegate_partition_paused{ {{- $of -}} } == 1)) > {{ .rules.secondsBehind }}
- name: TidegateFreshnessBurn
  severity: critical
  for: 2m
  summary: "Readers of {{ "{{ $labels.job }}" }} see old data, {{ "{{ $value | humanize }}" }} times what its objective allows."
  expr: >-
    max by (namespace, service, job) (tidegate_freshness_burn_rate{ {{- $of -}} ,window="1h"}) > {{ .rules.freshnessBurn }}
    and on (namespace, service, job)
    max by (namespace, service, job) (tidegate_freshness_burn_rate{ {{- $of -}} ,window="5m"}) > {{ .rules.freshnessBurn }}
- name: TidegateErrorRate
  severity: critical
  for: 5m
  summary: "{{ "{{ $value | humanizePercentage }}" }} of what {{ "{{ $labels.job }}" }} reads becomes dead letters."
  expr: >-
    sum by (namespace, service, job) (rate(tidegate_dead_letters_total{ {{- $of -}} }[10m]))
    / sum by (namespace, service, job) (rate(tidegate_records_total{ {{- $of -}} }[10m])) > {{ .rules.deadLetterRatio }}
- name: TidegateFlood
  severity: critical
  for: 0m
  summary: "{{ "{{ $labels.job }}" }} has stopped a topic, because too many of its records became dead letters."
  expr: sum by (namespace, service, job) (increase(tidegate_flood_stops_total{ {{- $of -}} }[15m])) > 0
- name: TidegateDeadLettersGrow
  severity: warning
  for: 5m
  summary: "{{ "{{ $labels.job }}" }} has {{ "{{ $value }}" }} undecided dead letters more than an hour ago."
  expr: >-
    max by (namespace, service, job) (tidegate_unresolved_letters{ {{- $of -}} })
    - max by (namespace, service, job) (tidegate_unresolved_letters{ {{- $of -}} } offset 1h) > {{ .rules.deadLettersAnHour }}
- name: TidegateDeadLetterForgotten
  severity: warning
  for: 1h
  summary: "A dead letter of {{ "{{ $labels.job }}" }} has waited for {{ "{{ $value | humanizeDuration }}" }}."
  expr: max by (namespace, service, job) (tidegate_oldest_unresolved_letter_seconds{ {{- $of -}} }) > {{ mulf .rules.deadLetterDays 86400 | int64 }}
- name: TidegateParkingFull
  severity: critical
  for: 2m
  summary: "{{ "{{ $labels.topic }}" }} {{ "{{ $labels.partition }}" }} of {{ "{{ $labels.job }}" }} rests: no more events can be parked behind a dead letter."
  expr: max by (namespace, service, job, topic, partition) (tidegate_partition_parking_full{ {{- $of -}} }) == 1
- name: TidegateDependencyAway
  severity: critical
  for: 5m
  summary: "{{ "{{ $labels.job }}" }} rests, because {{ "{{ $labels.dependency }}" }} does not answer."
  expr: max by (namespace, service, job, dependency) (tidegate_breaker_open{ {{- $of -}} }) == 1
- name: TidegateOutboxStuck
  severity: critical
  for: 5m
  summary: "What jobs publish has not reached Kafka for {{ "{{ $value | humanizeDuration }}" }}."
  expr: max by (namespace, service) (tidegate_outbox_oldest_seconds{ {{- $of -}} }) > 300
- name: TidegateOutboxSetAside
  severity: warning
  for: 5m
  summary: "Kafka will never take {{ "{{ $value }}" }} records of the outbox."
  expr: max by (namespace, service) (tidegate_outbox_set_aside{ {{- $of -}} }) > 0
- name: TidegateLetterBacklogFull
  severity: critical
  for: 2m
  summary: "{{ "{{ $labels.job }}" }} rests: too many of its dead letters wait for their topic."
  expr: max by (namespace, service, job) (tidegate_letter_backlog_full{ {{- $of -}} }) == 1
- name: TidegateRunsWait
  severity: critical
  for: 15m
  summary: "Runs of {{ "{{ $labels.job }}" }} are due, and nobody works on them."
  expr: max by (namespace, service, job) (tidegate_runs_due{ {{- $of -}} }) > 0
- name: TidegateRunsFail
  severity: warning
  for: 0m
  summary: "A run of {{ "{{ $labels.job }}" }} has failed or its process is gone."
  expr: sum by (namespace, service, job) (increase(tidegate_runs_total{ {{- $of -}} ,outcome=~"failed|stalled"}[1h])) > 0
- name: TidegateItemsFail
  severity: warning
  for: 0m
  summary: "Runs of {{ "{{ $labels.job }}" }} could not do items, which failed or are quarantined."
  expr: sum by (namespace, service, job) (increase(tidegate_run_items_total{ {{- $of -}} ,outcome="failed"}[1h])) > 0
- name: TidegateRunsHeldUp
  severity: warning
  for: 30m
  summary: "Runs of {{ "{{ $labels.job }}" }} wait for the lock of another run all the time."
  expr: sum by (namespace, service, job) (increase(tidegate_run_lock_contention_total{ {{- $of -}} }[10m])) > 0
- name: TidegateRunsLate
  severity: warning
  for: 5m
  summary: "No run of {{ "{{ $labels.job }}" }} has ended well for {{ "{{ $value | humanizeDuration }}" }}, which is longer than it promises."
  expr: >-
    time() - max by (namespace, service, job) (tidegate_run_last_success_timestamp_seconds{ {{- $of -}} })
    > on (namespace, service, job) max by (namespace, service, job) (tidegate_freshness_sla_seconds{ {{- $of -}} })
- name: TidegateInboxUpkeepLate
  severity: warning
  for: 1h
  summary: "The inbox has not been swept for {{ "{{ $value | humanizeDuration }}" }}."
  expr: time() - max by (namespace, service) (tidegate_inbox_upkeep_succeeded_timestamp_seconds{ {{- $of -}} }) > 93600
{{- end -}}
