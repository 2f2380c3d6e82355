{{- /* The image of all containers: by digest if there is one, by tag otherwise. */}}
{{- define "viewstamp.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end -}}
{{- end -}}
{{- end -}}
