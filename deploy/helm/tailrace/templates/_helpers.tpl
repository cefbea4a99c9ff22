{{- define "tailrace.name" -}}
{{- printf "%s" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "tailrace.selector" -}}
app.kubernetes.io/name: tailrace
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tailrace.labels" -}}
{{ include "tailrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}
