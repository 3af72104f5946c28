{{/* What the objects are called. */}}
{{- define "node-lb.fullname" -}}
{{ .Values.fullnameOverride | default (include "node-lb.name" .) }}
{{- end }}

{{- define "node-lb.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{/* Never changes: a DaemonSet keeps its selector. */}}
{{- define "node-lb.selectorLabels" -}}
app.kubernetes.io/name: {{ include "node-lb.name" . }}
{{- end }}

{{- define "node-lb.labels" -}}
{{ include "node-lb.selectorLabels" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "node-lb.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{- define "node-lb.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "node-lb.fullname" .) }}
{{- end }}

{{/* What alerts and dashboards find agents by: the job, and nodes as instances. */}}
{{- define "node-lb.scrape" -}}
relabelings:
  - targetLabel: job
    replacement: {{ .Values.scrapeJob }}
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: instance
{{- end }}

{{/* Fails where values contradict each other. */}}
{{- define "node-lb.check" -}}
{{- range $setting, $port := dict "healthz-bind-address" .Values.healthPort "metrics-bind-address" .Values.metricsPort }}
{{- $given := regexFind ":[0-9]+$" (toString (index $.Values.config $setting | default "")) | trimPrefix ":" }}
{{- if and $given (ne $given (toString $port)) }}
{{- $value := ternary "healthPort" "metricsPort" (eq $setting "healthz-bind-address") }}
{{- fail (printf "config.%s has port %s, but %s is %v" $setting $given $value $port) }}
{{- end }}
{{- end }}
{{- $surge := dig "rollingUpdate" "maxSurge" 0 .Values.updateStrategy | toString }}
{{- if and .Values.namedPorts (not (has $surge (list "0" "0%"))) }}
{{- fail "namedPorts cannot be had with updateStrategy.rollingUpdate.maxSurge: two pods of a node would claim the same ports" }}
{{- end }}
{{- if and .Values.podMonitor.enabled (not .Values.namedPorts) }}
{{- fail "podMonitor needs namedPorts; serviceMonitor does not" }}
{{- end }}
{{- end }}
