# The commands of the project. "make" lists them.

GO          ?= go
BIN         := bin
NODE_DIR    := $(if $(TASKGATE_NODE_DIR),$(TASKGATE_NODE_DIR),$(CURDIR)/.cache/node)
NODE_SOURCE := internal/e2e/testdata/node
# A number of inputs, not a time: with a time, "go test" before 1.27 now and then fails
# with "context deadline exceeded" when it has run out (https://go.dev/issue/75804).
FUZZTIME    ?= 50000x
BENCH       ?=
# What make compare measures, and for how many seconds its silent tool says nothing.
ROWS        ?= silence survive resumable through cost protocol tasks
PEERS       ?=
SILENCE     ?= 90
TRIES       ?= 50
SEED        ?= 1
SEEDS       ?= 10
CALLS       ?= 300
# Further seeds are taken until so much time is over.
FOR         ?= 0
CHAOS_SEED  ?= $(shell date +%s)
CHAOS_CALLS ?= 4000
CHAOS_ORPHANS ?= 2000
# What is released; TARGETS="linux/amd64" builds less.
VERSION     ?= v0.0.0-g$(shell git rev-parse --short HEAD 2>/dev/null || echo 0)
TARGETS     ?=
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT  := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
# Packages that are tested at a time: more than two processors would have, since many tests wait.
PACKAGES    ?= 4
# Packages whose tests are all about processes. In the others -short leaves out those that start one.
PROCESSES   := /(upstream/stdio|internal/(agents|chaos|e2e|proc|redistest))$$
# Without the check for what is deprecated: the peers in the tests have to use what
# the protocol has deprecated and clients and servers still do.
CHECKS      := inherit,-SA1019

.DEFAULT_GOAL := help
.PHONY: help build check test race lint fuzz demo compare bench scale attack chaos e2e agents silence outages upgrade simulate recording screenshots conformance windows node schema snapshot docker clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z][a-z0-9]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build taskgate and the examples into bin/
	$(GO) build -o $(BIN)/ ./cmd/... ./examples/...

check: export GOGC = 800
check: lint ## For the inner loop: formatting, vet, staticcheck, and the tests that start no processes
	$(GO) test -short -p $(PACKAGES) $$($(GO) list ./... | grep -vE '$(PROCESSES)')

test: ## Run the tests but the long ones (TASKGATE_WHOLE=1 runs all); what needs Redis is skipped where there is none
	$(GO) test -p $(PACKAGES) -timeout 20m ./...

race: ## Run the tests of make test with the race detector
	$(GO) test -race ./...

lint: ## Check formatting, go.mod and workflows, and look for mistakes with vet and staticcheck
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted: $$unformatted"; exit 1; }
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) -checks $(CHECKS) ./...
	$(GO) run $(ACTIONLINT) .github/workflows/*.yml

fuzz: ## Run each fuzz test for FUZZTIME (50000x, which is inputs)
	@grep -rlE '^func Fuzz' --include='*_test.go' cmd examples gateway internal redisstore shim | while read -r file; do \
	  for name in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$$file"); do \
	    echo "$$file $$name"; \
	    $(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x "./$$(dirname "$$file")" || exit 1; \
	  done; \
	done

demo: build ## Watch a slow call become a task (about twelve seconds)
	@$(BIN)/demo --bin $(BIN)

compare: node $(NODE_DIR)/large-agents/installed ## Measure taskgate beside what people would use in its place, and write docs/comparison.md (ROWS, PEERS, SILENCE; hours)
	$(GO) -C internal/compare run . install $(if $(PEERS),-peers "$(PEERS)")
	TASKGATE_NODE_DIR=$(NODE_DIR) $(GO) -C internal/compare run . run -seconds $(SILENCE) $(if $(PEERS),-peers "$(PEERS)") $(ROWS)
	$(GO) -C internal/compare run . page

scale: ## Measure many clients at several replicas on a Redis Cluster, and calculate 100,000 (SCALE has flags; needs redis-server)
	$(GO) build -o $(BIN)/ ./cmd/taskgate ./internal/bench
	@$(BIN)/bench -taskgate $(BIN)/taskgate -only scale $(SCALE)

bench: ## Measure what the gateway costs beside a bare reverse proxy (BENCH has flags; needs redis-server)
	$(GO) build -o $(BIN)/ ./cmd/taskgate ./internal/bench
	@$(BIN)/bench -taskgate $(BIN)/taskgate $(BENCH)
	$(GO) test ./redisstore -run '^$$' -bench Made

chaos: ## Break gateways and Redis under thousands of calls (CHAOS_SEED repeats a run; needs redis-server)
	$(GO) test -count=1 -timeout 60m -v ./internal/chaos -seed $(CHAOS_SEED) -calls $(CHAOS_CALLS) -orphans $(CHAOS_ORPHANS) -workers 100

simulate: ## Simulate whole deployments under faults: SEEDS (10) of them from SEED (1) on, with CALLS (300) calls each
	$(GO) test -count=1 -timeout 0 -v -run '^TestSimulation$$' ./cmd/taskgate -seed $(SEED) -seeds $(SEEDS) -calls $(CALLS) -for $(FOR)

attack chaos e2e conformance outages upgrade: export TASKGATE_WHOLE = 1

attack: ## Attack a gateway with the memory of a container of 1 GiB (ATTACK=-update writes the table of docs/security.md)
	$(GO) test -count=1 -v -timeout 30m ./internal/attack $(ATTACK)

e2e: node $(NODE_DIR)/servers/installed ## Run the end-to-end tests with real clients, servers and agents
	$(GO) test -count=1 -v -timeout 20m ./internal/e2e ./internal/agents

agents: node $(NODE_DIR)/large-agents/installed ## Run coding agents in front of the gateway (fetches 1 GB)
	$(GO) test -count=1 -v -timeout 15m -parallel 16 -run 'TestAgents|TestTableOfAgents' ./internal/agents -all

silence: node $(NODE_DIR)/large-agents/installed ## Run the agents where they take many minutes: a silent tool, calls made again
	$(GO) test -count=1 -v -timeout 40m -parallel 16 -run 'TestAgents' ./internal/agents -all -silent

outages: node $(NODE_DIR)/large-agents/installed ## Have TRIES tasks (50) of each client meet each outage (half an hour)
	$(GO) test -count=1 -v -timeout 60m -parallel 1 -run 'TestOutages' ./internal/agents -all -tries $(TRIES)

upgrade: TRIES = 20
upgrade: PREVIOUS = $(shell sed -nE 's/^const previousCommit = "(.......).*/\1/p' internal/e2e/upgrade_test.go)
upgrade: ## Go from the version before to this one and back, under load, TRIES times (20)
	$(GO) test -count=1 -v -timeout 60m -parallel 4 -run 'TestUpgrade' ./internal/e2e -upgrades $(TRIES)
	cd .cache/taskgate-$(PREVIOUS) && $(GO) build -buildvcs=false -o $(CURDIR)/$(BIN)/taskgate-before ./cmd/taskgate
	$(GO) test -count=1 -timeout 60m -v -run '^TestChaos$$' ./internal/chaos -before $(CURDIR)/$(BIN)/taskgate-before -calls 2000 -workers 60

recording: node $(NODE_DIR)/large-agents/installed ## Record Claude Code with a slow tool for the README
	$(GO) test -count=1 -run 'TestRecording' ./internal/agents -record $(CURDIR)/docs/recording.svg

screenshots: ## Make the pictures of the console for the documents (needs chromium)
	$(GO) -C internal/console test -count=1 -run TestPictures . -args -pictures $(CURDIR)/docs

conformance: node ## Run the official conformance suite through the gateway
	$(GO) test -count=1 -v -run 'Conformance' ./internal/e2e

windows: ## Run what is particular to Windows under wine; skipped where there is none
	.ci/windows

# What the tests need of Node, on Linux including Node itself.
node: $(NODE_DIR)/installed $(NODE_DIR)/small-agents/installed $(if $(TASKGATE_WHOLE),$(NODE_DIR)/servers/installed) ## Install the Node packages of the tests

define install
@mkdir -p $(@D)
cp $^ $(@D)/
cd $(@D) && npm $(1) --no-audit --no-fund
@touch $@
endef

$(NODE_DIR)/installed: $(addprefix $(NODE_SOURCE)/,package.json package-lock.json .npmrc)
	$(call install,ci)

$(NODE_DIR)/servers/installed: $(addprefix internal/e2e/testdata/servers/,package.json package-lock.json .npmrc)
	$(call install,ci)

# Not "ci": an agent names optional packages that are not there any more.
$(NODE_DIR)/%-agents/installed: $(addprefix internal/agents/testdata/%-agents/,package.json package-lock.json .npmrc)
	$(call install,install)

schema: ## Regenerate what is generated from the source
	$(GO) generate ./...

snapshot: ## Build archives, packages, checksums and bills of materials into dist/ (VERSION, TARGETS)
	deploy/build $(VERSION) $(TARGETS)

docker: ## Build the container image taskgate:dev
	docker build -t taskgate:dev .

clean: ## Remove what was built and downloaded
	rm -rf $(BIN) .cache dist
