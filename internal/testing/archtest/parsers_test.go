package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// parsers are the functions of libraries by which bytes and texts from outside become values.
	parsers = strings.Fields(`json.Unmarshal json.NewDecoder base64.StdEncoding.DecodeString base64.RawURLEncoding.DecodeString
		hex.DecodeString url.Parse url.ParseQuery uuid.Parse uuid.FromBytes time.Parse time.ParseInLocation time.ParseDuration
		strconv.Atoi strconv.ParseInt strconv.ParseUint strconv.ParseFloat strconv.ParseBool strconv.Unquote regexp.Compile
		io.ReadAll netip.ParseAddr netip.ParsePrefix netip.ParseAddrPort net.SplitHostPort pgx.ParseConfig pgxpool.ParseConfig
		mime.ParseMediaType http.ParseTime fmt.Sscanf fmt.Sscan goredis.ParseURL amqp.ParseURI parser.ParseFile modfile.Parse`)
	// parserName is how our own are called.
	parserName = regexp.MustCompile(`^(?i:parse|decode|unmarshal|serveHTTP)|^From[A-Z]`)
	// parserLine is a line of testdata/parsers.txt: a function or a package, then a fuzz target or a sentence.
	parserLine = regexp.MustCompile(`^(\S+)\s+(.+)$`)
	fuzzTarget = regexp.MustCompile(`^([a-z/]+)\.(Fuzz\w+)$`)
)

// readers returns the functions of the product that take bytes or texts from outside, by what they call and by their names.
func readers(t *testing.T) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir("../../..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside := strings.TrimPrefix(filepath.ToSlash(name), "../../../")
		folder := path.Dir(inside)
		switch {
		case entry.IsDir():
			if entry.Name() == "testdata" || strings.HasPrefix(inside, ".git") || slices.Contains(notRooms, inside) ||
				inside == "internal/postgres/queries" || roomOf(inside) == "tests" {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			reads := parserName.MatchString(f.Name.Name) && f.Type.Params.NumFields() > 0
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					reads = reads || slices.Contains(parsers, dotted(call.Fun))
				}
				return true
			})
			if reads {
				found = append(found, folder+"."+receiver(f)+f.Name.Name)
			}
		}
		return nil
	}))
	require.Greater(t, len(found), 100)
	return found
}

// dotted is the name of what is called: json.Unmarshal.
func dotted(x ast.Expr) string {
	switch e := x.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return dotted(e.X) + "." + e.Sel.Name
	}
	return ""
}

// TestParsersAreFuzzed: each function that reads bytes or texts from outside is in testdata/parsers.txt, by itself or with its
// package, with the fuzz target that reaches it or with a sentence that says why there is none.
func TestParsersAreFuzzed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/parsers.txt")
	require.NoError(t, err)
	known, used := make(map[string]string), make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := parserLine.FindStringSubmatch(line)
		require.NotNil(t, m, line)
		require.Empty(t, known[m[1]], "%s is there twice", m[1])
		known[m[1]] = m[2]
		if target := fuzzTarget.FindStringSubmatch(m[2]); target != nil {
			require.True(t, testsOf(t, target[1])[target[2]], "%s does not exist", m[2])
			continue
		}
		require.Contains(t, strings.TrimSuffix(m[2], "."), " ", "%s: name a fuzz target, or say in a sentence why there is none", m[1])
		require.Regexp(t, `\.$`, m[2], m[1])
	}
	for _, f := range readers(t) {
		of := f
		if known[of] == "" { // package.receiver.function, and no package has a dot
			of, _, _ = strings.Cut(f, ".")
		}
		require.NotEmpty(t, known[of], "%s reads from outside: give it a fuzz target, and a line in testdata/parsers.txt", f)
		used[of] = true
	}
	for of := range known {
		require.True(t, used[of], "testdata/parsers.txt: nothing reads in %s any more", of)
	}
}
