{{- define "taskgate.pod" -}}
metadata:
  labels:
    {{- include "taskgate.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include (print $.Template.BasePath "/config.yaml") . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  serviceAccountName: {{ include "taskgate.serviceAccount" . }}
  automountServiceAccountToken: false
  securityContext:
    runAsNonRoot: true
    seccompProfile: {type: RuntimeDefault}
    {{- if .Values.persistence.enabled }}
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    {{- end }}
  {{- range $field := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" }}
  {{- with get $.Values $field }}
  {{ $field }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - {{- merge (dict) . (dict "labelSelector" (dict "matchLabels" (include "taskgate.selector" $ | fromYaml))) | toYaml | nindent 6 }}
    {{- end }}
  {{- end }}
  containers:
    - name: taskgate
      image: "{{ required "image.repository: where is the image?" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve, --config, /etc/taskgate/taskgate.yaml]
      env:
        {{- if .Values.redis.secret }}
        - {name: REDIS_URL, valueFrom: {secretKeyRef: {name: {{ .Values.redis.secret }}, key: url}}}
        {{- range $i, $key := .Values.redis.stateKeys }}
        - {name: STATE_KEY_{{ add $i 1 }}, valueFrom: {secretKeyRef: {name: {{ $.Values.redis.secret }}, key: {{ $key }}}}}
        {{- end }}
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: mcp, containerPort: 8080}
        - {name: admin, containerPort: 9090}
      livenessProbe:
        httpGet: {path: /healthz, port: admin}
      # A new pod has to reach everything once, so that a wrong secret ends a rollout. Later all pods would miss
      # the same Redis or server, and are better than none.
      startupProbe:
        httpGet: {path: /readyz, port: admin}
        periodSeconds: 1
        failureThreshold: 600
      readinessProbe:
        httpGet: {path: "/readyz?exclude=store&exclude=upstreams", port: admin}
        periodSeconds: 1
        failureThreshold: 2
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/taskgate, readOnly: true}
        {{- if .Values.persistence.enabled }}
        - {name: tasks, mountPath: /var/lib/taskgate}
        {{- end }}
        {{- with .Values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ .Release.Name }}}
    {{- with .Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
