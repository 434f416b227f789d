// Package archtest fails if a package imports against the arrows of docs/inside/architecture.md, or if the documents name
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
	cmd.Dir = "../.."
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
		"payload":                     {},
		"outbox":                      {"payload", "internal/dbschema", "internal/dbsqlc", "internal/guard", "internal/pgname", "internal/absent", "internal/jsonb", "internal/pgvalue", "internal/mark", "internal/doorbell", "internal/lane", "internal/shape", "internal/wireheader", "internal/errtext"},
		"publish":                     {"outbox", "internal/guard", "publish/internal/attributes"},
		"publish/internal/attributes": {"outbox"},
		"queue":                       {"outbox", "publish", "internal/relay", "internal/report", "internal/retention", "internal/settings", "internal/dbschema", "internal/dbsqlc", "internal/backoff", "internal/doorbell", "internal/guard", "internal/incoming", "internal/inline", "internal/lane", "internal/mark", "internal/pgname", "internal/pgvalue", "internal/shutdown", "internal/testsignal", "internal/process", "internal/errtext"},
		"listener":                    {"outbox", "publish", "internal/relay", "internal/report", "internal/retention", "internal/settings", "internal/dbschema", "internal/dbsqlc", "internal/backoff", "internal/doorbell", "internal/guard", "internal/incoming", "internal/inline", "internal/mark", "internal/methodtx", "internal/pgname", "internal/pgvalue", "internal/shutdown", "internal/testsignal", "internal/process", "internal/errtext"},
		"admin":                       {"outbox", "internal/pgname", "internal/retention", "internal/settings", "internal/dbschema", "internal/dbsqlc", "internal/backoff", "internal/doorbell", "internal/pgvalue", "internal/process", "internal/jsonb", "migrate", "internal/drift", "internal/errtext"},
		"dashboard":                   {"admin", "outbox", "internal/moment"},
		"worker/signals":              {},
		"worker":                      {"outbox", "internal/absent", "internal/guard", "internal/errtext"},
		"inbox":                       {"internal/dbschema", "internal/dbsqlc", "internal/absent", "internal/guard", "internal/pgvalue"},
		"consume":                     {"payload", "inbox", "internal/absent", "internal/guard", "internal/mark", "internal/methodtx", "internal/plainjson", "internal/upcast", "internal/errtext"},
		"consume/receive":             {"consume", "inbox", "internal/backoff", "internal/dbschema", "internal/dbsqlc", "internal/guard", "internal/mark", "internal/methodtx", "internal/pgvalue"},
		"consume/consumetest":         {"consume", "consume/receive", "inbox", "internal/pgtest", "internal/runtimetest"},
		"consume/webhook":             {"consume", "inbox", "internal/absent", "internal/guard", "internal/mark", "internal/webhookkey"},
		"migrate":                     {"schema", "internal/dbschema", "internal/pgname", "internal/absent", "internal/errtext"},
		"outboxtest":                  {"outbox", "queue", "migrate", "internal/pgtest", "internal/incoming", "internal/inline", "internal/absent"},
		"schema":                      {},
		"templates":                   {},
		"internal/relay":              {"outbox", "publish", "internal/backoff", "internal/guard", "internal/incoming", "internal/mark", "internal/report", "internal/shutdown", "internal/testsignal"},
		"internal/report":             {"outbox", "internal/guard"},
		"internal/process":            {"internal/backoff", "internal/dbschema", "internal/dbsqlc", "internal/mark", "internal/pgvalue", "internal/report", "internal/testsignal"},
		"internal/retention":          {"outbox", "internal/dbschema", "internal/dbsqlc", "internal/pgvalue"},
		"internal/settings":           {"outbox"},
		"internal/absent":             {},
		"internal/webhookkey":         {},
		"internal/wireheader":         {},
		"internal/backoff":            {},
		"internal/dbschema":           {"internal/dbsqlc", "internal/pgname"},
		"internal/dbsqlc":             {},
		"internal/drift":              {},
		"internal/doorbell":           {"internal/backoff", "internal/dbschema", "internal/dbsqlc", "internal/errtext"},
		"internal/errtext":            {},
		"internal/guard":              {},
		"internal/incoming":           {"internal/mark", "internal/plainjson", "internal/upcast", "payload"},
		"internal/upcast":             {"internal/mark", "payload"},
		"internal/inline":             {},
		"internal/jsonb":              {"payload"},
		"internal/lane":               {},
		"internal/mark":               {"internal/backoff", "internal/guard", "internal/errtext"},
		"internal/methodtx":           {},
		"internal/moment":             {},
		"internal/monitor":            {},
		"internal/natsurl":            {},
		"internal/pgname":             {},
		"internal/pgvalue":            {},
		"internal/plainjson":          {},
		"internal/shape":              {},
		"internal/shutdown":           {},
		"internal/lograte":            {},
		"internal/testsignal":         {},
		"internal/pgtest":             {"internal/pgserver", "internal/campaign", "internal/dbschema", "internal/dbsqlc", "migrate"},
		"internal/runtimetest":        {"outbox", "queue", "listener", "admin", "publish", "internal/dbschema", "internal/doorbell", "internal/pgserver", "internal/pgtest", "migrate"},
		"internal/archtest":           {},
		"generator/diag":              {},
		"generator/spec":              {"generator/diag"},
		"generator/model":             {"generator/spec", "generator/diag"},
		"generator/emit":              {"generator/model", "templates"},
		"generator/lock":              {"generator/model", "generator/spec", "generator/diag"},
		"generator/evolve":            {"generator/lock", "generator/model", "generator/spec", "generator/diag"},
		"generator/sample":            {"generator/model"},
		"generator":                   {"generator/emit", "generator/evolve", "generator/lock", "generator/sample", "generator/model", "generator/spec", "generator/diag"},
		"internal/mask":               {"generator/model", "internal/shape"},
		"internal/export":             {"generator/diag", "generator/model"},
		"internal/fit":                {"generator/model", "payload"},
		"internal/cli":                {"admin", "dashboard", "outbox", "migrate", "internal/dbschema", "generator", "generator/diag", "generator/evolve", "generator/model", "generator/spec", "templates", "internal/export", "internal/fit", "internal/mask", "internal/moment", "internal/pgname", "internal/errtext", "internal/secret", "internal/monitor"},
		"internal/vet":                {},
		"cmd/outboxgen":               {"internal/cli", "internal/vet", "worker/signals"},
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
			"internal/relay", "internal/report", "internal/retention", "internal/settings", "internal/absent", "internal/advisory", "internal/backoff", "internal/dbschema",
			"internal/dbsqlc", "internal/doorbell", "internal/drift", "internal/errtext", "internal/guard", "internal/incoming", "internal/inline", "internal/jsonb", "internal/lane",
			"internal/lograte", "internal/mark", "internal/moment", "internal/natsurl", "internal/pgname", "internal/pgvalue", "internal/plainjson", "internal/process", "internal/shape", "internal/shutdown", "internal/testsignal", "internal/upcast":
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
		"outbox":                             {"queue", "listener", "admin", "publish", "inbox", "consume", "internal/relay", "internal/settings"},
		"publish":                            {"queue", "listener", "admin"},
		"queue":                              {"listener", "admin"},
		"listener":                           {"queue", "admin"},
		"admin":                              {"queue", "listener"},
		"worker":                             {"queue", "listener", "admin"},
		"consume":                            {"outbox", "queue", "listener", "admin"},
		"consume/receive":                    {"outbox", "publish", "queue", "listener", "admin"},
		"consume/webhook":                    {"outbox", "publish", "queue", "listener", "admin"},
		"internal/archtest/testdata/enqueue": {"queue", "listener", "admin", "publish", "internal/relay"},
	} {
		out, err := exec.Command("go", "list", "-deps", "../../"+from).Output()
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
		"golang.org/x/tools/go/analysis": "internal/vet", "golang.org/x/tools/go/analysis/unitchecker": "internal/vet",
		"golang.org/x/tools/go/types/typeutil": "internal/vet",
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
		require.NoError(t, filepath.WalkDir("../../"+folder, func(path string, entry fs.DirEntry, err error) error {
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
