package config

import "reflect"

// removed are the keys of earlier builds that this one lacks, by the type of the mapping that they
// were in, with what to do about them. A file with such a key was written for another version:
// ignoring the key would change the file's meaning silently.
var removed = map[string]string{
	"Config.bytes_wait":            nowFixed("1m"),
	"Config.client_timeout":        nowFixed("30s"),
	"Config.keep_alive":            nowFixed("15s"),
	"Config.max_calls":             inLimits("max_calls"),
	"Config.max_connections":       inLimits("max_connections"),
	"Config.max_session_bytes":     nowFixed("64KiB"),
	"Config.max_sessions":          inLimits("max_sessions"),
	"Config.max_streams":           inLimits("max_streams"),
	"Config.max_streams_per_owner": inLimits("max_streams_per_owner"),
	"Config.max_subscriptions":     nowFixed("1000"),
	"Config.max_uri":               nowFixed("8KiB"),
	"Config.store_file":            fromFile("store"),
	"Config.settle":                nowFixed("30s"),
	"Config.session_log_bytes":     nowFixed("4MiB"),
	"Config.session_log_messages":  nowFixed("1000"),
	"Config.session_log_ttl":       nowFixed("10m"),
	"Config.session_idle":          nowFixed("24h"),
	"Config.store_timeout":         nowFixed("3s"),
	"Config.telemetry":             "write its list baggage at the top level; tasks are traced as OTEL_TRACES_SAMPLER says, and polls that fail",

	"Upstream.connect_timeout":            nowFixed("10s"),
	"Upstream.headers_file":               fromFile("an entry of headers"),
	"Upstream.max_event":                  "max_result bounds events as well; delete the line",
	"Upstream.max_sse_connections":        nowFixed("1000"),
	"Upstream.max_tasks":                  inLimits("max_tasks"),
	"Upstream.max_stored_bytes_per_owner": "what tasks take in the store is bounded by max_tasks_per_owner, max_result and ttl; delete the line",
	"Upstream.partial_bytes":              nowFixed("64KiB"),
	"Upstream.partial_interval":           nowFixed("50ms"),
	"Upstream.partials":                   "clients that ask for partial results always get them; delete the line",
	"Upstream.probe_timeout":              "it is start_timeout now, and 60s without the line",
	"Upstream.process":                    "each session with a server of 2025 has a process, and each authenticated caller one of a server of 2026; delete the line",
	"Upstream.process_idle":               nowFixed("1h"),
	"Upstream.queue":                      nowFixed("1000"),
	"Upstream.queue_wait":                 nowFixed("5s"),
	"Upstream.upstream_sessions":          "anonymous calls share a session while the gateway listens on loopback; delete the line",
	"Upstream.task_result_tool":           nowFixed("task_result"),
	"Upstream.task_result_wait":           "task_result waits for as long as without_tasks_after; delete the line",

	"Passthrough.keep_tokens": "a task that another replica takes over waits for the next request of its owner; delete the line",
	"Passthrough.userinfo":    "a userinfo endpoint does not say for whom a token is: use introspection, or JWTs; delete the line",

	"Tool.immediate_response": "clients get the handle of a task without a text beside it; delete the line",
	"Tool.logs":               "log messages of a server are log messages for its clients, and no partial results; delete the line",
	"Tool.max_answer_bytes":   nowFixed("4MiB"),
	"Tool.max_open_questions": nowFixed("64"),
	"Tool.max_partial_bytes":  nowFixed("8MiB"),
	"Tool.max_partials":       nowFixed("10000"),
	"Tool.max_question_bytes": nowFixed("4MiB"),
	"Tool.max_questions":      nowFixed("1000"),
	"Tool.max_ttl":            "ttl is the longest time that a client may ask for as well; delete the line",

	"Auth.anonymous":              "without auth everybody may call; delete the line",
	"Auth.passthrough":            "write it into the auth of each upstream whose server signs its callers in",
	"UpstreamAuth.trusted_header": "write it into auth at the top level, and an auth into each upstream that differs",

	"JWT.algorithms": "every asymmetric one is taken; delete the line",
	"JWT.leeway":     nowFixed("30s"),
	"JWT.max_tokens": nowFixed("10000"),
	"JWT.principal":  "the claim sub names the caller; delete the line",
	"JWT.refresh":    nowFixed("10m"),

	"Passthrough.forget_after":   nowFixed("24h"),
	"Passthrough.leeway":         nowFixed("30s"),
	"Passthrough.lookup_timeout": nowFixed("10s"),
	"Passthrough.max_lookups":    nowFixed("64"),
	"Passthrough.max_tokens":     nowFixed("10000"),
	"Passthrough.refresh":        nowFixed("10m"),
	"Passthrough.remember":       nowFixed("1m"),

	"Introspection.client_secret_file": fromFile("client_secret"),

	"TrustedHeader.certificates": "a proxy is known by its address: write it into from; delete the line",

	"ClientTLS.server_name": "a certificate has to have the host of the URL; delete the line",
}

// hadKeys says how keys that were mappings in earlier builds are written now, by their paths.
var hadKeys = map[string]string{
	"rate": " (requests and burst were removed: write the number of requests, which is the burst as well)",
}

// nowFixed says of a removed key that it has a fixed value.
func nowFixed(value string) string { return "it is " + value + " now; delete the line" }

// inLimits says of a removed key that it is in limits.
func inLimits(key string) string {
	return "it is " + key + " in limits now, and follows the memory limit without it"
}

// fromFile says of a removed key for a file how the key for the value names the file.
func fromFile(key string) string { return "write the file into " + key + ", as \"${file:PATH}\"" }

// removedFrom returns what to do about a key that a struct had, or a struct that it inlines.
func removedFrom(t reflect.Type, name string) (advice string, had bool) {
	if advice, had = removed[t.Name()+"."+name]; had {
		return advice, true
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous {
			return removedFrom(f.Type, name)
		}
	}
	return "", false
}
