// Package archtest fails if a package imports against the arrows of docs/architecture.md, or if the documents name
// something that does not exist.
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

// TestArrows checks that each package imports only what it may from this module, and uses each allowance.
func TestArrows(t *testing.T) {
	t.Parallel()
	may := map[string][]string{
		"payload":                       {},
		"outbox":                        {"payload", "internal/postgres/schemadb", "internal/postgres/queries", "internal/call/usercode", "internal/postgres/pgname", "internal/call/isnil", "internal/postgres/jsonb", "internal/postgres/pgvalue", "internal/call/errclass", "internal/postgres/doorbell", "internal/machine/tenantlane", "internal/payloads/masking", "internal/broker/wireheader", "internal/call/errtext"},
		"publish":                       {"outbox", "internal/call/usercode", "publish/internal/attributes"},
		"publish/internal/attributes":   {"outbox"},
		"queue":                         {"outbox", "publish", "internal/machine/target", "internal/machine/report", "internal/machine/retention", "internal/machine/config", "internal/postgres/schemadb", "internal/postgres/queries", "internal/call/backoff", "internal/postgres/doorbell", "internal/call/usercode", "internal/payloads/decode", "internal/machine/config", "internal/call/errclass", "internal/postgres/pgname", "internal/postgres/pgvalue", "internal/machine/shutdown", "internal/machine/testsignal", "internal/machine/heartbeat", "internal/call/errtext", "queue/internal/core"},
		"dashboard":                     {"admin", "outbox", "internal/tool/humantime"},
		"worker/signals":                {},
		"worker":                        {"outbox", "internal/call/isnil", "internal/call/usercode", "internal/call/errtext"},
		"inbox":                         {"internal/postgres/schemadb", "internal/postgres/queries", "internal/call/isnil", "internal/call/usercode", "internal/postgres/pgvalue"},
		"consume":                       {"payload", "inbox", "internal/call/isnil", "internal/call/usercode", "internal/call/errclass", "internal/postgres/methodtx", "internal/payloads/fastjson", "internal/payloads/upcast", "internal/call/errtext"},
		"consume/receive":               {"consume", "inbox", "internal/call/backoff", "internal/postgres/schemadb", "internal/postgres/queries", "internal/call/usercode", "internal/call/errclass", "internal/postgres/methodtx", "internal/postgres/pgvalue"},
		"consume/consumetest":           {"consume", "consume/receive", "inbox", "internal/testing/pgtest", "internal/testing/runtimetest"},
		"consume/webhook":               {"consume", "inbox", "internal/call/isnil", "internal/call/usercode", "internal/call/errclass", "internal/broker/webhookkey"},
		"migrate":                       {"schema", "internal/postgres/schemadb", "internal/postgres/pgname", "internal/call/isnil", "internal/call/errtext"},
		"schema":                        {},
		"templates":                     {},
		"internal/machine/target":       {"outbox", "publish", "internal/machine/rest", "internal/call/usercode", "internal/payloads/decode", "internal/call/errclass", "internal/machine/report", "internal/machine/shutdown", "internal/machine/testsignal"},
		"internal/machine/report":       {"outbox", "internal/call/usercode"},
		"internal/machine/rest":         {"outbox", "internal/call/backoff", "internal/call/errclass"},
		"queue/internal/core":           {"internal/call/backoff", "internal/call/errclass", "internal/machine/rest", "internal/machine/sleep", "internal/machine/tenantlane"},
		"queue/internal/core/coresim":   {"outbox", "internal/call/errclass", "internal/machine/config", "internal/machine/rest", "internal/machine/sleep", "internal/machine/tenantlane", "queue/internal/core"},
		"internal/machine/heartbeat":    {"internal/call/backoff", "internal/postgres/schemadb", "internal/postgres/queries", "internal/call/errclass", "internal/postgres/pgvalue", "internal/machine/report", "internal/machine/testsignal"},
		"internal/machine/retention":    {"outbox", "internal/postgres/schemadb", "internal/postgres/queries", "internal/postgres/pgvalue"},
		"internal/call/isnil":           {},
		"internal/broker/webhookkey":    {},
		"internal/broker/wireheader":    {},
		"internal/call/backoff":         {},
		"internal/postgres/schemadb":    {"internal/postgres/queries", "internal/postgres/pgname"},
		"internal/postgres/queries":     {},
		"internal/postgres/schemadrift": {},
		"internal/postgres/doorbell":    {"internal/machine/sleep", "internal/call/backoff", "internal/postgres/schemadb", "internal/postgres/queries", "internal/call/errtext"},
		"internal/call/errtext":         {},
		"internal/call/usercode":        {},
		"internal/payloads/decode":      {"internal/call/errclass", "internal/payloads/fastjson", "internal/payloads/upcast", "payload"},
		"internal/payloads/upcast":      {"internal/call/errclass", "payload"},
		"internal/postgres/jsonb":       {"payload"},
		"internal/machine/tenantlane":   {},
		"internal/call/errclass":        {"internal/call/backoff", "internal/call/usercode", "internal/call/errtext"},
		"internal/postgres/methodtx":    {},
		"internal/tool/humantime":       {},
		"internal/tool/alerts":          {},
		"internal/broker/natsurl":       {},
		"internal/postgres/pgname":      {},
		"internal/postgres/pgvalue":     {},
		"internal/payloads/fastjson":    {},
		"internal/payloads/masking":     {},
		"internal/machine/shutdown":     {},
		"internal/machine/sleep":        {"internal/call/backoff"},
		"internal/broker/lograte":       {},
		"internal/machine/testsignal":   {},
		"internal/testing/pgtest":       {"internal/testing/pgserver", "internal/testing/campaign", "internal/postgres/schemadb", "internal/postgres/queries", "migrate"},
		"internal/testing/runtimetest":  {"outbox", "queue", "listener", "admin", "publish", "internal/postgres/schemadb", "internal/postgres/doorbell", "internal/testing/pgserver", "internal/testing/pgtest", "migrate"},
		"internal/testing/archtest":     {},
		"generator/diag":                {},
		"generator/spec":                {"generator/diag"},
		"generator/model":               {"generator/spec", "generator/diag"},
		"generator/emit":                {"generator/model", "templates"},
		"generator/lock":                {"generator/model", "generator/spec", "generator/diag"},
		"generator/evolve":              {"generator/lock", "generator/model", "generator/spec", "generator/diag"},
		"generator/sample":              {"generator/model"},
		"generator":                     {"generator/emit", "generator/evolve", "generator/lock", "generator/sample", "generator/model", "generator/spec", "generator/diag"},
		"internal/tool/yamlmask":        {"generator/model", "internal/payloads/masking"},
		"internal/tool/describe":        {"generator/diag", "generator/model"},
		"internal/tool/payloadcheck":    {"generator/model", "payload"},
		"cmd/outboxgen/internal/cli":    {"admin", "dashboard", "outbox", "migrate", "internal/postgres/schemadb", "generator", "generator/diag", "generator/evolve", "generator/model", "generator/spec", "templates", "internal/tool/describe", "internal/tool/payloadcheck", "internal/tool/yamlmask", "internal/tool/humantime", "internal/postgres/pgname", "internal/call/errtext", "internal/tool/redact", "internal/tool/alerts"},
		"internal/tool/analyzers":       {},
		"cmd/outboxgen":                 {"cmd/outboxgen/internal/cli", "internal/tool/analyzers", "worker/signals"},
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
		switch name {
		case "outbox", "queue", "listener", "admin", "dashboard", "worker", "worker/signals", "payload", "inbox", "consume", "consume/receive", "consume/webhook", "publish", "migrate",
			"internal/broker/lograte", "internal/call/errclass", "internal/tool/humantime", "internal/broker/natsurl", "internal/postgres/pgname", "internal/postgres/pgvalue", "internal/payloads/fastjson", "internal/machine/heartbeat", "internal/payloads/masking", "internal/machine/shutdown", "internal/machine/testsignal", "internal/payloads/upcast":
		default:
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

// TestRooms checks what the packages of the runtime import through others: queue and listener do not know each other, and
// neither admin nor worker nor what a producer needs knows either of them. Only worker and
// consume/webhook contain an HTTP server.
func TestRooms(t *testing.T) {
	t.Parallel()
	for from, never := range map[string][]string{
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
		require.Equal(t, from == "worker" || from == "consume/webhook", slices.Contains(deps, "net/http"), "net/http in %s", from)
	}
}

// TestProducerLinksNoMachine checks that a program that only enqueues, with generated code of queue topics, does not contain
// a dispatcher: the linker finds nobody who calls it.
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
		"golang.org/x/tools/go/analysis": "internal/tool/analyzers", "golang.org/x/tools/go/analysis/unitchecker": "internal/tool/analyzers",
		"golang.org/x/tools/go/types/typeutil": "internal/tool/analyzers",
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
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") || !slices.Contains([]string{".go", ".md", ".tmpl"}, filepath.Ext(path)) {
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
