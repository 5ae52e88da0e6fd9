package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// request prepares the bytes of one HTTP request of a modern client. name is that of
// the tool or task, "" for a method without one.
func request(host, method, name, params string, tasks bool) []byte {
	capabilities := "{}"
	if tasks {
		capabilities = `{"extensions":{"` + mcp.ExtensionTasks + `":{}}}`
	}
	return requestBy(host, method, name, params, capabilities)
}

// requestBy is a request of a client with these capabilities.
func requestBy(host, method, name, params, capabilities string) []byte {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"%s","params":{%s,"_meta":{"%s":"%s","%s":%s,"%s":{"name":"bench","version":"1"}}}}`,
		method, params, mcp.MetaProtocolVersion, mcp.Version20260728, mcp.MetaClientCapabilities, capabilities, mcp.MetaClientInfo)
	if name != "" {
		name = mcp.HeaderName + ": " + name + "\r\n"
	}
	return fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nAccept: %s\r\n%s: %s\r\n%s: %s\r\n%sContent-Length: %d\r\n\r\n%s",
		host, mcp.TypeJSON, mcp.TypeAccept, mcp.HeaderProtocolVersion, mcp.Version20260728,
		mcp.HeaderMethod, method, name, len(body), body)
}

// over is a variant that speaks HTTP.
func over(name, addr, want string, request []byte) variant {
	return variant{name: name, want: []byte(want), dial: func() (worker, error) { return dialHTTP(addr, request) }}
}

// call is a variant that calls a tool.
func call(name, addr, tool string, tasks bool, want string) variant {
	return over(name, addr, want, request(addr, mcp.MethodToolsCall, tool, `"name":"`+tool+`","arguments":{}`, tasks))
}

// Names of the variants, as the report has them.
const (
	direct       = "direct"
	proxied      = "bare reverse proxy"
	gatewayPlain = "taskgate, tasks: never"
	gatewayGrace = "taskgate, answered within the grace"
	gatewayTask  = "taskgate, made a task"
	redisRaw     = "Redis GET, bare connection"
	redisClient  = "Redis GET, go-redis"
	redisHTTP    = "HTTP handler with one Redis GET"
	gatewayGet   = "taskgate, tasks/get"

	largeDirect       = "direct, 1 MiB"
	largeProxied      = "bare reverse proxy, 1 MiB"
	largeGateway      = "taskgate, 1 MiB"
	largeProxiedEvent = "bare reverse proxy, 1 MiB in an event"
	largeGatewayEvent = "taskgate, 1 MiB in an event"
)

// Markers that the right answers contain.
const (
	answered = `"text":"` + answerText
	handled  = `"resultType":"task"`
)

// variants are all that is measured, in the order of the report.
func (s *stage) variants(ctx context.Context) ([]variant, error) {
	task, err := s.finishedTask(ctx)
	if err != nil {
		return nil, fmt.Errorf("make a task to read: %w", err)
	}
	get := request(s.gateway, mcp.MethodTasksGet, task, `"taskId":"`+task+`"`, true)
	made := call(gatewayTask, s.gateway, "always", true, handled)
	made.rest = 300 * time.Millisecond
	client := newRedis(s.redis, 64)
	return []variant{
		call(direct, s.upstream, "plain", false, answered),
		call(proxied, s.proxy, "plain", false, answered),
		call(gatewayPlain, s.gateway, "plain", false, answered),
		s.signedIn(gatewayKeys, "/keys", benchKey),
		s.signedIn(gatewayJWT, "/jwt", s.issuer.token),
		call(gatewayScraped, s.observed.scraped[0], "plain", false, answered),
		call(gatewaySampled, s.observed.sampled[0], "plain", false, answered),
		call(gatewayTraced, s.observed.traced[0], "plain", false, answered),
		call(gatewayGrace, s.gateway, "auto", true, answered),
		made,
		{name: redisRaw, want: []byte(answered), dial: func() (worker, error) { return dialRedis(s.redis) }},
		{name: redisClient, want: []byte(answered), dial: func() (worker, error) { return &clientGet{ctx, client}, nil }},
		over(redisHTTP, s.redisget, answered, get),
		over(gatewayGet, s.gateway, answered, get),
		large(largeDirect, s.upstream, toolLarge),
		large(largeProxied, s.proxy, toolLarge),
		large(largeGateway, s.gateway, toolLarge),
		large(largeProxiedEvent, s.proxy, toolLargeEvent),
		large(largeGatewayEvent, s.gateway, toolLargeEvent),
	}, nil
}

// large is a variant with a large result.
func large(name, addr, tool string) variant {
	v := call(name, addr, tool, false, answered)
	v.conns = largeConns
	return v
}

// largeConns are the connections for large results: more of them are as fast, and take the
// memory of all parties.
var largeConns = []int{1, 8}

// finishedTask makes a task, waits for its end and stores what tasks/get answers
// as the record that the other readers read.
func (s *stage) finishedTask(ctx context.Context) (string, error) {
	client := &taskclient.Client{URL: "http://" + s.gateway + "/mcp", Tasks: true}
	_, task, err := client.CallTool(ctx, "keep", map[string]any{})
	if err != nil {
		return "", err
	}
	if task == nil {
		return "", fmt.Errorf("the call did not become a task")
	}
	end, err := client.Wait(ctx, task.ID, nil)
	if err != nil {
		return "", err
	}
	record, err := json.Marshal(end)
	if err != nil {
		return "", err
	}
	store := newRedis(s.redis, 1)
	defer store.Close()
	return task.ID, store.Set(ctx, recordKey, record, 0).Err()
}

// clientGet is a GET through the client library, whose connections the workers
// share as the handlers of a server do.
type clientGet struct {
	ctx    context.Context
	client *redis.Client
}

func (g *clientGet) do() ([]byte, error) { return g.client.Get(g.ctx, recordKey).Bytes() }

// Close leaves the client to the other workers.
func (g *clientGet) Close() error { return nil }
