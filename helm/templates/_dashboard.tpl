{{/* All panels of the dashboard: title, what it answers, unit of Grafana, queries with their legends. They ask for one release;
`$job` is the dashboard's own choice. Whatever every worker tells of all workers is a maximum, what each tells of itself a
sum. (LABELS, as `namespace="…",service="…"`) */}}
{{- define "tidegate.panels" -}}
{{- $release := . -}}
{{- $of := printf "%s,job=~\"$job\"" . -}}
- title: Seconds behind
  told: Age of the oldest record that is not settled, of the partition that is furthest. 0 is caught up.
  unit: s
  queries:
    - {legend: "{{ "{{job}}" }}", expr: 'max by (job) (tidegate_seconds_behind{ {{- $of -}} })'}
- title: Readers are behind
  told: Age of the oldest record that readers do not see, and how old it may be. Projections alone.
  unit: s
  queries:
    - {legend: "{{ "{{job}}" }}", expr: 'max by (job) (tidegate_reader_seconds_behind{ {{- $of -}} })'}
    - {legend: "{{ "{{job}}" }} may be", expr: 'max by (job) (tidegate_freshness_sla_seconds{ {{- $of -}} }) and on (job) max by (job) (tidegate_reader_seconds_behind{ {{- $of -}} })'}
- title: Freshness budget
  told: How fast bad seconds use it up. At 1 it just lasts, at 14.4 a month's is gone in two days.
  unit: none
  queries:
    - {legend: "{{ "{{job}}" }} {{ "{{window}}" }}", expr: 'max by (job, window) (tidegate_freshness_burn_rate{ {{- $of -}} })'}
- title: Records settled
  told: A second, whatever became of them.
  unit: ops
  queries:
    - {legend: "{{ "{{job}}" }}", expr: 'sum by (job) (rate(tidegate_records_total{ {{- $of -}} }[$__rate_interval]))'}
- title: Events
  told: A second, by what became of them. Duplicates are redeliveries that did nothing.
  unit: ops
  queries:
    {{- range $what, $metric := dict "applied" "tidegate_events_applied_total" "duplicate" "tidegate_events_duplicate_total" "parked" "tidegate_events_parked_total" "skipped" "tidegate_events_skipped_total" }}
    - {legend: {{ $what }}, expr: 'sum(rate({{ $metric }}{ {{- $of -}} }[$__rate_interval]))'}
    {{- end }}
    - {legend: batches to be tried again, expr: 'sum(rate(tidegate_batches_held_back_total{ {{- $of -}} }[$__rate_interval]))'}
- title: Batches
  told: From records in hand to settled, 99 of 100.
  unit: s
  queries:
    - {legend: "{{ "{{job}}" }}", expr: 'histogram_quantile(0.99, sum by (le, job) (rate(tidegate_batch_seconds_bucket{ {{- $of -}} }[$__rate_interval])))'}
- title: From event to settled, to seen
  told: Half of all events, and 99 of 100, over all jobs.
  unit: s
  queries:
    {{- range $what, $metric := dict "settled" "tidegate_event_lag_seconds_bucket" "seen" "tidegate_event_visible_seconds_bucket" }}
    {{- range $part := list "0.5" "0.99" }}
    - {legend: "{{ $what }} {{ $part }}", expr: 'histogram_quantile({{ $part }}, sum by (le) (rate({{ $metric }}{ {{- $release -}} }[$__rate_interval])))'}
    {{- end }}
    {{- end }}
- title: Partitions that rest
  told: Blocked ones wait for a person, paused ones were told to, stalled ones should not be.
  unit: none
  queries:
    {{- range $what, $metric := dict "blocked" "tidegate_partition_blocked" "paused" "tidegate_partition_paused" "parking is full" "tidegate_partition_parking_full" "stalled" "tidegate_partition_stalled" }}
    - {legend: "{{ "{{job}}" }} {{ $what }}", expr: 'sum by (job) (max by (job, topic, partition) ({{ $metric }}{ {{- $of -}} })) > 0'}
    {{- end }}
- title: New dead letters
  told: In an hour, by reason.
  unit: none
  queries:
    - {legend: "{{ "{{job}}" }} {{ "{{reason}}" }}", expr: 'sum by (job, reason) (increase(tidegate_dead_letters_total{ {{- $of -}} }[1h])) > 0'}
- title: Undecided dead letters
  told: That nobody has replayed or discarded.
  unit: none
  queries:
    - {legend: "{{ "{{job}}" }}", expr: 'max by (job) (tidegate_unresolved_letters{ {{- $of -}} })'}
- title: Outbox
  told: What jobs have published and Kafka does not have.
  unit: none
  queries:
    - {legend: records, expr: 'max(tidegate_outbox_waiting{ {{- $release -}} })'}
    - {legend: seconds the oldest waits, expr: 'max(tidegate_outbox_oldest_seconds{ {{- $release -}} })'}
- title: Runs by the clock
  told: In an hour, by how they ended; and those that are due.
  unit: none
  queries:
    - {legend: "{{ "{{job}}" }} {{ "{{outcome}}" }}", expr: 'sum by (job, outcome) (increase(tidegate_runs_total{ {{- $of -}} }[1h])) > 0'}
    - {legend: "{{ "{{job}}" }} due", expr: 'max by (job) (tidegate_runs_due{ {{- $of -}} })'}
{{- end -}}

{{/* The dashboard as Grafana reads it, three panels in a row. */}}
{{- define "tidegate.dashboard" -}}
{{- $of := printf "namespace=%q,service=%q" .Release.Namespace (include "tidegate.fullname" .) -}}
{{- $source := dict "type" "prometheus" "uid" "${datasource}" -}}
{{- $panels := list -}}
{{- range $place, $panel := include "tidegate.panels" $of | fromYamlArray -}}
{{- $targets := list -}}
{{- range $number, $query := $panel.queries -}}
{{- $targets = append $targets (dict "refId" (printf "Q%d" $number) "datasource" $source "expr" $query.expr "legendFormat" $query.legend) -}}
{{- end -}}
{{- $panels = append $panels (dict
  "id" (add1 $place) "type" "timeseries" "title" $panel.title "description" $panel.told "datasource" $source "targets" $targets
  "gridPos" (dict "x" (mul (mod $place 3) 8) "y" (mul (div $place 3) 8) "w" 8 "h" 8)
  "fieldConfig" (dict "defaults" (dict "unit" $panel.unit "min" 0) "overrides" list)) -}}
{{- end -}}
{{- /* Jobs on topics tell the one, jobs by the clock the other. */ -}}
{{- $jobs := printf "label_values({__name__=~\"tidegate_seconds_behind|tidegate_runs_due\",%s}, job)" $of -}}
{{- $variables := list
  (dict "name" "datasource" "type" "datasource" "query" "prometheus" "label" "Prometheus")
  (dict "name" "job" "type" "query" "datasource" $source "query" (dict "query" $jobs "refId" "jobs") "definition" $jobs
    "refresh" 2 "multi" true "includeAll" true "allValue" ".*" "current" (dict "text" "All" "value" "$__all")) -}}
{{- dict
  "uid" (printf "%s/%s" .Release.Namespace (include "tidegate.fullname" .) | sha256sum | trunc 32)
  "title" (printf "Tidegate: %s/%s" .Release.Namespace (include "tidegate.fullname" .))
  "tags" (list "tidegate") "schemaVersion" 39 "timezone" "utc" "refresh" "30s"
  "time" (dict "from" "now-6h" "to" "now") "templating" (dict "list" $variables) "panels" $panels
  | toPrettyJson -}}
{{- end -}}
