{{- define "headwater.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "headwater.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "headwater.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "headwater.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* On everything of the release. */}}
{{- define "headwater.releaseLabels" -}}
app.kubernetes.io/name: {{ include "headwater.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* On the pods that run the pipeline only: services and the disruption budget must not count the pods of jobs and tests. */}}
{{- define "headwater.selectorLabels" -}}
{{ include "headwater.releaseLabels" . }}
app.kubernetes.io/component: pod
{{- end -}}

{{- define "headwater.labels" -}}
{{ include "headwater.releaseLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "headwater.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "headwater.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "headwater.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* A duration such as 1m30s in whole seconds, rounded up. */}}
{{- define "headwater.seconds" -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h)" (toString .) -1 -}}
{{- $number := regexFind "^[0-9]+" . | float64 -}}
{{- $unit := regexFind "(ms|s|m|h)$" . -}}
{{- $factor := get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) $unit -}}
{{- $total = addf $total (mulf $number $factor) -}}
{{- end -}}
{{- ceil $total | int -}}
{{- end -}}

{{/* The settings of each pipeline, as a list: those of `config` with those of its entry in `pipelines`, as the binary merges them. */}}
{{- define "headwater.pipelineSettings" -}}
{{- $all := list -}}
{{- if .Values.pipelines -}}
{{- $entries := fromYaml .Values.pipelines -}}
{{- if and (hasKey $entries "Error") (kindIs "string" $entries.Error) }}{{ fail (printf "pipelines: %s" $entries.Error) }}{{ end -}}
{{- range $name, $entry := $entries -}}
{{- $settings := deepCopy $.Values.config -}}
{{- range $section, $values := $entry -}}
{{- /* An empty section sets nothing. */ -}}
{{- if kindIs "map" $values }}{{ $_ := set $settings $section (mergeOverwrite (get $settings $section | default dict) $values) }}{{ end -}}
{{- end -}}
{{- $all = append $all $settings -}}
{{- end -}}
{{- else -}}
{{- $all = append $all .Values.config -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* The longest drain of all pipelines, which stop side by side, plus ten seconds for the connections to close. The defaults are those of the binary. */}}
{{- define "headwater.gracePeriod" -}}
{{- if .Values.terminationGracePeriodSeconds -}}
{{- .Values.terminationGracePeriodSeconds -}}
{{- else -}}
{{- $longest := 0 -}}
{{- range include "headwater.pipelineSettings" . | fromYamlArray -}}
{{- $producer := include "headwater.seconds" (dig "producer" "drain" "10s" .) | int -}}
{{- $consumer := include "headwater.seconds" (dig "consumer" "drain" "20s" .) | int -}}
{{- $longest = max $longest $producer $consumer -}}
{{- end -}}
{{- add $longest 10 -}}
{{- end -}}
{{- end -}}

{{- define "headwater.adminPort" -}}
{{- dig "admin" "listen" "0.0.0.0:8080" .Values.config | toString | splitList ":" | last -}}
{{- end -}}

{{/* `, scheme: …` for a probe or a scrape, if pods serve HTTPS. */}}
{{- define "headwater.adminScheme" -}}
{{- if dig "admin" "certificate_file" "" .Values.config }}, scheme: HTTPS{{ end -}}
{{- end -}}

{{/* The namespace of Service Bus, if pods authenticate with Entra ID instead of a connection string. */}}
{{- define "headwater.busNamespace" -}}
{{- dig "service_bus" "fully_qualified_namespace" "" .Values.config -}}
{{- end -}}

{{/* Where each secret is mounted, and which key of the configuration names its file. */}}
{{- define "headwater.secretFiles" -}}
{{- $namespace := include "headwater.busNamespace" . -}}
{{- $files := list
  (dict "value" .Values.secrets.sourceUri "file" "source-uri" "section" "source" "key" "uri_file")
  (dict "value" .Values.secrets.coordinationUri "file" "coordination-uri" "section" "coordination" "key" "uri_file")
  (dict "value" .Values.secrets.readModelsUri "file" "read-models-uri" "section" "read_models" "key" "uri_file")
  (dict "value" .Values.secrets.serviceBusConnectionString "file" "service-bus-connection-string" "section" "service_bus" "key" "connection_string_file")
  (dict "value" .Values.secrets.adminToken "file" "admin-token" "section" "admin" "key" "token_file")
  (dict "value" .Values.secrets.messageSigningKeys "file" "message-signing-keys" "section" "message_signing" "key" "keys_file")
-}}
{{- $used := list -}}
{{- range $files -}}
{{- if and .value.secretName (not (and $namespace (eq .key "connection_string_file"))) -}}{{- $used = append $used . -}}{{- end -}}
{{- end -}}
{{- toYaml $used -}}
{{- end -}}

{{/* The configuration file: `config`, the files of the secrets, and the read models and pipelines as they were written. */}}
{{- define "headwater.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if $config.pipelines }}{{ fail "config.pipelines: use the value `pipelines`, a text, because the order of keys in read models matters" }}{{ end -}}
{{- if .Values.pipelines }}{{ $config = omit $config "pipeline" }}{{ end -}}
{{- range include "headwater.secretFiles" . | fromYamlArray -}}
{{- $section := get $config .section | default dict -}}
{{- $_ := set $section .key (printf "/var/run/secrets/headwater/%s" .file) -}}
{{- $_ := set $config .section $section -}}
{{- end -}}
{{- $stores := get $config "read_models" | default dict -}}
{{- toYaml (omit $config "read_models") }}
{{- if or $stores .Values.readModels }}
read_models:
  {{- with $stores }}{{ toYaml . | nindent 2 }}{{ end }}
  {{- with .Values.readModels }}{{ . | trim | nindent 2 }}{{ end }}
{{- end }}
{{- with .Values.pipelines }}
pipelines:
  {{- . | trim | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "headwater.podEnv" -}}
- name: HOSTNAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: HEADWATER_CONFIG
  value: /etc/headwater/headwater.yaml
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "headwater.secretVolume" -}}
{{- $files := include "headwater.secretFiles" . | fromYamlArray -}}
{{- if $files -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
    {{- range $files }}
    - secret:
        name: {{ .value.secretName | quote }}
        items: [{ key: {{ .value.key | quote }}, path: {{ .file }} }]
    {{- end }}
{{- end -}}
{{- end -}}

{{/* What every pod of the chart needs to start on this cluster. */}}
{{- define "headwater.scheduling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* Volumes of the configuration, the secrets and the user. Takes `root` and the name of the `configMap`. */}}
{{- define "headwater.volumes" -}}
- name: config
  projected:
    sources:
    - configMap: { name: {{ .configMap }} }
{{- with include "headwater.secretVolume" .root }}
{{ . }}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Not below /etc/headwater: a mount inside a read-only mount cannot be created. */}}
{{- define "headwater.mounts" -}}
- { name: config, mountPath: /etc/headwater, readOnly: true }
{{- if include "headwater.secretFiles" . | fromYamlArray }}
- { name: secrets, mountPath: /var/run/secrets/headwater, readOnly: true }
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Label matchers for the metrics of this release. The Prometheus operator names a job after the PodMonitor or the Service. */}}
{{- define "headwater.metricSelector" -}}
{{- $namespace := .Release.Namespace -}}
{{- default (printf `namespace="%s",job=~"(%s/)?%s"` $namespace $namespace (include "headwater.fullname" .)) .Values.metrics.selector -}}
{{- end -}}

{{/* An expression with the matchers added to each metric. A metric with matchers of its own keeps them. */}}
{{- define "headwater.scopedExpression" -}}
{{- $matchers := printf "{%s}" .selector -}}
{{- $all := regexReplaceAll "headwater_[a-z_]+" .expression (printf "${0}%s" $matchers) -}}
{{- $all | replace (printf "%s{" $matchers) (printf "{%s," .selector) -}}
{{- end -}}
