package config_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v4"

	"taskgate/gateway/config"
)

// unset matches a key that is commented out: no space after the #.
var unset = regexp.MustCompile(`(?m)^( *)#((?:- )?[a-z_]+:.*)$`)

func readExample(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// allSet is the example with every key in force. store_tls needs a Redis, and tls needs https.
func allSet(t *testing.T) string {
	t.Helper()
	text := unset.ReplaceAllString(readExample(t), "$1$2")
	text = strings.Replace(text, "url: http://", "url: https://", 1)
	return strings.Replace(text, "\nstore: file\n", "\nstore: \"${file:secrets/store}\"\n", 1) // store_tls needs a rediss
}

func noEnv(string) (string, bool) { return "", false }

// parseAllSet loads the example with every key in force, beside the files that
// it names.
func parseAllSet(t *testing.T) *config.Config {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"store": "rediss://127.0.0.1:6379/0\n", "research-key": "k\n", "state-key": keyA + "\n", "introspection": "s\n"} {
		path := filepath.Join(dir, "secrets", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"RESEARCH_TOKEN": "token", "OLD_STATE_KEY": keyB, "PATH": "/usr/bin", "HOME": "/root"}
	lookup := func(name string) (string, bool) { value, ok := env[name]; return value, ok }
	c, err := config.Parse(filepath.Join(dir, "config.yaml"), []byte(allSet(t)), lookup)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestExampleLoads(t *testing.T) {
	if !strings.HasPrefix(readExample(t), "# yaml-language-server: $schema=config.schema.json\n") {
		t.Error("the first line does not name the schema")
	}
	if _, err := config.Parse("../../config.example.yaml", []byte(readExample(t)), noEnv); err != nil {
		t.Error(err)
	}
	parseAllSet(t)
}

// Each configuration in examples/ loads as it is, and the page there names it.
func TestExamplesLoad(t *testing.T) {
	dir := filepath.Join("..", "..", "examples")
	for of, top := range map[string]string{dir: "../", filepath.Join(dir, "jobs"): "../../"} {
		checkExamples(t, of, top)
	}
}

// checkExamples checks the configurations in a folder, from which top is the way to the root.
func checkExamples(t *testing.T, dir, top string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"PATH": "/usr/bin", "HOME": "/root", "REMOTE_TOKEN": "token", "FIRECRAWL_API_KEY": "a", "MINIMAX_API_KEY": "b", "REPLICATE_API_TOKEN": "c"}
	lookup := func(name string) (string, bool) { value, ok := env[name]; return value, ok }
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(text), "# yaml-language-server: $schema="+top+"config.schema.json\n") {
			t.Errorf("%s: the first line does not name the schema", file)
		}
		if c, err := config.Parse(file, text, lookup); err != nil || c.Upstreams[0].Path != "/mcp" {
			t.Errorf("%s: %v", file, err)
		}
		if err := matchesSchema(t, string(text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if name := filepath.Base(file); !strings.Contains(string(page), "["+name+"]("+name+")") {
			t.Errorf("the page does not name %s", name)
		}
	}
}

// Values that the example does not call examples are the defaults.
func TestExampleShowsDefaults(t *testing.T) {
	got := parseAllSet(t)
	want := config.Default()
	want.Store = "rediss://127.0.0.1:6379/0"
	const dir = "/etc/taskgate/"
	want.TLS = config.ListenerTLS{CertFile: dir + "cert.pem", KeyFile: dir + "key.pem", ClientCAFile: dir + "clients.pem"}
	want.StoreTLS = config.ClientTLS{CAFile: dir + "redis-ca.pem", CertFile: dir + "redis.pem", KeyFile: dir + "redis-key.pem"}
	u := config.NewUpstream("research", "https://127.0.0.1:3001/mcp")
	u.TLS = config.ClientTLS{CAFile: dir + "server-ca.pem", CertFile: dir + "client.pem", KeyFile: dir + "client-key.pem"}
	u.Path = "/mcp"
	u.Headers = map[string]string{"Authorization": "Bearer token", "X-Api-Key": "k"}
	u.ForwardHeaders, u.ExposeHeaders = []string{"X-Tenant"}, []string{"X-RateLimit-*", "X-Request-Id"}
	u.SSEEndpoint = "https://tools.example.com/research/messages"
	u.Defaults.Principals, u.Tools = []string{}, got.Upstreams[0].Tools
	files := config.NewUpstream("files", "")
	files.Command, files.Args, files.Cwd = "npx", []string{"-y", "@modelcontextprotocol/server-filesystem", "."}, "/srv/files"
	files.Eras = []string{"legacy"}
	files.Env = map[string]string{"PATH": "/usr/bin", "HOME": "/root"}
	drive := config.NewUpstream("drive", "https://drive.example.com/mcp")
	want.Upstreams = []*config.Upstream{u, files, drive}
	want.Admin, want.Auth, want.PublicURL = "127.0.0.1:9090", got.Auth, "https://gateway.example.com"
	want.AdminAuth, want.TraceURL = got.AdminAuth, "https://traces.example.com/trace/{trace_id}"
	want.Audit = "/var/log/taskgate/audit.jsonl"
	jwt := &config.JWT{
		Issuer: "https://login.example.com", JWKSURL: "https://login.example.com/keys",
		Audiences: []string{"https://gateway.example.com/mcp"}, Scopes: []string{"mcp:use"},
	}
	u.Auth = &config.UpstreamAuth{Anonymous: config.Off, JWT: jwt}
	files.Auth = &config.UpstreamAuth{Anonymous: config.Off, Keys: got.Upstreams[1].Auth.Keys}
	pass := config.NewPassthrough()
	pass.Audiences = []string{"api://drive"}
	pass.Introspection = &config.Introspection{
		URL: "https://login.example.com/introspect", ClientID: "taskgate", ClientSecret: "s",
	}
	drive.Auth = &config.UpstreamAuth{Anonymous: config.Off, Passthrough: pass}
	want.StateKeys = []config.StateKey{keyA, keyB}
	want.AllowedOrigins, want.AllowedHosts, want.Baggage = []string{}, []string{}, []string{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-defaults +example:\n%s", diff)
	}
}

// Every key of the configuration is in the example, set or commented out.
func TestExampleHasEveryKey(t *testing.T) {
	var tree any
	text := unset.ReplaceAllString(readExample(t), "$1$2")
	if err := yaml.Load([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	requireKeys(t, "", reflect.TypeFor[config.Config](), tree, authsOf(tree))
}

// authsOf is a mapping with the keys of every auth in the example.
func authsOf(tree any) map[string]any {
	top, _ := tree.(map[string]any)
	all, _ := top["auth"].(map[string]any)
	all = maps.Clone(all)
	upstreams, _ := top["upstreams"].([]any)
	for _, u := range upstreams {
		keys, _ := u.(map[string]any)
		own, _ := keys["auth"].(map[string]any)
		maps.Copy(all, own)
	}
	return all
}

// requireKeys reports the keys of a struct that a mapping lacks, also inside
// lists of structs, where the entries together must have all of them.
func requireKeys(t *testing.T, path string, typ reflect.Type, tree any, auths map[string]any) {
	keys, _ := tree.(map[string]any)
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if options == "inline" || name == "-" {
			continue // the keys of a rule are those of defaults; "-" is no key
		}
		value, ok := keys[name]
		if !ok {
			t.Errorf("the example lacks %s%s", path, name)
			continue
		}
		inner := f.Type
		if inner.Kind() == reflect.Slice {
			inner = inner.Elem()
			value = together(value)
		}
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner == reflect.TypeFor[config.Auth]() || inner == reflect.TypeFor[config.UpstreamAuth]() {
			value = auths // each has one way to sign in
		}
		if inner.Kind() == reflect.Struct {
			requireKeys(t, path+name+".", inner, value, auths)
		}
	}
}

// together is a mapping with the keys of all entries of a list.
func together(list any) any {
	all := map[string]any{}
	entries, _ := list.([]any)
	for _, entry := range entries {
		keys, _ := entry.(map[string]any)
		maps.Copy(all, keys)
	}
	return all
}

// schema returns the resolved schema.
func schema(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(config.Schema(), &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// matchesSchema validates YAML text the way an editor does.
func matchesSchema(t *testing.T, text string) error {
	t.Helper()
	var tree any
	if err := yaml.Load([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatal(err)
	}
	return schema(t).Validate(value)
}

func TestExampleMatchesSchema(t *testing.T) {
	for _, text := range []string{readExample(t), allSet(t)} {
		if err := matchesSchema(t, text); err != nil {
			t.Error(err)
		}
	}
}

// The schema takes what Parse takes and refuses what a schema can.
func TestSchemaAgreesWithParse(t *testing.T) {
	const upstreams = "upstreams: [{name: a, url: 'http://127.0.0.1:1'}]\n"
	for _, text := range []string{
		upstreams,
		upstreams + "heartbeat: ${N:-5}s\nmax_body: ${N:-4096}\nwait_replicas: ${N:-0}\nlog: {level: '${L:-warn}'}\n",
		upstreams + "drain_timeout: 0\ndrain_delay: 1h2m3.5s\nmax_body: 65536\nlog:\nallowed_hosts:\n",
		"upstreams: [{name: '${N:-a}', url: 'http://127.0.0.1:1', tools: , defaults: {tasks: required}}]\n",
		"upstreams: [{name: a, command: npx, args: [-y, '${N:-x}'], env: {A: b}, cwd: /, eras: [legacy], max_processes: 1}]\n",
		"upstreams: [{name: a, url: 'http://127.0.0.1:1', transport: sse}]\n",
	} {
		if _, err := config.Parse("f", []byte(text), noEnv); err != nil {
			t.Errorf("%s%v", text, err)
		}
		if err := matchesSchema(t, text); err != nil {
			t.Errorf("%s%v", text, err)
		}
	}
	for _, text := range []string{
		"listen: 127.0.0.1:1\n",
		upstreams + "listn: x\n",
		upstreams + "heartbeat: 5\n",
		upstreams + "heartbeat: soon\n",
		upstreams + "max_body: 4MB\n",
		upstreams + "max_body: 1\n",
		upstreams + "wait_replicas: -1\n",
		upstreams + "wait_replicas: [1]\n",
		upstreams + "log: {level: loud}\n",
		upstreams + "key_prefix: '{x}'\n",
		"upstreams: [{url: 'http://127.0.0.1:1'}]\n",
		"upstreams: [{name: a}]\n",
		"upstreams: [{name: a, url: 'http://127.0.0.1:1', command: npx}]\n",
		"upstreams: [{name: a, command: npx, eras: legacy}]\n",
		"upstreams: [{name: a, url: 'http://127.0.0.1:1', transport: stdio}]\n",
		"upstreams: [{name: A, url: 'http://127.0.0.1:1'}]\n",
		"upstreams: [{name: a, url: 'http://127.0.0.1:1', defaults: {progress: result}}]\n",
		"upstreams: [{name: a, url: 'http://127.0.0.1:1', tools: [{tasks: never}]}]\n",
		"upstreams: [{name: a, url: 'http://127.0.0.1:1', tools: [{match: x, grase: 1s}]}]\n",
	} {
		if _, err := config.Parse("f", []byte(text), noEnv); err == nil {
			t.Errorf("loads: %s", text)
		}
		if matchesSchema(t, text) == nil {
			t.Errorf("matches the schema: %s", text)
		}
	}
}
