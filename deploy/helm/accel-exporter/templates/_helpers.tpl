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

{{- define "accel-exporter.account" -}}
{{ .Values.serviceAccount.name | default (ternary (include "accel-exporter.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "accel-exporter.scheme" -}}
{{ ternary "HTTPS" "HTTP" (not (empty .Values.webConfigSecret)) }}
{{- end }}
