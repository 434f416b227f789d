// Package archtest fails if a package imports against the arrows of docs/inside/architecture.md, or if the documents
// name something that does not exist.
package archtest

import (
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/outboxgen/outboxgen/"

// pkg is what `go list -json` prints about a package.
type pkg struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = "../../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	all := make(map[string]pkg)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			return all
		} else {
			require.NoError(t, err)
		}
		all[strings.TrimPrefix(p.ImportPath, module)] = p
	}
}

// TestImports checks that each package imports only what it may from this module, and uses each allowance. The rooms of
// docs/inside/architecture.md have coarser arrows, which TestArrows checks.
func TestImports(t *testing.T) {
	t.Parallel()
	may := map[string][]string{
		"payload": {},
		"outbox": {
			"internal/broker/wireheader", "internal/call/errclass", "internal/call/errtext", "internal/call/isnil",
			"internal/call/usercode", "internal/payloads/masking", "internal/postgres/doorbell",
			"internal/postgres/jsonb", "internal/postgres/pgname", "internal/postgres/pgvalue",
			"internal/postgres/queries", "internal/postgres/schemadb", "internal/postgres/tenantlane", "payload",
		},
		"publish":                     {"internal/call/usercode", "outbox", "publish/internal/attributes"},
		"publish/internal/attributes": {"outbox"},
		"queue": {
			"internal/call/backoff", "internal/call/errclass", "internal/call/errtext", "internal/call/usercode",
			"internal/machine/config", "internal/machine/heartbeat", "internal/machine/report",
			"internal/machine/retention", "internal/machine/shutdown", "internal/machine/target",
			"internal/machine/testsignal", "internal/payloads/decode", "internal/postgres/doorbell",
			"internal/postgres/pgname", "internal/postgres/pgvalue", "internal/postgres/queries",
			"internal/postgres/schemadb", "internal/postgres/tenantlane", "outbox", "publish",
		},
		"listener": {
			"internal/call/backoff", "internal/call/errclass", "internal/call/errtext", "internal/call/usercode",
			"internal/machine/config", "internal/machine/heartbeat", "internal/machine/report",
			"internal/machine/retention", "internal/machine/shutdown", "internal/machine/target",
			"internal/machine/testsignal", "internal/payloads/decode", "internal/postgres/doorbell",
			"internal/postgres/methodtx", "internal/postgres/pgname", "internal/postgres/pgvalue",
			"internal/postgres/queries", "internal/postgres/schemadb", "outbox", "publish",
		},
		"admin": {
			"internal/call/backoff", "internal/call/errtext", "internal/machine/config", "internal/machine/heartbeat",
			"internal/machine/retention", "internal/postgres/doorbell", "internal/postgres/jsonb",
			"internal/postgres/pgname", "internal/postgres/pgvalue", "internal/postgres/queries",
			"internal/postgres/schemadb", "internal/postgres/schemadrift", "migrate", "outbox",
		},
		"dashboard":      {"admin", "internal/tool/humantime", "outbox"},
		"worker/signals": {},
		"worker":         {"internal/call/errtext", "internal/call/isnil", "internal/call/usercode", "outbox"},
		"inbox": {
			"internal/call/isnil", "internal/call/usercode", "internal/postgres/pgvalue", "internal/postgres/queries",
			"internal/postgres/schemadb",
		},
		"consume": {
			"inbox", "internal/call/errclass", "internal/call/errtext", "internal/call/isnil",
			"internal/call/usercode", "internal/payloads/fastjson", "internal/payloads/upcast",
			"internal/postgres/methodtx", "payload",
		},
		"consume/receive": {
			"consume", "inbox", "internal/call/backoff", "internal/call/errclass", "internal/call/usercode",
			"internal/postgres/methodtx", "internal/postgres/pgvalue", "internal/postgres/queries",
			"internal/postgres/schemadb",
		},
		"consume/consumetest": {
			"consume", "consume/receive", "inbox", "internal/testing/pgtest", "internal/testing/runtimetest",
		},
		"consume/webhook": {
			"consume", "inbox", "internal/broker/webhookkey", "internal/call/errclass", "internal/call/isnil",
			"internal/call/usercode",
		},
		"migrate": {
			"internal/call/errtext", "internal/call/isnil", "internal/postgres/pgname", "internal/postgres/schemadb",
			"schema",
		},
		"outboxtest": {
			"internal/call/isnil", "internal/machine/config", "internal/payloads/decode", "internal/testing/pgtest",
			"migrate", "outbox", "queue",
		},
		"schema":    {},
		"templates": {},
		"internal/machine/target": {
			"internal/call/backoff", "internal/call/errclass", "internal/call/usercode", "internal/machine/report",
			"internal/machine/shutdown", "internal/machine/testsignal", "internal/payloads/decode", "outbox",
			"publish",
		},
		"internal/machine/report": {"internal/call/usercode", "outbox"},
		"internal/machine/heartbeat": {
			"internal/call/backoff", "internal/call/errclass", "internal/machine/report",
			"internal/machine/testsignal", "internal/postgres/pgvalue", "internal/postgres/queries",
			"internal/postgres/schemadb",
		},
		"internal/machine/retention": {
			"internal/postgres/pgvalue", "internal/postgres/queries", "internal/postgres/schemadb", "outbox",
		},
		"internal/machine/config":       {"outbox"},
		"internal/call/isnil":           {},
		"internal/broker/webhookkey":    {},
		"internal/broker/wireheader":    {},
		"internal/call/backoff":         {},
		"internal/postgres/schemadb":    {"internal/postgres/pgname", "internal/postgres/queries"},
		"internal/postgres/queries":     {},
		"internal/postgres/schemadrift": {},
		"internal/postgres/doorbell": {
			"internal/call/backoff", "internal/call/errtext", "internal/postgres/queries",
			"internal/postgres/schemadb",
		},
		"internal/call/errtext":  {},
		"internal/call/usercode": {},
		"internal/payloads/decode": {
			"internal/call/errclass", "internal/payloads/fastjson", "internal/payloads/upcast", "payload",
		},
		"internal/payloads/upcast":     {"internal/call/errclass", "payload"},
		"internal/postgres/jsonb":      {"payload"},
		"internal/postgres/tenantlane": {},
		"internal/call/errclass":       {"internal/call/backoff", "internal/call/errtext", "internal/call/usercode"},
		"internal/postgres/methodtx":   {},
		"internal/tool/humantime":      {},
		"internal/tool/alerts":         {},
		"internal/broker/natsurl":      {},
		"internal/postgres/pgname":     {},
		"internal/postgres/pgvalue":    {},
		"internal/payloads/fastjson":   {},
		"internal/payloads/masking":    {},
		"internal/machine/shutdown":    {},
		"internal/broker/lograte":      {},
		"internal/machine/testsignal":  {},
		"internal/testing/pgtest": {
			"internal/postgres/queries", "internal/postgres/schemadb", "internal/testing/campaign",
			"internal/testing/pgserver", "migrate",
		},
		"internal/testing/runtimetest": {
			"admin", "internal/postgres/doorbell", "internal/postgres/schemadb", "internal/testing/pgserver",
			"internal/testing/pgtest", "listener", "migrate", "outbox", "publish", "queue",
		},
		"internal/testing/archtest": {},
		"generator/diag":            {},
		"generator/spec":            {"generator/diag"},
		"generator/model":           {"generator/diag", "generator/spec"},
		"generator/emit":            {"generator/model", "templates"},
		"generator/lock":            {"generator/diag", "generator/model", "generator/spec"},
		"generator/evolve":          {"generator/diag", "generator/lock", "generator/model", "generator/spec"},
		"generator/sample":          {"generator/model"},
		"generator": {
			"generator/diag", "generator/emit", "generator/evolve", "generator/lock", "generator/model",
			"generator/sample", "generator/spec",
		},
		"internal/tool/yamlmask":     {"generator/model", "internal/payloads/masking"},
		"internal/tool/describe":     {"generator/diag", "generator/model"},
		"internal/tool/payloadcheck": {"generator/model", "payload"},
		"cmd/outboxgen/internal/cli": {
			"admin", "dashboard", "generator", "generator/diag", "generator/evolve", "generator/model",
			"generator/spec", "internal/call/errtext", "internal/postgres/pgname", "internal/postgres/schemadb",
			"internal/tool/alerts", "internal/tool/describe", "internal/tool/humantime", "internal/tool/payloadcheck",
			"internal/tool/redact", "internal/tool/yamlmask", "migrate", "outbox", "templates",
		},
		"internal/tool/analyzers": {},
		"cmd/outboxgen":           {"cmd/outboxgen/internal/cli", "internal/tool/analyzers", "worker/signals"},
	}
	all := packages(t)
	for name, allowed := range may {
		p, there := all[name]
		require.True(t, there, "package %s does not exist: correct this table", name)
		used := make(map[string]bool)
		for _, imported := range p.Imports {
			if inner, ours := strings.CutPrefix(imported, module); ours {
				require.Contains(t, allowed, inner, "%s must not import %s", name, inner)
				used[inner] = true
			}
		}
		for _, inner := range allowed {
			require.True(t, used[inner], "%s does not import %s: remove the allowance", name, inner)
		}
	}
}

// TestRuntimeDependencies checks that the runtime, which users compile into their services, imports only the standard
// library, pgx and uuid.
func TestRuntimeDependencies(t *testing.T) {
	t.Parallel()
	for name, p := range packages(t) {
		if slices.Contains([]string{"cmd", "generator", "internal/tool", "tests"}, roomOf(name)) &&
			name != "internal/tool/humantime" {
			continue
		}
		for _, imported := range p.Imports {
			external := strings.Contains(strings.Split(imported, "/")[0], ".")
			ok := !external || strings.HasPrefix(imported, module) ||
				strings.HasPrefix(imported, "github.com/jackc/pgx/v5") || imported == "github.com/google/uuid"
			require.True(t, ok, "%s imports %s", name, imported)
		}
	}
}

// TestStrangers checks what the packages of the runtime import through others: queue and listener do not know each
// other, and neither admin nor worker nor what a producer needs knows either of them. Only worker and consume/webhook
// contain an HTTP server.
func TestStrangers(t *testing.T) {
	t.Parallel()
	for from, never := range map[string][]string{
		"outbox": {
			"queue", "listener", "admin", "publish", "inbox", "consume", "internal/machine/target", "internal/machine/config",
		},
		"publish":         {"queue", "listener", "admin"},
		"queue":           {"listener", "admin"},
		"listener":        {"queue", "admin"},
		"admin":           {"queue", "listener"},
		"worker":          {"queue", "listener", "admin"},
		"consume":         {"outbox", "queue", "listener", "admin"},
		"consume/receive": {"outbox", "publish", "queue", "listener", "admin"},
		"consume/webhook": {"outbox", "publish", "queue", "listener", "admin"},
		"internal/testing/archtest/testdata/enqueue": {"queue", "listener", "admin", "publish", "internal/machine/target"},
	} {
		out, err := exec.Command("go", "list", "-deps", "../../../"+from).Output()
		require.NoError(t, err, from)
		deps := strings.Fields(string(out))
		require.Contains(t, deps, module+from)
		for _, to := range never {
			require.NotContains(t, deps, module+to, "%s needs %s", from, to)
		}
		require.Equal(t, from == "worker" || from == "consume/webhook", slices.Contains(deps, "net/http"),
			"net/http in %s", from)
	}
}

// TestProducerLinksNoMachine checks that a program that only enqueues, with generated code of queue topics, does not
// contain a dispatcher: the linker finds nobody who calls it.
func TestProducerLinksNoMachine(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "producer")
	out, err := exec.Command("go", "build", "-o", program, "./testdata/producer").CombinedOutput()
	require.NoError(t, err, string(out))
	symbols, err := exec.Command("go", "tool", "nm", program).Output()
	require.NoError(t, err)
	require.Contains(t, string(symbols), module+"outbox.(*UntypedTopic).Enqueue")
	for _, absent := range []string{"queue.(*Dispatcher).Run", "queue.(*Store).Claim", "listener.(*Listener).Run"} {
		require.NotContains(t, string(symbols), module+absent)
	}
}

// TestOneHome checks that each library of the generator is imported by one package only.
func TestOneHome(t *testing.T) {
	t.Parallel()
	homes := map[string]string{
		"gopkg.in/yaml.v3": "generator/spec", "github.com/dave/jennifer/jen": "generator/emit",
		"golang.org/x/tools/go/analysis":             "internal/tool/analyzers",
		"golang.org/x/tools/go/analysis/unitchecker": "internal/tool/analyzers",
		"golang.org/x/tools/go/types/typeutil":       "internal/tool/analyzers",
	}
	for name, p := range packages(t) {
		for _, imported := range p.Imports {
			if home, tied := homes[imported]; tied {
				require.Equal(t, home, name, "only %[2]s may import %[1]s", imported, home)
			}
		}
	}
}

// TestProgramsKeepTheirSignals: the programs that users see and copy get their signals from signals.Context. With
// signal.NotifyContext they would give them back before they have ended.
func TestProgramsKeepTheirSignals(t *testing.T) {
	t.Parallel()
	programs := 0
	for _, folder := range []string{"cmd", "docs", "examples", "templates"} {
		require.NoError(t, filepath.WalkDir("../../../"+folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") ||
				!slices.Contains([]string{".go", ".md", ".tmpl"}, filepath.Ext(path)) {
				return err
			}
			text, err := os.ReadFile(path)
			require.NotRegexp(t, `signal\.Notify(Context)?\(`, string(text), path)
			programs += strings.Count(string(text), "signals.Context(")
			return err
		}))
	}
	require.Greater(t, programs, 10)
}
