//go:build mutation

package schemadb

import (
	"os"
	"strings"
	"sync"
)

// mutated is the text that OUTBOXGEN_MUTANT names, or empty if that is no query.
var mutated = sync.OnceValue(func() string {
	file := os.Getenv("OUTBOXGEN_MUTANT")
	if !strings.HasSuffix(file, ".query") {
		return ""
	}
	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	return string(text)
})

// mutant returns the text of OUTBOXGEN_MUTANT in place of the query with the same first line. With
// OUTBOXGEN_MUTATION_TRACE it writes that line to the file of this name, and changes nothing that matters: a test that
// fails then compares texts.
func mutant(query string) string {
	name, _, _ := strings.Cut(query, "\n")
	if trace := os.Getenv("OUTBOXGEN_MUTATION_TRACE"); trace != "" && strings.HasPrefix(name, "-- name: ") {
		file, err := os.OpenFile(trace, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		_, _ = file.WriteString("query " + strings.Fields(name)[2] + "\n") // a trace without a line is seen by the tool
		_ = file.Close()
		return query + "-- mutant\n"
	}
	if text := mutated(); text != "" && strings.HasPrefix(text, name+"\n") {
		return text
	}
	return query
}
