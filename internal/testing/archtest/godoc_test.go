package archtest

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPageOfPackageOutbox: the documentation of package outbox names each exported function and type in one of its sections,
// and nothing that does not exist. What only generated code uses stands in the last one.
func TestPageOfPackageOutbox(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	names, err := filepath.Glob("../../../outbox/*.go")
	require.NoError(t, err)
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		file, err := parser.ParseFile(fset, name, source, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, file)
	}
	pkg, err := doc.NewFromFiles(fset, files, module+"outbox")
	require.NoError(t, err)
	exported := make(map[string]bool)
	for _, f := range pkg.Funcs {
		exported[f.Name] = true
	}
	for _, typ := range pkg.Types {
		exported[typ.Name] = true
		for _, f := range typ.Funcs {
			exported[f.Name] = true
		}
	}
	linked := make(map[string]bool)
	for _, m := range regexp.MustCompile(`\[(\w+)\]`).FindAllStringSubmatch(pkg.Doc, -1) {
		linked[m[1]] = true
	}
	for name := range exported {
		require.True(t, linked[name], "the documentation of package outbox names %s in none of its sections", name)
	}
	for name := range linked {
		require.True(t, exported[name] || name == "FairnessTenant", "package outbox has no %s", name)
	}
	sections := strings.Split(pkg.Doc, "\n# ")
	last := sections[len(sections)-1]
	require.True(t, strings.HasPrefix(last, "For generated code"), last)
	for _, name := range []string{"UntypedTopic", "Keys", "MaskPayload", "Unimplemented", "FairnessTenant", "IsAtLeastVersion"} {
		require.Contains(t, last, name)
		if name != "Keys" && name != "FairnessTenant" {
			require.NotContains(t, strings.Join(sections[:len(sections)-1], ""), name)
		}
	}
}
