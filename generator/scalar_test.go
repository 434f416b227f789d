package generator_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

// TestIDsCannotBeSwapped: with scalars, code that passes a tenant's id as a turn's does not compile, in both packages.
func TestIDsCannotBeSwapped(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("testdata/scalars/outbox.yaml")
	require.NoError(t, err)
	files := generate(t, source, generator.Options{})
	const ids = "func ids() (tenant TenantID, turn TurnID, plain uuid.UUID) { return }\n"
	for _, folder := range []string{".", "turnevents"} {
		for code, want := range map[string]string{
			"var tenant, turn, _ = ids()\nvar p = Ended{Tenant: tenant, TurnID: turn}":                  "",
			"var tenant, turn, _ = ids()\nvar p = Ended{Tenant: turn, TurnID: tenant}":                  "cannot use turn (variable of array type TurnID) as TenantID value",
			"var _, _, plain = ids()\nvar p = Ended{Tenant: plain}":                                     "as TenantID value in struct literal",
			"var _, _, plain = ids()\nvar p = Ended{Tenant: TenantID(plain), Turns: []TurnID{{1}}}":     "",
			"var tenant, turn, _ = ids()\nvar p = tenant == turn":                                       "mismatched types TenantID and TurnID",
			"var tenant, _, _ = ids()\nvar p = Ended{Step: Step{TurnID: tenant}}":                       "as TurnID value in struct literal",
			"var _, turn, _ = ids()\nvar p = Ended{Slug: \"a\", Rank: 1, Revision: 2, Previous: &turn}": "",
			"var rank Rank\nvar p = Ended{Revision: rank}":                                              "as Revision value in struct literal",
		} {
			err := checkWith(t, files, folder, "import \"github.com/google/uuid\"\n"+ids+code)
			if want == "" {
				require.NoError(t, err, code)
			} else {
				require.ErrorContains(t, err, want, code)
			}
		}
	}
}

// checkWith type-checks the files of a folder together with a user's code.
func checkWith(t *testing.T, files []generator.File, folder, code string) error {
	t.Helper()
	from, err := imports()
	require.NoError(t, err)
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, f := range files {
		if path.Dir(f.Name) == folder {
			file, err := parser.ParseFile(fset, f.Name, f.Content, parser.SkipObjectResolution)
			require.NoError(t, err)
			parsed = append(parsed, file)
		}
	}
	file, err := parser.ParseFile(fset, "user.go", "package "+parsed[0].Name.Name+"\n"+code, parser.SkipObjectResolution)
	require.NoError(t, err)
	importing.Lock()
	defer importing.Unlock()
	conf := types.Config{Importer: from}
	_, err = conf.Check("generated", fset, append(parsed, file), nil)
	return err
}
