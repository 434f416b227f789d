// Package archtest fails if a package imports against the arrows of docs/architecture.md, or if the documents name
// something that does not exist.
package archtest

import (
	"encoding/json"
	"io"
	"os/exec"
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
		"outbox":              {"payload", "internal/dbschema", "internal/dbsqlc", "internal/guard", "internal/pgname", "internal/inline", "internal/absent", "internal/jsonb", "internal/pgvalue", "internal/incoming", "internal/backoff", "internal/mark", "internal/doorbell", "internal/shutdown", "internal/testsignal"},
		"internal/guard":      {},
		"internal/backoff":    {},
		"internal/shutdown":   {},
		"internal/testsignal": {},
		"internal/doorbell":   {"internal/backoff", "internal/dbschema", "internal/dbsqlc"},
		"internal/mark":       {"internal/backoff", "internal/guard"},
		"internal/jsonb":      {"payload"},
		"internal/pgvalue":    {},
		"internal/incoming":   {"internal/mark", "internal/plainjson"},
		"internal/plainjson":  {},
		"payload":             {},
		"inbox":               {"internal/dbschema", "internal/dbsqlc", "internal/absent", "internal/pgvalue"},
		"consume":             {"payload", "inbox", "internal/absent", "internal/mark"},
		"publish":             {"outbox"},
		"internal/dbschema":   {"internal/dbsqlc", "internal/pgname"},
		"outboxtest":          {"outbox", "migrate", "internal/pgtest", "internal/inline", "internal/absent"},
		"migrate":             {"schema", "internal/dbschema", "internal/pgname", "internal/absent"},
		"schema":              {},
		"templates":           {},
		"internal/pgname":     {},
		"internal/absent":     {},
		"internal/dbsqlc":     {},
		"generator/diag":      {},
		"generator/spec":      {"generator/diag"},
		"generator/model":     {"generator/spec", "generator/diag"},
		"generator/emit":      {"generator/model", "templates"},
		"generator":           {"generator/emit", "generator/model", "generator/diag"},
		"internal/pgtest":     {"internal/pgserver", "migrate"},
		"cmd/outboxgen":       {"internal/cli"},
		"internal/archtest":   {},
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
		case "outbox", "payload", "inbox", "consume", "publish", "migrate", "internal/dbschema", "internal/dbsqlc", "internal/guard", "internal/pgname", "internal/inline",
			"internal/jsonb", "internal/pgvalue", "internal/plainjson", "internal/incoming", "internal/backoff", "internal/mark", "internal/doorbell",
			"internal/shutdown", "internal/testsignal":
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

// TestOneHome checks that each library of the generator is imported by one package only.
func TestOneHome(t *testing.T) {
	t.Parallel()
	homes := map[string]string{"gopkg.in/yaml.v3": "generator/spec", "github.com/dave/jennifer/jen": "generator/emit"}
	for name, p := range packages(t) {
		for _, imported := range p.Imports {
			if home, tied := homes[imported]; tied {
				require.Equal(t, home, name, "only %[2]s may import %[1]s", imported, home)
			}
		}
	}
}
