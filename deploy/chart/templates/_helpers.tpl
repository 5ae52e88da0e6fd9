{{- define "taskgate.selector" -}}
app.kubernetes.io/name: taskgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "taskgate.labels" -}}
{{ include "taskgate.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
