{{/* A rule of alerts/ with what values.yaml changes of it, as YAML: dict "rule" "own" (of prometheusRule.alerts) "thresholds". */}}
{{- define "accel-exporter.rule" -}}
{{- $rule := .rule -}}
{{- $name := $rule.alert -}}
{{- $given := .own.thresholds | default dict -}}
{{- range $key, $_ := $given }}
{{- if not (hasKey $.thresholds $key) }}
{{- fail (printf "prometheusRule.alerts.%s.thresholds: there is no %s; there is: %s" $name $key (keys $.thresholds | sortAlpha | join ", " | default "none")) }}
{{- end }}
{{- end }}
{{- /* First each number becomes a name, so that one that is changed to another's default stays what it is. */}}
{{- $names := dict }}{{ $numbers := dict }}
{{- range $key, $number := $given }}
{{- $names = set $names (get $.thresholds $key) (printf "@%s@" $key) }}
{{- $numbers = set $numbers (printf "@%s@" $key) (toString $number) }}
{{- end }}
{{- range $changes := list $names $numbers }}
{{- range $from, $to := $changes }}
{{- $rule = set $rule "expr" (regexReplaceAll (printf "( )%s([ )]|$)" (regexQuoteMeta $from)) $rule.expr (printf "${1}%s${2}" $to)) }}
{{- range $key, $text := $rule.annotations }}
{{- $_ := set $rule.annotations $key ($text | replace (printf "{{ %q " $from) (printf "{{ %q " $to)) }}
{{- end }}
{{- end }}
{{- end }}
{{- with index .own "for" }}
{{- $from := $rule.for | default "" }}
{{- $for := . }}
{{- range $key, $text := $rule.annotations }}
{{- if $from }}{{ $_ := set $rule.annotations $key (regexReplaceAll (printf `\b([Ff]or) %s\b` $from) $text (printf "${1} %s" $for)) }}{{ end }}
{{- end }}
{{- $rule = set $rule "for" . }}
{{- end }}
{{- with .own.severity }}{{ $_ := set $rule.labels "severity" . }}{{ end }}
{{- range $key, $text := .own.labels }}{{ $_ := set $rule.labels $key $text }}{{ end }}
{{- range $key, $text := .own.annotations }}{{ $_ := set $rule.annotations $key $text }}{{ end }}
{{- with .own.name }}{{ $rule = set $rule "alert" . }}{{ end }}
{{- toYaml $rule }}
{{- end }}
