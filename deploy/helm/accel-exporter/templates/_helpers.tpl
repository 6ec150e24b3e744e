{{- define "accel-exporter.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "accel-exporter.selector" -}}
app.kubernetes.io/name: accel-exporter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "accel-exporter.labels" -}}
{{ include "accel-exporter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "accel-exporter.image" -}}
{{- with .Values.image.digest }}{{ $.Values.image.repository }}@{{ . }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "accel-exporter.securityContext" -}}
# A container's capabilities are given to uid 0 only. It keeps these and gives up the way to get more.
runAsUser: 0
readOnlyRootFilesystem: true
{{- if .Values.privileged }}
privileged: true
{{- else }}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add: [BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH, CHECKPOINT_RESTORE, SYSLOG]
seccompProfile: {type: RuntimeDefault}
# The usual profiles forbid to look into processes of other containers.
appArmorProfile: {type: Unconfined}
{{- end }}
{{- end }}

{{- define "accel-exporter.account" -}}
{{ .Values.serviceAccount.name | default (ternary (include "accel-exporter.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "accel-exporter.scheme" -}}
{{ ternary "HTTPS" "HTTP" (and (not (empty .Values.webConfigSecret)) .Values.webConfigTLS) }}
{{- end }}

{{- /* Milliseconds of a duration such as 1m30s. */}}
{{- define "accel-exporter.milliseconds" -}}
{{- $sum := 0 }}
{{- range regexFindAll "[0-9]+(ms|s|m|h)" . -1 }}
{{- $unit := regexFind "[a-z]+" . }}
{{- $sum = add $sum (mul (trimSuffix $unit . | int64) (get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) $unit)) }}
{{- end }}
{{- $sum }}
{{- end }}
