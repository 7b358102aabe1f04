{{- define "tidegate.backfillArgs" -}}
{{- $t := .task -}}
{{- $starts := list -}}
{{- if $t.fromCheckpoint -}}{{- $starts = append $starts (list "--from-checkpoint" $t.fromCheckpoint) -}}{{- end -}}
{{- if $t.fromTime -}}{{- $starts = append $starts (list "--from-time" $t.fromTime) -}}{{- end -}}
{{- if $t.fromBeginning -}}{{- $starts = append $starts (list "--from-beginning") -}}{{- end -}}
{{- if ne (len $starts) 1 -}}
{{- fail (printf "backfills.%s: say one of fromCheckpoint, fromTime and fromBeginning, not %d" .name (len $starts)) -}}
{{- end -}}
{{- $args := concat (list "run" $t.job "--backfill") (first $starts) -}}
{{- range $key, $option := dict "acceptGap" "--accept-gap" "beyondHorizon" "--beyond-horizon" -}}
{{- if get $t $key -}}{{- $args = append $args $option -}}{{- end -}}
{{- end -}}
{{- toYaml $args -}}
{{- end -}}

{{- define "tidegate.replayArgs" -}}
{{- $t := .task -}}
{{- $args := list "dlq" "replay" -}}
{{- if $t.resume -}}
{{- $args = concat $args (list "--resume" (toString $t.resume)) -}}
{{- if gt (len (omit $t "resume" "rate")) 0 -}}
{{- fail (printf "replays.%s.resume: a run is resumed as it is; beside it only rate may be said" .name) -}}
{{- end -}}
{{- else -}}
{{- if not (or $t.job $t.letters) -}}
{{- fail (printf "replays.%s: say job, letters or resume" .name) -}}
{{- end -}}
{{- if not $t.reason -}}
{{- fail (printf "replays.%s.reason: say why, for the audit and whoever comes next" .name) -}}
{{- end -}}
{{- range $key, $option := dict "job" "--job" "failedFor" "--failed-for" "fingerprint" "--fingerprint" "type" "--type" "tenant" "--tenant" "brand" "--brand" "since" "--since" "until" "--until" "error" "--error" "digest" "--digest" -}}
{{- if hasKey $t $key -}}{{- $args = concat $args (list $option (get $t $key)) -}}{{- end -}}
{{- end -}}
{{- range $t.letters -}}{{- $args = concat $args (list "--letter" .) -}}{{- end -}}
{{- if $t.force -}}{{- $args = append $args "--force" -}}{{- end -}}
{{- $args = concat $args (list "--reason" $t.reason "--yes") -}}
{{- end -}}
{{- if $t.rate -}}{{- $args = concat $args (list "--rate" (toString $t.rate)) -}}{{- end -}}
{{- toYaml $args -}}
{{- end -}}

{{/* A Job that does one thing once. (dict "root" $ "kind" "backfill" "name" NAME "args" LIST)
Its name holds a digest of what it does: other values are another Job. A Job cannot be changed; one that is there is rendered
as it stands, so that an upgrade with a new image neither fails at it nor begins it anew. */}}
{{- define "tidegate.task" -}}
{{- $root := .root -}}
{{- if not (and $root.Values.tasks.tokenSecret.name $root.Values.tasks.tokenSecret.key) -}}
{{- fail (printf "tasks.tokenSecret: %ss.%s changes something by hand; name the Secret with an operator's access token: {name: …, key: …}" .kind .name) -}}
{{- end -}}
{{- $digest := .args | toJson | sha256sum | trunc 6 -}}
{{- $name := include "tidegate.name" (dict "root" $root "part" (printf "%s-%s-%s" .kind .name $digest) "most" 63) -}}
{{- $there := lookup "batch/v1" "Job" $root.Release.Namespace $name -}}
{{- /* With it Helm would wait for nothing but a failure: pods rolled, no migration after them, the release failed. */ -}}
{{- range dig "status" "conditions" list (default dict $there) -}}
{{- if and (eq .type "Failed") (eq .status "True") -}}
{{- fail (printf "%ss.%s: its Job %s has failed (%s); read its log, then take it out of the values, change it, or delete the Job to have it tried again" $.kind $.name $name .reason) -}}
{{- end -}}
{{- end -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  labels:
    {{- include "tidegate.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .kind }}
spec:
  {{- if $there }}
  {{- include "tidegate.asItStands" $there.spec | nindent 2 }}
  {{- else }}
  backoffLimit: {{ $root.Values.tasks.backoffLimit }}
  {{- with $root.Values.tasks.activeDeadlineSeconds }}
  activeDeadlineSeconds: {{ . }}
  {{- end }}
  {{- with $root.Values.tasks.ttlSecondsAfterFinished }}
  ttlSecondsAfterFinished: {{ . }}
  {{- end }}
  {{- include "tidegate.podFailurePolicy" $root | nindent 2 }}
  template:
    metadata:
      labels:
        {{- with $root.Values.tasks.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "tidegate.selector" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .kind }}
      {{- with $root.Values.tasks.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      restartPolicy: Never
      # It ends its batch in hand and keeps its place; the next pod goes on there.
      terminationGracePeriodSeconds: {{ add $root.Values.drainTimeoutSeconds 10 }}
      {{- $secretEnv := merge (dict "TIDEGATE_TOKEN" $root.Values.tasks.tokenSecret) $root.Values.tasks.secretEnv }}
      {{- include "tidegate.pod" (dict "root" $root "name" .kind "args" .args "secretEnv" $secretEnv "resources" $root.Values.tasks.resources) | nindent 6 }}
      {{- with include "tidegate.placement" $root.Values.tasks | trim }}
      {{- . | nindent 6 }}
      {{- end }}
  {{- end }}
{{- end -}}

{{/* The specification of a Job without what Kubernetes itself has put there: with it no roll back could make the Job anew. */}}
{{- define "tidegate.asItStands" -}}
{{- $spec := deepCopy . -}}
{{- range list "controller-uid" "job-name" "batch.kubernetes.io/controller-uid" "batch.kubernetes.io/job-name" -}}
{{- $_ := unset $spec.template.metadata.labels . -}}
{{- end -}}
{{- $_ := unset $spec.template.metadata "creationTimestamp" -}}
{{- omit $spec "selector" "suspend" | toYaml -}}
{{- end -}}
