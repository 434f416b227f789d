// Package archtest fails if a package imports against the arrows of docs/inside/architecture.md, or if the documents
// name something that does not exist.
package archtest

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
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

var update = flag.Bool("update", false, "write what the tests of this package compare with: imports, arrows, what a producer links")

// TestImports: each package imports from this module what testdata/imports.txt says. A new arrow is a decision, so look at the
// difference when you have written the file with -update. The rooms of docs/inside/architecture.md have coarser arrows, which
// TestArrows checks.
func TestImports(t *testing.T) {
	t.Parallel()
	all := packages(t)
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var ours []string
		for _, imported := range all[name].Imports {
			if inner, ok := strings.CutPrefix(imported, module); ok {
				ours = append(ours, inner)
			}
		}
		slices.Sort(ours)
		fmt.Fprintf(&lines, "%s\n", name)
		for _, inner := range ours {
			fmt.Fprintf(&lines, "\t%s\n", inner)
		}
	}
	const file = "testdata/imports.txt"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(lines.String()), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), lines.String(), "imports have changed: are the arrows right? Then run this test with -update")
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
