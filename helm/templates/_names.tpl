{{/* The name that all others begin with. A release may be called `shop.blue` or `2nd`, a Service may not: it would be refused by
the server when migrations have run. */}}
{{- define "tidegate.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $name = contains $chart .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $chart) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" $name) -}}
{{- fail (printf "the release's name makes %q, and objects' names begin with a letter and hold a-z, 0-9 and - alone: set fullnameOverride" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* A name of an object: (dict "root" $ "part" "search"). It is refused where labels that Kubernetes makes of it would not fit:
a name that is cut off is that of another workload, some day. Of Jobs and Pods it makes none that are longer: "most" 63. */}}
{{- define "tidegate.name" -}}
{{- $name := printf "%s-%s" (include "tidegate.fullname" .root) .part -}}
{{- $most := default 52 .most -}}
{{- if gt (len $name) $most -}}
{{- fail (printf "the name %q has %d characters and may have %d: set fullnameOverride to something shorter" $name (len $name) $most) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "tidegate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tidegate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* What pods are found by: it never changes, because selectors may not. */}}
{{- define "tidegate.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidegate.labels" -}}
{{ include "tidegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tidegate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}
