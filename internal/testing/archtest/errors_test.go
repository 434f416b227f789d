package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJoinedErrorsAreOneLine: services join errors by errtext.Join, because each error may end in a line of the log or in a
// column. errors.Join puts a line break between the texts.
func TestJoinedErrorsAreOneLine(t *testing.T) {
	t.Parallel()
	for _, folder := range services {
		err := filepath.WalkDir(filepath.Join("../../..", folder), func(path string, d os.DirEntry, err error) error {
			name := strings.TrimPrefix(filepath.ToSlash(path), "../../../")
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || toolFolders.MatchString(name) {
				return err
			}
			code, err := os.ReadFile(path)
			require.NotContains(t, string(code), "errors.Join(", "%s: use errtext.Join", name)
			return err
		})
		require.NoError(t, err)
	}
}
