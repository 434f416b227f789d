package analyzers_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/outboxgen/outboxgen/internal/tool/analyzers"
)

// TestAnalyzers runs all analyzers on the packages of testdata, which import real generated code and the real runtime, and
// compares what they find with the want comments. In generated code there is nothing to find.
func TestAnalyzers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	all := &analysis.Analyzer{Name: "all", Doc: "runs all analyzers on one load of the packages", Run: func(pass *analysis.Pass) (any, error) {
		for _, a := range analyzers.Analyzers() {
			if _, err := a.Run(pass); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}}
	require.NoError(t, analysis.Validate(analyzers.Analyzers()))
	module, err := filepath.Abs("../../..")
	require.NoError(t, err)
	results := analysistest.Run(t, module, all,
		"./internal/tool/analyzers/testdata/owned", "./internal/tool/analyzers/testdata/discarded", "./internal/tool/analyzers/testdata/zero",
		"./generator/testdata/operation-programs/want", "./generator/testdata/operations/want")
	require.GreaterOrEqual(t, len(results), 5)
}

func TestInvoked(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-V=full"}, {"-flags"}, {"/tmp/vet.cfg"}, {"-json", "vet.cfg"}, {"-outboxzero=false", "-json", "b001/vet.cfg"},
	} {
		require.True(t, analyzers.Invoked(args), args)
	}
	for _, args := range [][]string{
		{}, {"vet"}, {"vet", "./..."}, {"vet", "-V=full"}, {"generate", "--config", "outbox.cfg"}, {"--version"}, {"--config=x.cfg"}, {"-V"},
	} {
		require.False(t, analyzers.Invoked(args), args)
	}
}
