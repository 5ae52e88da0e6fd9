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

{{- define "taskgate.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary .Release.Name "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* Is not empty where there may be more than one replica. */}}
{{- define "taskgate.several" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}true{{ end }}
{{- end }}

{{- /* The configuration, or why there is none. */}}
{{- define "taskgate.config" -}}
{{- $store := .Values.config.store | default "" }}
{{- range tuple "listen" "admin" }}
{{- if hasKey $.Values.config . }}
{{- fail (printf "config.%s is set by the chart, whose pods serve clients at port 8080 and operators at port 9090: remove it" .) }}
{{- end }}
{{- end }}
{{- if gt (len (compact (list $store .Values.redis.secret (ternary "folder" "" .Values.persistence.enabled)))) 1 }}
{{- fail "config.store, redis.secret and persistence.enabled each say where tasks are kept: set one of them" }}
{{- end }}
{{- if hasPrefix "file" $store }}
{{- fail "a folder for config.store needs a volume: set persistence.enabled in its place" }}
{{- end }}
{{- if and (include "taskgate.several" .) (not .Values.redis.secret) (has $store (list "" "embedded")) }}
{{- fail "replicas share their tasks in a Redis: set redis.secret, or config.store to its URL" }}
{{- end }}
{{- $own := dict "listen" ":8080" "admin" ":9090" "store" ($store | default "embedded") }}
{{- if .Values.persistence.enabled }}
{{- $_ := set $own "store" "file:/var/lib/taskgate/tasks" }}
{{- end }}
{{- if .Values.redis.secret }}
{{- $_ := set $own "store" "${REDIS_URL}" }}
{{- if .Values.redis.stateKeys }}
{{- if .Values.config.state_keys }}
{{- fail "config.state_keys and redis.stateKeys both name the keys that seal states: empty one of them" }}
{{- end }}
{{- $keys := list }}
{{- range $i, $_ := .Values.redis.stateKeys }}
{{- $keys = append $keys (printf "${STATE_KEY_%d}" (add $i 1)) }}
{{- end }}
{{- $_ := set $own "state_keys" $keys }}
{{- end }}
{{- end }}
{{- merge $own .Values.config | toYaml }}
{{- end }}
