{{- define "node-lb.labels" -}}
app.kubernetes.io/name: node-lb
{{- end }}

{{- define "node-lb.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
