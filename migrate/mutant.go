//go:build mutation

package migrate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant returns the content of the file that OUTBOXGEN_MUTANT names, in place of the file of this name. With
// OUTBOXGEN_MUTATION_TRACE it changes nothing that matters: a test that fails then compares texts.
func mutant(file string, text []byte) []byte {
	if os.Getenv("OUTBOXGEN_MUTATION_TRACE") != "" {
		return append(slices.Clone(text), "-- mutant\n"...)
	}
	path := os.Getenv("OUTBOXGEN_MUTANT")
	if !strings.HasSuffix(path, ".sql") || filepath.Base(path) != file {
		return text
	}
	changed, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return changed
}
