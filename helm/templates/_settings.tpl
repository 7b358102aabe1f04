{{/* The settings that are no secrets, as YAML: those of the values, and those that are the chart's own. */}}
{{- define "tidegate.settings" -}}
{{- include "tidegate.checkSettings" .Values -}}
{{- $own := dict
  "TIDEGATE_HTTP_HOST" .Values.http.host
  "TIDEGATE_HTTP_PORT" (toString .Values.http.port)
  "TIDEGATE_DRAIN_TIMEOUT" (toString .Values.drainTimeoutSeconds) -}}
{{- if .Values.app -}}{{- $_ := set $own "TIDEGATE_APP" .Values.app -}}{{- end -}}
{{- range $name, $value := .Values.settings -}}
{{- $text := toString $value -}}
{{- /* 83886080 would be written as 8.388608e+07, which no setting takes. */ -}}
{{- if and (kindIs "float64" $value) (eq $value (float64 (int64 $value))) -}}{{- $text = toString (int64 $value) -}}{{- end -}}
{{- if regexMatch "^[a-z]+://[^/]*@" $text -}}
{{- /* The message is without what was said: it is a password, perhaps. */ -}}
{{- fail (printf "settings.%s: an address with credentials, which everybody could read; they belong in the …_USER setting and in secrets.env" $name) -}}
{{- end -}}
{{- $_ := set $own $name $text -}}
{{- end -}}
{{- toYaml $own -}}
{{- end -}}

{{/* Refuses what is said twice, and what a worker would refuse when it starts: (VALUES). */}}
{{- define "tidegate.checkSettings" -}}
{{- $said := default dict .settings -}}
{{- range $where, $env := dict "secrets.env" .secrets.env "migrations.secretEnv" .migrations.secretEnv "tasks.secretEnv" .tasks.secretEnv -}}
{{- range $name, $_ := $env -}}
{{- if hasKey $said $name -}}
{{- fail (printf "%s.%s: settings has it, too; say it in one of them" $where $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $rebalance := get $said "TIDEGATE_KAFKA_REBALANCE_TIMEOUT" | default 60 | toString -}}
{{- /* A duration as PT90S is left to the worker. */ -}}
{{- if and (regexMatch "^[0-9.]+$" $rebalance) (ge (float64 .drainTimeoutSeconds) (float64 $rebalance)) -}}
{{- fail (printf "drainTimeoutSeconds: %d is not less than settings.TIDEGATE_KAFKA_REBALANCE_TIMEOUT, %s: Kafka would not wait for it" (int .drainTimeoutSeconds) $rebalance) -}}
{{- end -}}
{{- end -}}

{{/* Refuses what would contradict the chart: (dict "root" $ "env" LIST "where" "extraEnv"). */}}
{{- define "tidegate.refuseOwnNames" -}}
{{- $where := .where -}}
{{- range .env -}}
{{- if hasPrefix "TIDEGATE_" (default "" .name) -}}
{{- fail (printf "%s: %s is a setting of Tidegate; it belongs in settings or secrets.env" $where .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Settings out of Secrets, as a list of variables: (dict "env" MAP). */}}
{{- define "tidegate.secretEnv" -}}
{{- range $name, $from := .env }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $from.name }}
      key: {{ $from.key }}
      {{- if $from.optional }}
      optional: true
      {{- end }}
{{- end -}}
{{- end -}}
