package drivertest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocs: each example of docs/start/drivers.md is a function of this package, which the suite runs, and each of these functions
// is there.
func TestDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/start/drivers.md")
	require.NoError(t, err)
	var examples []string
	for _, m := range regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		examples = append(examples, m[1])
	}
	files, err := filepath.Glob("with_*.go")
	require.NoError(t, err)
	require.Len(t, examples, len(files))
	for _, name := range files {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		function := string(source)[strings.Index(string(source), "func pay"):]
		require.Contains(t, examples, function, "docs/start/drivers.md does not have the example of %s", name)
	}
}
