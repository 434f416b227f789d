package describe_test

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

var update = flag.Bool("update", false, "write the files in testdata/want, and the records in consume/testdata/debezium")

func TestMain(m *testing.M) { runtimetest.Main(m) }

// load returns the model of the YAML in testdata.
func load(t testing.TB) *model.Model {
	t.Helper()
	text, err := os.ReadFile("testdata/outbox.yaml")
	require.NoError(t, err)
	frozen, err := os.ReadFile("testdata/outbox.lock.yaml")
	require.NoError(t, err)
	m, findings := generator.Load(text, generator.Options{Lock: frozen})
	require.NoError(t, findings.Err())
	return m
}

// read returns the model of a YAML with these namespaces.
func read(t testing.TB, text string) *model.Model {
	t.Helper()
	m, findings := generator.Load([]byte("version: \"1\"\npackage: events\n"+text), generator.Options{})
	require.NoError(t, findings.Err())
	return m
}
