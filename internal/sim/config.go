package sim

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
)

// braces find the part of a key that names one task or session.
var braces = regexp.MustCompile(`\{[^}]*\}`)

// baseConfig is what all replicas begin with.
var baseConfig = fmt.Sprintf(`
listen: 127.0.0.1:80
store: redis://redis:6379/0
heartbeat: 2s
drain_timeout: 4s
resume_after: 200ms
state_keys: ["%s"]
auth: {keys: [%s, %s]}
upstreams:
  - name: legacy
    path: /mcp
    url: http://127.0.1.1:81/mcp
    defaults: {grace: 1s, ttl: 5m, recover: retry}
    without_tasks: block
    tools:
      - {match: once, recover: fail}
      - {match: survey, recover: fail}
      - {match: talk, recover: fail}
      - {match: stream, recover: fail}
      - {match: own, recover: fail}
      - match: start_once
        recover: fail
        job: &job
          id: $.job
          status: {tool: job_status, arguments: {job: "{id}"}, value: $.state}
          running: [running]
          done: [done]
          cancelled: [stopped]
          message: $.detail
          progress: $.percent
          result: {tool: job_result, arguments: {job: "{id}"}}
          cancel: {tool: cancel_job, arguments: {job: "{id}"}}
          interval: 400ms
          max_interval: 1s
          hide: on
      - {match: start_again, job: *job}
  - name: modern
    path: /modern
    url: http://127.0.2.1:81/mcp
    without_tasks: block
    defaults: {grace: 1s, ttl: 5m, recover: fail}
    tools:
      - {match: start_once, job: *job}
`, strings.Repeat("AB", 21)+"A=", hashKey("ann"), hashKey("bob"))

// configWith is the configuration with another grace.
func (w *World) configWith(grace string) string {
	text := strings.ReplaceAll(baseConfig, "grace: 1s", "grace: "+grace)
	if w.opts.Folder {
		text = strings.ReplaceAll(text, "redis://redis:6379/0", "file:/store")
	}
	return text
}

// hashKey spells the key of a principal for the configuration.
func hashKey(principal string) string {
	return fmt.Sprintf(`"%s:%x"`, principal, sha256.Sum256([]byte("key-"+principal)))
}
