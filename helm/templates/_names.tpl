{{/* The name that all others begin with. */}}
{{- define "tidegate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- end -}}

{{/* A name of an object: (dict "root" $ "part" "search"). It is refused where labels that Kubernetes makes of it would not fit:
a name that is cut off is that of another workload, some day. */}}
{{- define "tidegate.name" -}}
{{- $name := printf "%s-%s" (include "tidegate.fullname" .root) .part -}}
{{- if gt (len $name) 52 -}}
{{- fail (printf "the name %q has %d characters and may have 52: set fullnameOverride to something shorter" $name (len $name)) -}}
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
