package importtest

// imports says which packages of the module each package may import in the code
// that becomes part of a program. A package that is missing here fails the test:
// where it belongs is to be decided, not to be found out later.
//
// The direction is: cmd wires, gateway speaks, shim decides, redisstore
// remembers. No arrow goes back, and none runs between redisstore and gateway.
var imports = map[string][]string{
	"cmd/taskgate": {"gateway", "gateway/auth", "gateway/config", "gateway/operator", "gateway/operator/terminal", "gateway/sealed", "gateway/stdio", "gateway/upstream", "gateway/upstream/forward", "gateway/upstream/reading", "gateway/upstream/stdio", "redisstore", "redisstore/journal", "shim", "shim/engine", "shim/job", "internal/budget", "internal/connect", "internal/durable", "internal/heads", "internal/metrics", "internal/semconv", "internal/service", "internal/work"},

	"gateway": {
		"gateway/auth", "gateway/config", "gateway/endpoint", "gateway/legacy", "gateway/modern", "gateway/sealed", "gateway/upstream", "gateway/upstream/forward", "gateway/wire",
		"shim", "internal/budget", "internal/eventstream", "internal/jsonrpc", "internal/mcp", "internal/metrics", "internal/patience", "internal/work",
	},
	"gateway/legacy": {
		"gateway/config", "gateway/endpoint", "gateway/modes", "gateway/sealed", "gateway/translate", "gateway/upstream", "gateway/upstream/forward", "gateway/upstream/reading", "gateway/wire",
		"shim", "shim/dialect", "internal/budget", "internal/eventstream", "internal/jsonrpc", "internal/mcp", "internal/patience", "internal/work",
	},
	"gateway/modern": {
		"gateway/config", "gateway/endpoint", "gateway/sealed", "gateway/translate", "gateway/upstream", "gateway/upstream/forward", "gateway/wire",
		"shim", "shim/dialect", "internal/budget", "internal/jsonrpc", "internal/mcp", "internal/mcpheader",
	},
	"gateway/operator":          {"gateway/auth", "shim", "internal/eventstream", "internal/metrics", "internal/work"},
	"gateway/operator/terminal": {"gateway/operator", "shim", "internal/work"},
	"gateway/modes": {
		"gateway/config", "gateway/endpoint", "gateway/wire", "shim", "shim/content", "shim/dialect", "internal/jsonrpc", "internal/mcp",
	},
	"gateway/endpoint": {
		"gateway/config", "gateway/sealed", "gateway/translate", "gateway/upstream", "gateway/upstream/reading", "gateway/wire", "shim",
		"internal/jsonrpc", "internal/mcp",
	},
	"gateway/stdio":     {"gateway/wire", "internal/eventstream", "internal/jsonrpc", "internal/mcp", "internal/work"},
	"gateway/translate": {"gateway/sealed", "gateway/upstream", "shim", "internal/jsonrpc", "internal/mcp", "internal/mcpheader"},
	"gateway/wire": {
		"gateway/sealed", "shim", "shim/dialect",
		"internal/budget", "internal/eventstream", "internal/jsonrpc", "internal/mcp", "internal/metrics", "internal/semconv", "internal/sparing", "internal/work",
	},
	"gateway/auth":        {"gateway/config", "gateway/remember", "gateway/sealed", "shim", "internal/mcp", "internal/work"},
	"gateway/config":      {"shim", "shim/job", "internal/storeurl"},
	"gateway/remember":    {"internal/jsonrpc", "internal/work"},
	"gateway/sealed":      {"internal/jsonrpc"},
	"gateway/gatewaytest": {"gateway/legacy", "shim"},
	"gateway/upstream": {
		"gateway/remember", "gateway/upstream/forward", "gateway/upstream/listed", "gateway/upstream/reading", "gateway/upstream/sse", "gateway/upstream/streamable", "gateway/upstream/transport", "shim", "shim/job",
		"internal/budget", "internal/eventstream", "internal/jsonrpc", "internal/mcp", "internal/mcpheader", "internal/metrics", "internal/semconv", "internal/work",
	},

	"gateway/upstream/duplex":        {"gateway/upstream/transport", "shim", "internal/budget", "internal/jsonrpc", "internal/mcp", "internal/work"},
	"gateway/upstream/forward":       {"shim", "internal/mcp"},
	"gateway/upstream/listed":        {"shim", "internal/jsonrpc", "internal/mcp"},
	"gateway/upstream/reading":       {"shim", "internal/jsonrpc", "internal/mcp"},
	"gateway/upstream/sse":           {"gateway/upstream/duplex", "gateway/upstream/forward", "gateway/upstream/streamable", "gateway/upstream/transport", "shim", "internal/eventstream", "internal/mcp", "internal/work"},
	"gateway/upstream/stdio":         {"gateway/upstream/duplex", "gateway/upstream/transport", "shim", "internal/jsonrpc", "internal/procgroup", "internal/sparing"},
	"gateway/upstream/streamable":    {"gateway/upstream/forward", "gateway/upstream/transport", "shim", "internal/budget", "internal/eventstream", "internal/jsonrpc", "internal/mcp", "internal/pool", "internal/work"},
	"gateway/upstream/transport":     {"gateway/upstream/forward", "shim", "internal/budget", "internal/jsonrpc", "internal/mcp"},
	"gateway/upstream/transporttest": {"gateway/upstream/transport", "internal/jsonrpc", "internal/mcp"},

	"shim":                       {"shim/job", "internal/jsonrpc"},
	"shim/job":                   {"internal/jsonrpc"},
	"shim/node":                  {"shim", "shim/content", "internal/jsonrpc", "internal/metrics", "internal/patience", "internal/semconv", "internal/sparing", "internal/work"},
	"shim/runner":                {"shim", "shim/content", "shim/node", "internal/budget", "internal/jsonrpc", "internal/metrics", "internal/semconv", "internal/work"},
	"shim/engine":                {"shim", "shim/node", "shim/runner", "internal/budget", "internal/metrics", "internal/patience", "internal/semconv", "internal/work"},
	"shim/content":               {"internal/jsonrpc"},
	"shim/dialect":               {"shim", "internal/jsonrpc", "internal/mcp"},
	"shim/shimtest":              {"shim"},
	"shim/shimtest/fake":         {},
	"shim/shimtest/sdkpeer":      {},
	"redisstore":                 {"shim", "redisstore/interpreter", "redisstore/journal", "internal/memconn", "internal/metrics", "internal/patience", "internal/storeurl", "internal/work"},
	"redisstore/interpreter":     {},
	"redisstore/journal":         {"internal/durable", "internal/work"},
	"internal/budget":            {"internal/pool"},
	"internal/pool":              {},
	"internal/connect":           {},
	"internal/heads":             {},
	"internal/metrics":           {"internal/semconv"},
	"internal/patience":          {},
	"internal/work":              {"internal/budget"},
	"internal/durable":           {},
	"internal/memconn":           {"internal/work"},
	"internal/storeurl":          {},
	"internal/jsonrpc":           {},
	"internal/mcp":               {"internal/jsonrpc"},
	"internal/mcpheader":         {"internal/jsonrpc"},
	"internal/eventstream":       {"internal/pool", "internal/work"},
	"internal/semconv":           {},
	"internal/schematest":        {},
	"internal/wiretest":          {"gateway/config", "redisstore", "shim/node", "internal/durable", "internal/jsonrpc", "internal/mcp", "internal/mcpheader", "internal/schematest"},
	"internal/redistest":         {"internal/memconn", "internal/proc"},
	"internal/disktest":          {},
	"internal/sim":               {"internal/disktest", "internal/eventstream", "internal/redistest"},
	"internal/otlptest":          {},
	"internal/importtest":        {},
	"internal/configschema":      {"gateway/config"},
	"internal/proc":              {"internal/procgroup"},
	"internal/procgroup":         {},
	"internal/service":           {},
	"internal/sparing":           {},
	"internal/programtest":       {"internal/proc"},
	"internal/taskclient":        {"internal/eventstream", "internal/mcp"},
	"internal/balancer":          {},
	"internal/bench":             {"internal/mcp", "internal/proc", "internal/taskclient", "internal/work"},
	"internal/e2e":               {},
	"internal/attack":            {},
	"internal/chaos":             {},
	"internal/agents":            {},
	"internal/e2e/conformserver": {"internal/e2e/nativetasks"},
	"internal/e2e/nativetasks":   {"internal/mcp"},
	"examples/slowserver":        {},
	"examples/demo":              {"internal/mcp", "internal/proc", "internal/taskclient"},

	"internal/metrics/metricstest": {"internal/metrics", "internal/semconv"},
	"deploy/check":                 {},
	"internal/console":             {},
	"internal/compare":             {"internal/compare/peers", "internal/eventstream", "internal/mcp", "internal/proc", "internal/taskclient"},
	"internal/compare/peers":       {},
	"internal/compare/trialserver": {},
	"internal/compare/bareproxy":   {},
	"examples/observability/check": {},
}

// fences says who may import a package from outside of the module, by the
// beginning of its path. Tests may use what they need, but for those fences that
// say otherwise.
var fences = []fence{
	{
		path:    "github.com/redis/go-redis",
		allowed: []string{"redisstore", "internal/redistest"},
		tests:   []string{"redisstore", "internal/redistest", "internal/e2e"},
		why:     "Redis is behind shim.Store",
	},
	{
		path:    "github.com/alicebob/miniredis",
		allowed: []string{"redisstore", "redisstore/interpreter", "internal/redistest"},
		tests:   []string{"redisstore", "redisstore/interpreter", "internal/redistest"},
		why:     "the embedded store is redisstore's business",
	},
	{
		path: "net/http",
		allowed: []string{
			"cmd/taskgate", "gateway", "gateway/auth", "gateway/legacy", "gateway/modern", "gateway/operator", "gateway/operator/terminal", "gateway/stdio", "gateway/wire", "gateway/upstream", "gateway/upstream/forward", "gateway/upstream/sse",
			"gateway/upstream/streamable", "gateway/upstream/transport", "gateway/upstream/transporttest", "internal/eventstream", "internal/heads",
			"internal/taskclient", "internal/balancer", "internal/bench", "internal/sim", "shim/shimtest/fake",
			"examples/slowserver", "internal/e2e/conformserver", "internal/e2e/nativetasks", "internal/wiretest", "internal/otlptest", "internal/agents",
			"internal/compare", "internal/compare/bareproxy", "internal/compare/trialserver",
		},
		why: "what is no edge must not know the transport",
	},
	{
		path:    "github.com/go-jose/go-jose",
		allowed: []string{"gateway/auth", "internal/wiretest"},
		why:     "tokens are verified in one place",
	},
	{
		path:    "github.com/oauth2-proxy/mockoidc",
		allowed: nil,
		tests:   []string{"internal/e2e"},
		why:     "it is a provider to test with",
	},
	{
		path:    "github.com/modelcontextprotocol/go-sdk",
		allowed: []string{"shim/shimtest", "shim/shimtest/fake", "shim/shimtest/sdkpeer", "examples/slowserver", "internal/e2e/conformserver", "internal/e2e/nativetasks", "internal/compare", "internal/compare/trialserver"},
		why:     "the SDK changes what passes through it; it is a peer to test with",
	},
	{
		path:    "github.com/mark3labs/mcp-go",
		allowed: nil,
		tests:   []string{"internal/e2e"},
		why:     "it is a peer to test with",
	},
	{
		path:    "go.opentelemetry.io/otel/sdk",
		allowed: []string{"cmd/taskgate", "internal/metrics/metricstest"},
		why:     "below cmd there is only the telemetry API, but for the exporter that cmd wires",
	},
	{
		path:    "go.opentelemetry.io/contrib",
		allowed: []string{"cmd/taskgate"},
		why:     "which exporters there are is wiring",
	},
	{
		path:    "github.com/prometheus",
		allowed: []string{"cmd/taskgate", "internal/bench"},
		tests:   []string{"cmd/taskgate", "examples/observability/check", "internal/attack"},
		why:     "below cmd there is only the telemetry API; the benchmark reads /proc by procfs",
	},
	{
		path:    "github.com/prometheus/prometheus",
		allowed: nil,
		tests:   []string{"examples/observability/check"},
		why:     "Prometheus itself checks the example, in a module of its own",
	},
	{
		path:    "gopkg.in/yaml",
		allowed: nil,
		tests:   []string{},
		why:     "go.yaml.in/yaml is the one in use",
	},
}

// shimImports are all packages from outside of the module that shim and those below it may import,
// besides the standard library.
var shimImports = []string{
	"github.com/google/uuid",
	"github.com/hashicorp/golang-lru/v2", // imports nothing itself
	"go.opentelemetry.io/otel",
}

// detachment is a use of context.WithoutCancel.
type detachment struct {
	uses int
	why  string
}

// withoutCancel are the places that may detach work from the context of the
// request that caused it. Each is a decision of the design, since what is
// detached has to be ended by somebody else.
var withoutCancel = map[string]detachment{
	"cmd/taskgate/server.go":          {1, "running tasks need the heartbeat while the process drains"},
	"gateway/legacy/initialize.go":    {1, "a session that could not be opened is taken back, whoever waits"},
	"gateway/legacy/session_live.go":  {1, "losing the connection does not cancel a legacy call (X3)"},
	"gateway/legacy/request.go":       {1, "what is in the log has to be ended there, also where the client goes"},
	"gateway/legacy/session_table.go": {2, "the end of a session outlives the request, or the loop, that found it"},
	"gateway/upstream/exchange.go":    {1, "a cancellation is told to the server before the connection goes"},
	"gateway/upstream/sse/connect.go": {1, "a connection outlives the request that it is opened for, and signs in as that did"},
	"gateway/upstream/sse/conn.go":    {1, "a POST that is cut off when it is answered could break another one"},
	"gateway/upstream/job.go":         {1, "the id of a job that is just being started is needed to cancel it"},
	"gateway/upstream/wire.go":        {1, "a farewell outlives its call"},
	"internal/work/background.go":     {1, "what several callers share outlives each"},
	"shim/runner/run.go":              {1, "a task outlives the call that made it"},
}
