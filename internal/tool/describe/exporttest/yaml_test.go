package exporttest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
	yaml3 "gopkg.in/yaml.v3"

	"github.com/outboxgen/outboxgen/generator/spec"
)

// FuzzYAMLAgainstAnotherLibrary: what the generator accepts, another YAML library reads as the same tree. So nobody sees
// another file in an editor, or in a review, than the one that is generated from.
func FuzzYAMLAgainstAnotherLibrary(f *testing.F) {
	names, err := filepath.Glob("../../../../generator/testdata/*/outbox.yaml")
	require.NoError(f, err)
	require.Greater(f, len(names), 100)
	for _, name := range names {
		source, err := os.ReadFile(name)
		require.NoError(f, err)
		if _, findings := spec.Decode(source, name); !findings.HasErrors() {
			require.NoError(f, yaml.Unmarshal(source, new(any)), name)
		}
		f.Add(source)
	}
	f.Fuzz(func(t *testing.T, source []byte) {
		if _, findings := spec.Decode(source, "outbox.yaml"); findings.HasErrors() {
			return
		}
		var ours, theirs any
		require.NoError(t, yaml3.Unmarshal(source, &ours))
		if err := yaml.Unmarshal(source, &theirs); err != nil {
			return // it is stricter
		}
		require.Equal(t, plain(ours), plain(theirs))
	})
}

// plain returns a tree whose numbers have one type.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for name, value := range v {
			m[name] = plain(value)
		}
		return m
	case []any:
		list := make([]any, len(v))
		for i, value := range v {
			list[i] = plain(value)
		}
		return list
	case string, int, int64, uint64, float64:
		text := fmt.Sprint(v)
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			return n // the libraries disagree about what is a number, as 1e6, and about nothing that we read
		}
		return text
	}
	return v
}
