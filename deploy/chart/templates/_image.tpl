{{- /* The name of an image, from its values: by digest if there is one, by tag otherwise. */}}
{{- define "viewstamp.image" -}}
{{- with . -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end -}}
{{- end -}}
{{- end -}}
