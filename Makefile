# outboxgen: `make help` lists the targets.

MODULES  := . $(sort $(dir $(wildcard bench/go.mod bench/*/go.mod consume/*/go.mod publish/*/go.mod playground/go.mod site/go.mod dashboard/*/go.mod docs/go.mod internal/*/*/go.mod internal/*/*/*/go.mod telemetry/*/go.mod sqltx/go.mod sqltx/*/go.mod tools/go.mod tools/*/go.mod examples/*/go.mod)))
EXAMPLES := $(dir $(wildcard bench/*/outbox.yaml sqltx/*/*/outbox.yaml examples/*/*/outbox.yaml internal/testing/faults/*/outbox.yaml))
SCHEMAS  := $(wildcard bench/*/outbox.schema.json examples/*/*/outbox.schema.json)
GO       ?= go

# Only the race detector needs a C compiler. Everything else is built without cgo.
export CGO_ENABLED := 0
export GO

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "%-14s%s\n", $$1, $$2 }'

# `go vet` is left to `make verify`.
TEST := $(GO) test -vet=off -parallel 5

.PHONY: test
test: fetch ## run all tests of all modules with PostgreSQL, and the fast ones with the race detector if there is a C compiler
	@tools/need.sh no-brokers
	@race="$$(tools/need.sh race 2>/dev/null)" && PATH="$(CURDIR)/bin:$$PATH" $(MAKE) --no-print-directory -j2 $(TESTS) $${race:+test-race}

# Most tests wait, for PostgreSQL or for a lease, so more of them run concurrently than there are processors. Two modules
# run concurrently: the first, which is the largest, and one of the others. In the first module the slowest packages
# start first.
TESTS := $(MODULES:%=test-in-%)
.PHONY: $(TESTS)
$(TESTS): test-in-%:
	@echo "== go test $(RACE) ./... in $*" && cd $* && $(TEST) $(RACE) -timeout 30m $(if $(filter .,$*),./queue ./listener ./admin) ./...

# Tests take three to five times as long under the race detector. So the slow ones run under it in `make race` only.
# Packages of internal without goroutines, those of the tests' servers, and other modules are left to it too.
CALM  := $(addprefix ./internal/,call/backoff call/errclass call/isnil postgres/topiclane payloads/decode payloads/masking \
	payloads/upcast postgres/jsonb postgres/pgname tool/humantime tool/payloadcheck tool/redact tool/yamlmask \
	$(addprefix testing/,archtest attack campaign faults freeport mutation pgserver pgtest simulation statements))
RACED := ./queue ./listener ./outbox ./operation ./outboxfake ./admin ./inbox ./consume/... ./worker ./publish/... \
	$(filter-out $(CALM),$(patsubst %/,./%,$(sort $(dir $(wildcard internal/*/*/*_test.go)))))
.PHONY: test-race
test-race:
	@echo "== go test -race -short" && CGO_ENABLED=1 $(TEST) -race -short -timeout 20m $(RACED)

# The packages whose SQL must work with each version of PostgreSQL.
CONTRACT := ./queue ./listener ./inbox ./migrate ./outbox ./operation ./admin
MATRIX   := 14 16 17 18
.PHONY: test-matrix
test-matrix: $(MATRIX:%=test-postgres-%) test-pgbouncer test-go-before vet-elsewhere ## run the contract tests with PostgreSQL 14, 16, 17 and 18, through PgBouncer, and with the previous Go, and vet all modules for Windows and macOS: 40 minutes

.PHONY: $(MATRIX:%=test-postgres-%)
$(MATRIX:%=test-postgres-%): test-postgres-%:
	@bin="$$(tools/postgres.sh $*)" && echo "== $$("$$bin/postgres" --version)" && \
		env -u DATABASE_URL -u OUTBOXGEN_TEST_DATABASE_URL OUTBOXGEN_PG_BIN="$$bin" $(TEST) -timeout 30m $(CONTRACT)

.PHONY: test-pgbouncer
test-pgbouncer: postgres
	@tools/need.sh pgbouncer
	@echo "== PgBouncer" && $(TEST) -count=1 -timeout 10m -run PgBouncer ./queue ./admin ./internal/testing/runtimetest

# The go command fetches the toolchain.
GO_BEFORE := go1.25.5
.PHONY: test-go-before
test-go-before: postgres
	@echo "== $(GO_BEFORE)" && GOTOOLCHAIN=$(GO_BEFORE) $(TEST) -short -timeout 30m ./...
	@cd publish/webhook && GOTOOLCHAIN=$(GO_BEFORE) $(GO) build ./...

.PHONY: campaign
campaign: fetch ## run all cases of the tests of which `make test` takes some: cut connections at every byte, random and hostile YAML, 2,000 pairs of payloads, every mutant of a payload, 20,000 events to consumers, a million edits of a YAML
	OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 1h -run '^(Test.*CutConnection|Test.*CutAtEveryByte|TestWireClass|TestGenerateDeterministic|TestMaskPayload|TestHostileTexts)' ./queue ./listener ./generator
	OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 2h -run '^TestRandomTyping$$' ./cmd/outboxgen/internal/lsp
	cd playground && OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 2h -run '^TestRandomEdits$$' .
	cd dashboard/browsertest && OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 1h ./...
	cd internal/tool/describe/exporttest && OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 1h ./...
	cd publish/webhook && OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 1h -run '^TestReceiverUnderFaults$$' .
	cd publish/kafka && OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 1h -run '^TestOrderUnderRandomRefusals$$' .
	cd consume/kafka && OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 1h -run '^TestUnderFaults$$' .
	cd consume/nats && OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 1h -run '^(TestConsumeUnderFaults|TestKilledInABatch)$$' .
	cd consume/redis && OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 1h -run '^(TestConsumeUnderFaults|TestKilledInABatch)$$' .
	cd consume/amqp && OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 1h -run '^(TestConsumeUnderFaults|TestKilledInABatch)$$' .
	cd tools && OUTBOXGEN_TEST_CAMPAIGN=1 $(TEST) -timeout 1h -run '^TestSameBytesInEachFolder$$' ./binaries

.PHONY: race
race: fetch ## run all tests of all modules with the race detector: 25 minutes
	@race="$$(tools/need.sh race 2>/dev/null)" && test -n "$$race" && CGO_ENABLED=1 $(MAKE) --no-print-directory -j2 $(TESTS) RACE=-race CGO_ENABLED=1

.PHONY: test-brokers
test-brokers: postgres ## test the publishers and consumers for RabbitMQ and Redis with the real servers; install Debian's if there are none: 3 minutes
	@tools/need.sh brokers
	@for m in publish/amqp publish/redis consume/amqp consume/redis consume/relaytest; do \
		echo "== go test ./... in $$m with the real server" && (cd $$m && OUTBOXGEN_TEST_BROKERS=1 $(TEST) -count=1 -timeout 20m ./...) || exit 1; \
	done

# What `make test` and `make verify` need of the network. Without it, GOPROXY=off suffices for them.
.PHONY: fetch
fetch: postgres ## fetch what the tests need from the network: the Go modules of all our modules, and the programs that the tests use
	@tools/need.sh race >/dev/null && tools/need.sh promtool && tools/need.sh chromium && tools/need.sh axe && tools/need.sh asyncapi
	@$(MAKE) --no-print-directory -j8 $(FETCH)

FETCH := $(MODULES:%=fetch-in-%)
.PHONY: $(FETCH)
$(FETCH): fetch-in-%: # go mod tidy reads more modules than a build; whether it would change something is for make verify
	@cd $* && $(GO) mod download && { $(GO) mod tidy -diff >/dev/null 2>&1 || true; }

# What most changes touch. The packages that only start servers, or only use the runtime, are left to `make test`.
QUICK := ./listener/... ./queue/... ./admin ./outbox ./eventkey ./operation ./outboxfake ./generator/... ./payload ./publish \
	./internal/testing/archtest ./internal/call/errclass ./internal/machine/target ./internal/machine/rest
.PHONY: quick
quick: postgres ## run the fast tests of the generator and the runtime, in under a minute
	OUTBOXGEN_SIM_SECONDS=10 $(TEST) -short $(QUICK)

.PHONY: simulate
simulate: ## play random schedules of dispatchers and listeners with faults, in virtual time, for TIME=60s, and leave out each guard; SEED=1 SCHEDULES=500 repeats a run, TELL=7 tells of the schedule of a seed, MACHINE= plays only dispatcher or listener, KEEP=1 keeps what fails as a test
	@$(GO) run ./internal/testing/simulation/simulate $(MACHINE:%=-machine %) $(KEEP:%=-keep) -- -time $(or $(TIME),60s) $(SEED:%=-seed %) $(SCHEDULES:%=-schedules %) $(TELL:%=-tell %)

.PHONY: verify
verify: bin/sqlc bin/staticcheck ## fail if a generated file is stale or a linter finds something
	@echo "== gofmt" && bad="$$($$($(GO) env GOROOT)/bin/gofmt -l $$(git ls-files -co --exclude-standard '*.go'))" && test -z "$$bad" || { echo "$$bad" >&2; exit 1; }
	@echo "== sqlc" && bin/sqlc diff
	@echo "== JSON Schema" && for f in docs/reference/outbox.schema.json $(SCHEMAS); do \
		$(GO) run ./cmd/outboxgen schema | diff -u $$f - || exit 1; \
	done
	@for d in $(EXAMPLES); do \
		echo "== outboxgen generate --check in $$d" && (cd $$d && $(GO) tool outboxgen generate --check) || exit 1; \
	done
	@$(MAKE) --no-print-directory -j2 verify-on-windows $(VERIFY)
	@for m in $(wildcard examples/*/go.mod); do \
		d=$$(dirname $$m) && echo "== outboxgen vet in $$d" && (cd $$d && $(GO) tool outboxgen vet) || exit 1; \
	done
	@echo "== vet, staticcheck of the golden packages" && \
		p="$$(dirname $$(ls ./generator/testdata/*/want/*.go) | sort -u)" && \
		$(GO) vet $$p && bin/staticcheck $$p

VERIFY := $(MODULES:%=verify-in-%)
.PHONY: $(VERIFY)
$(VERIFY): verify-in-%: bin/staticcheck
	@echo "== vet, staticcheck, tidy in $*" && cd $* && $(GO) vet ./... && $(CURDIR)/bin/staticcheck ./... && $(GO) mod tidy -diff

# What users compile must compile for their systems too, tests included. The first module has nearly all that differs by
# system, and that for Windows. Each other module, and macOS, is compiled with all that it needs, so these are left to
# `make vet-elsewhere`.
SYSTEMS := windows darwin
$(SYSTEMS:%=verify-on-%): MODULES_ELSEWHERE := .
ELSEWHERE := $(SYSTEMS:%=verify-on-%)
.PHONY: $(ELSEWHERE)
$(ELSEWHERE): verify-on-%:
	@for m in $(MODULES_ELSEWHERE); do \
		echo "== vet for $* in $$m" && (cd $$m && GOOS=$* GOARCH=amd64 $(GO) vet ./...) || exit 1; \
	done

.PHONY: vet-elsewhere
vet-elsewhere: fetch ## vet all modules that users compile for Windows and macOS: 10 minutes
	@$(MAKE) --no-print-directory -j2 $(ELSEWHERE) \
		MODULES_ELSEWHERE=". $(filter-out bench/% docs/% examples/% internal/% tools/%,$(filter-out .,$(MODULES)))"

.PHONY: generate
generate: bin/sqlc ## write all generated files: queries, JSON Schema, docs/reference/cli.md and rules.md, examples
	bin/sqlc generate
	for f in docs/reference/outbox.schema.json $(SCHEMAS); do $(GO) run ./cmd/outboxgen schema > $$f || exit 1; done
	$(GO) test ./cmd/outboxgen/internal/cli -run '^TestDocsOf' -update
	@for d in $(EXAMPLES); do (cd $$d && $(GO) generate ./...) || exit 1; done

.PHONY: demo
demo: postgres ## run minichat: four producers, two workers, a Kafka consumer, a kill -9, and a check of every event; DEMO=stay keeps its dashboard
	@cd examples/minichat && $(GO) run ./cmd/demo $(if $(filter stay,$(DEMO)),-stay)

# The page has all in one file, so that it works from a folder.
.PHONY: playground
playground: playground/node_modules ## write the playground, a page with the generator as WebAssembly, to dist/playground
	@cd playground && $(GO) run ./build

.PHONY: test-playground
test-playground: playground ## test the playground in Chromium: 2 minutes
	@tools/need.sh chromium && tools/need.sh axe
	cd playground && OUTBOXGEN_TEST_PLAYGROUND="$(CURDIR)/dist/playground" $(TEST) -count=1 -timeout 20m -v ./browsertest

.PHONY: vscode
vscode: editors/vscode/node_modules ## package the extension for VS Code as dist/outboxgen.vsix, and test what can be tested without VS Code
	@mkdir -p dist && cd editors/vscode && npm run --silent package -- --out ../../dist/outboxgen.vsix && \
		OUTBOXGEN_VSIX="$(CURDIR)/dist/outboxgen.vsix" npm test --silent

%/node_modules: %/package-lock.json
	@tools/need.sh npm
	@cd $* && npm ci --silent --no-audit --no-fund --ignore-scripts && touch node_modules

.PHONY: screenshots
screenshots: postgres ## take the pictures of the dashboard in docs/images, in Chromium
	@tools/need.sh chromium
	cd dashboard/browsertest && $(GO) test -run '^TestScreenshots$$' -count=1 . -screenshots ../../docs/images

.PHONY: site
site: ## write the documents as a web site into dist/site, and check its links; with the playground, if make playground has written it
	@tools/need.sh site
	@cd site && npm run --silent build && echo "the site is in dist/site: open dist/site/index.html"

.PHONY: test-site
test-site: site ## test the site and what makes it, in Chromium too: 2 minutes
	@cd site && npm run --silent test
	@tools/need.sh chromium && tools/need.sh axe
	@cd site && OUTBOXGEN_SITE="$(CURDIR)/dist/site" $(TEST) -count=1 -timeout 30m ./...

.PHONY: bench
bench: postgres ## compare with hand-written SQL, River and watermill in docs/inside/benchmarks.md: 2 hours; BENCH="-only drain -runs 3" for less
	cd bench && $(GO) run . $(if $(BENCH),$(BENCH),-out ../docs/inside)

.PHONY: bench-dbos
bench-dbos: postgres ## compare flow control with the queues of DBOS: 6 minutes
	cd bench && $(GO) run . -only dbos -runs 3 $(BENCH)

.PHONY: bench-curves
bench-curves: postgres ## measure what becomes of rates with more producers, processes, topics, tenants, keys, shards and larger payloads, in docs/inside/benchmarks.md: 20 minutes
	cd bench && $(GO) run . -only curve $(if $(BENCH),$(BENCH),-runs 3 -out ../docs/inside)

.PHONY: chaos
chaos: postgres ## run 8 writers against the listeners for a million steps, worker processes with limits for 200 rounds of faults, and check query plans with a backlog of a million
	OUTBOXGEN_CHAOS_STEPS=1000000 OUTBOXGEN_PLAN_BACKLOG=1000000 $(GO) test ./listener -timeout 3h -v -run '^(TestChaos|TestCursor|TestChaosChecker|TestListenerPlans)'
	OUTBOXGEN_CHAOS_ROUNDS=200 OUTBOXGEN_PLAN_BACKLOG=1000000 OUTBOXGEN_LIMITS_SEEDS=100 $(GO) test ./queue -timeout 3h -v \
		-run '^(TestChaosOfLimits|TestReferee|TestClaimsDoNotWalk|TestLimitsAgainstAModel)'

.PHONY: life
life: postgres ## fill the tables with EVENTS=10000000 and check that what happened to an entity is answered within 200 ms: 8 minutes and 6 GB
	OUTBOXGEN_LIFE_EVENTS=$(or $(EVENTS),10000000) $(GO) test ./admin -count=1 -timeout 3h -v -run '^TestLifeReadsWhatItReturns$$'

# SAMPLE=40 SEED=7 tries as many mutants, ONLY="^EventClaim:" those of a statement. A run that was stopped goes on where it was.
.PHONY: mutation
mutation: postgres ## change each condition of SQL and of what decides in Go, one at a time, and run the tests that use it: hours; SAMPLE=40 SEED=7 for some, ONLY="^EventClaim:"
	@$(GO) run ./internal/testing/mutation $(if $(SAMPLE),-sample $(SAMPLE)) $(if $(SEED),-seed $(SEED)) $(if $(ONLY),-only "$(ONLY)") $(MUTATION)

# An overlay of the standard library, with which the clocks of the worker processes jump.
CLOCKS = $(or $(TMPDIR),/tmp)/outboxgen-clocks-$(shell id -u)
.PHONY: chaos-million
chaos-million: postgres ## a million attempts of worker processes with limits, whose clocks jump, under faults: 20 to 35 minutes
	@cd tools && $(GO) run ./stepclock "$(CLOCKS)"
	OUTBOXGEN_CHAOS_ATTEMPTS=1000000 OUTBOXGEN_CHAOS_ROUNDS=20 OUTBOXGEN_CHAOS_CLOCKS=1 $(GO) test -overlay "$(CLOCKS)/overlay.json" ./queue -count=1 \
		-timeout 2h -v -run '^TestChaosOfLimits$$'

# First the control, without faults. Then the clocks of some of the worker processes jump, too.
.PHONY: faults
faults: postgres ## do all kinds of faults to the processes of a shop and check what they saw; TIME=10m SEED=1, or EVENTS=1000000 FAULTS=2000 as for a release
	@cd tools && $(GO) run ./stepclock "$(CLOCKS)" >/dev/null
	@cd internal/testing/faults && $(GO) build -overlay "$(CLOCKS)/overlay.json" -o "$(CLOCKS)/faults" .
	@"$(CLOCKS)/faults" -calm -events 5000 $(if $(SEED),-seed $(SEED))
	@"$(CLOCKS)/faults" $(if $(FAULTS),-faults $(FAULTS),-time $(or $(TIME),10m)) $(if $(EVENTS),-events $(EVENTS)) $(if $(SEED),-seed $(SEED)) $(if $(KEEP),-keep "$(KEEP)")

# DRILLS_PG_NEW is the server that dump and logical move to; upgrade takes the newest PostgreSQL that has pg_upgrade.
DRILLS := promote restore upgrade dump logical maintenance clock wraparound pgbouncer
.PHONY: drills $(DRILLS:%=drill-%)
drills: $(DRILLS:%=drill-%) ## break PostgreSQL in the nine ways of docs/operate/drills.md, and count what is lost or comes twice: 5 minutes; make drill-promote for one. `make test` has all but maintenance, clock and pgbouncer
$(DRILLS:%=drill-%): drill-%: postgres
	@test $* != pgbouncer || tools/need.sh pgbouncer
	@DRILLS_PG_NEW="$$(tools/postgres.sh 17)" tools/drills/$*.sh

.PHONY: release
release: ## commit and tag a release, for example VERSION=v0.1.0, after all checks; CHECKS=none leaves out test and verify; pushes nothing
	@cd tools/release && $(GO) run . release -checks "$(or $(CHECKS),test verify)" "$(VERSION)"

# A folder with the module proxy, and with the module cache of the newcomer. It has one name, so that the build cache serves it again.
REHEARSAL = $(or $(TMPDIR),/tmp)/outboxgen-rehearsal-$(shell id -u)
.PHONY: rehearsal
rehearsal: postgres ## pack what would be released, and follow README and tutorial with it in an empty folder: 5 minutes
	@cd tools/release && $(GO) run . rehearse "$(REHEARSAL)"
	@cd docs/check && OUTBOXGEN_REHEARSAL="$(REHEARSAL)" $(GO) test -vet=off -count=1 -timeout 20m -run '^TestRehearsal' .

.PHONY: fuzz
fuzz: ## run every fuzz target for 30 s
	@grep -rlE '^func Fuzz' --include='*_test.go' --exclude-dir=testdata . | xargs -n1 dirname | sort -u | while read d; do \
		for f in $$(grep -hoE '^func Fuzz\w+' $$d/*_test.go | cut -d' ' -f2); do \
			echo "== $$f in $$d" && (cd $$d && $(GO) test . -run '^$$' -fuzz "^$$f$$" -fuzztime 30s -fuzzminimizetime 10x) || exit 1; \
		done; \
	done

.PHONY: binaries
binaries: ## build outboxgen for Linux, macOS and Windows into dist, with checksums and SBOMs; VERSION=v0.1.0
	@rm -rf dist && cd tools && $(GO) run ./binaries -root .. -out ../dist -version "$(VERSION)"

.PHONY: postgres
postgres: ## check that PostgreSQL (14 to 18) can be started; install Debian's or fetch a build if there is none
	@tools/need.sh postgres

bin/%: tools/go.mod tools/go.sum
	@echo "building $* (takes some minutes the first time)" >&2
	@cd tools && $(GO) build -o ../bin/$* $$($(GO) list -f '{{.ImportPath}}' tool | grep '/$*$$')
	@touch $@
