{{/* A pod's specification. (dict "root" $ "name" CONTAINER "args" LIST "resources" MAP
  "inline" true           settings in the pod itself: a hook runs before the release has a ConfigMap
  "secretEnv" MAP         comes before secrets.env
  "env" TEXT              more variables, as YAML
  "worker" MAP            a workload: ports, probes, places, sidecars
  "init" TEXT             containers that run before, as YAML
  "account" NAME          the ServiceAccount, where it is not the release's) */}}
{{- define "tidegate.pod" -}}
{{- $root := .root -}}
{{- $worker := default dict .worker -}}
serviceAccountName: {{ default (include "tidegate.serviceAccount" $root) .account }}
automountServiceAccountToken: false
# A Service called `tidegate` would come as the variables TIDEGATE_PORT and so on, among the settings.
enableServiceLinks: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- if or .init $worker.initContainers $root.Values.extraInitContainers }}
initContainers:
  {{- with $root.Values.extraInitContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .init }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $worker.initContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
containers:
  {{- include "tidegate.container" . | nindent 2 }}
  {{- with $worker.sidecars }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumes:
  {{- include "tidegate.volumes" $root | nindent 2 }}
{{- end -}}

{{- define "tidegate.container" -}}
{{- $root := .root -}}
{{- $worker := default dict .worker -}}
- name: {{ .name }}
  image: {{ include "tidegate.image" $root | quote }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args:
    {{- /* `$(NAME)` would be filled in by the kubelet: the token, perhaps, into a reason that is kept. */}}
    {{- $args := list }}
    {{- range .args }}{{ $args = append $args (replace "$" "$$" (toString .)) }}{{ end }}
    {{- toYaml $args | nindent 4 }}
  {{- if or (not .inline) $root.Values.extraEnvFrom }}
  envFrom:
    {{- if not .inline }}
    - configMapRef:
        name: {{ include "tidegate.name" (dict "root" $root "part" "settings") }}
    {{- end }}
    {{- with $root.Values.extraEnvFrom }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  {{- with include "tidegate.env" . | trim }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  {{- if .worker }}
  ports:
    - name: http
      containerPort: {{ $root.Values.http.port }}
  {{- range $probe, $path := dict "startup" "/livez" "liveness" "/livez" "readiness" "/readyz" }}
  {{ $probe }}Probe:
    httpGet:
      path: {{ $path }}
      port: http
    {{- toYaml (get $root.Values.probes $probe) | nindent 4 }}
  {{- end }}
  {{- end }}
  resources:
    {{- toYaml .resources | nindent 4 }}
  securityContext:
    {{- toYaml $root.Values.securityContext | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    {{- if $root.Values.secrets.files }}
    - name: settings
      mountPath: /run/secrets
      readOnly: true
    {{- end }}
    {{- with $root.Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "tidegate.env" -}}
{{- $root := .root -}}
{{- include "tidegate.refuseOwnNames" (dict "env" $root.Values.extraEnv "where" "extraEnv") -}}
{{- if .inline }}
{{- range $name, $value := include "tidegate.settings" $root | fromYaml }}
- name: {{ $name }}
  value: {{ $value | replace "$" "$$" | quote }}
{{- end }}
{{- end }}
{{- include "tidegate.secretEnv" (dict "env" (merge (dict) (default dict .secretEnv) $root.Values.secrets.env)) }}
{{- with .env }}
{{ . }}
{{- end }}
{{- with $root.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tidegate.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- with .Values.secrets.files }}
- name: settings
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where pods go, of a section of the values: a workload, migrations, tasks. */}}
{{- define "tidegate.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
