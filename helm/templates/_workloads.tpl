{{/* All workloads as YAML, by name, each whole: `worker` with what it says itself; the scheduler among them. */}}
{{- define "tidegate.workloads" -}}
{{- $all := dict -}}
{{- range $name, $said := .Values.workloads -}}
{{- $_ := set $all $name (mergeOverwrite (deepCopy $.Values.worker) (deepCopy (default dict $said))) -}}
{{- end -}}
{{- if not .Values.workloads -}}
{{- $_ := set $all "worker" (mergeOverwrite (deepCopy .Values.worker) (dict "allJobs" true)) -}}
{{- end -}}
{{- if .Values.scheduler.enabled -}}
{{- if hasKey $all "scheduler" -}}
{{- fail "workloads.scheduler: with scheduler.enabled this name is taken; give the workload another" -}}
{{- end -}}
{{- $own := omit .Values.scheduler "enabled" -}}
{{- /* Its pods own no partition: what workers have for theirs is nothing to them. */ -}}
{{- $clock := mergeOverwrite (deepCopy .Values.worker) (dict "autoscaling" (dict "kind" "none") "staticMembership" false) -}}
{{- $_ := set $all "scheduler" (mergeOverwrite (omit $clock "partitions" "lanes") (deepCopy $own)) -}}
{{- end -}}
{{- include "tidegate.checkWorkloads" (dict "root" . "all" $all) -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Where a workload's values stand, for messages. */}}
{{- define "tidegate.where" -}}
{{- if and (eq .name "scheduler") .root.Values.scheduler.enabled -}}scheduler{{- else -}}workloads.{{ .name }}{{- end -}}
{{- end -}}

{{- define "tidegate.checkWorkloads" -}}
{{- $root := .root -}}
{{- $owners := dict -}}
{{- if and $root.Values.scheduler.jobs (not $root.Values.scheduler.enabled) -}}
{{- fail "scheduler.jobs: nobody would run them; say scheduler.enabled: true, or name them in a workload" -}}
{{- end -}}
{{- range $name, $w := .all -}}
{{- $where := include "tidegate.where" (dict "root" $root "name" $name) -}}
{{- if has $name (list "migrate-pre" "migrate-post" "backfill" "replay" "check") -}}
{{- fail (printf "workloads.%s: pods of other kinds are told by this name; give the workload another" $name) -}}
{{- end -}}
{{- if and $w.allJobs $w.jobs -}}
{{- fail (printf "%s: jobs and allJobs exclude each other" $where) -}}
{{- end -}}
{{- if not (or $w.allJobs $w.jobs) -}}
{{- fail (printf "%s.jobs: name the jobs that it runs%s" $where (hasKey (default dict $root.Values.workloads) $name | ternary ", or say allJobs: true" "")) -}}
{{- end -}}
{{- if and $w.allJobs (gt (len $.all) 1) -}}
{{- fail (printf "%s.allJobs: other workloads run some of these jobs; name the jobs of each" $where) -}}
{{- end -}}
{{- range $w.jobs -}}
{{- if hasKey $owners . -}}
{{- fail (printf "%s.jobs: %s runs %q already; a job belongs to one workload, which may have more replicas" $where (get $owners .) .) -}}
{{- end -}}
{{- $_ := set $owners . $where -}}
{{- end -}}
{{- include "tidegate.checkReplicas" (dict "root" $root "where" $where "worker" $w) -}}
{{- include "tidegate.refuseOwnNames" (dict "env" $w.env "where" (printf "%s.env" $where)) -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.checkReplicas" -}}
{{- $scaling := .worker.autoscaling -}}
{{- $partitions := .worker.partitions | int -}}
{{- if eq $scaling.kind "none" -}}
{{- if and $partitions (gt (.worker.replicas | int) $partitions) -}}
{{- fail (printf "%s.replicas: %d pods for %d partitions; those beyond would have nothing to do" .where (.worker.replicas | int) $partitions) -}}
{{- end -}}
{{- else -}}
{{- if not $partitions -}}
{{- fail (printf "%s.partitions: say how many the topic has: autoscaling may not go beyond it" .where) -}}
{{- end -}}
{{- if gt ($scaling.maxReplicas | int) $partitions -}}
{{- fail (printf "%s.autoscaling.maxReplicas: %d pods for %d partitions; those beyond would have nothing to do" .where ($scaling.maxReplicas | int) $partitions) -}}
{{- end -}}
{{- if gt ($scaling.minReplicas | int) ($scaling.maxReplicas | int) -}}
{{- fail (printf "%s.autoscaling.minReplicas: %d is more than maxReplicas, %d" .where ($scaling.minReplicas | int) ($scaling.maxReplicas | int)) -}}
{{- end -}}
{{- if and (eq $scaling.kind "hpa") (not (dig "requests" "cpu" "" (default dict .worker.resources))) -}}
{{- fail (printf "%s.resources.requests.cpu: autoscaling by CPU measures in parts of it" .where) -}}
{{- end -}}
{{- if and (eq $scaling.kind "keda") (not .root.Values.metrics.prometheusUrl) -}}
{{- fail (printf "metrics.prometheusUrl: %s.autoscaling.kind is keda, which has to ask a Prometheus how far behind the jobs are" .where) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What `tidegate` is told: (dict "worker" MAP). */}}
{{- define "tidegate.runArgs" -}}
{{- $args := list "run" -}}
{{- if .worker.allJobs -}}
{{- $args = append $args "--all" -}}
{{- else -}}
{{- $args = concat $args .worker.jobs -}}
{{- end -}}
{{- if .worker.lanes -}}{{- $args = concat $args (list "--lanes" (toString .worker.lanes)) -}}{{- end -}}
{{- toYaml $args -}}
{{- end -}}
