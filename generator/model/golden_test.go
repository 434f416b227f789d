package model_test

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
)

var update = flag.Bool("update", false, "record want/stderr.txt of every error case")

const testdata = "../testdata"

// errorCase is a directory of testdata that has a want/stderr.txt: findings, errors or warnings.
type errorCase struct {
	name     string
	source   []byte
	lock     []byte // nil when it has none
	findings diag.List
}

func (c errorCase) load() (*model.Model, diag.List) {
	return generator.Load(c.source, generator.Options{Source: "outbox.yaml", Lock: c.lock})
}

func errorCases(t *testing.T) []errorCase {
	t.Helper()
	entries, err := os.ReadDir(testdata)
	require.NoError(t, err)
	var cases []errorCase
	for _, entry := range entries {
		_, err := os.Stat(stderrFile(entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		source, err := os.ReadFile(filepath.Join(testdata, entry.Name(), "outbox.yaml"))
		require.NoError(t, err)
		lock, err := os.ReadFile(filepath.Join(testdata, entry.Name(), "outbox.lock.yaml"))
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
		c := errorCase{name: entry.Name(), source: source, lock: lock}
		_, c.findings = c.load()
		cases = append(cases, c)
	}
	require.NotEmpty(t, cases)
	return cases
}

func stderrFile(name string) string { return filepath.Join(testdata, name, "want", "stderr.txt") }

func TestGoldenFindings(t *testing.T) {
	t.Parallel()
	for _, c := range errorCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, findings := c.load()
			require.NotEmpty(t, findings, "a case of findings needs one")
			require.Equal(t, findings.HasErrors(), m == nil, "an error stops the generator, a warning does not")
			var got strings.Builder
			require.NoError(t, diag.Print(&got, diag.Text, findings))
			if *update {
				require.NoError(t, os.WriteFile(stderrFile(c.name), []byte(got.String()), 0o644))
			}
			want, err := os.ReadFile(stderrFile(c.name))
			require.NoError(t, err)
			require.Equal(t, string(want), got.String())
		})
	}
}

func TestEveryRuleHasAGoldenCase(t *testing.T) {
	t.Parallel()
	shown := map[diag.Rule]bool{
		diag.YAMLTooLarge: true,                           // spec.TestDecodeRefusesLargeFiles: a golden of 1 MiB would be too large
		diag.OutputShared: true, diag.OutputPackage: true, // of the folder, not of the file: output.txtar of cmd/outboxgen
	}
	for _, c := range errorCases(t) {
		for _, d := range c.findings {
			shown[d.Rule] = true
		}
	}
	for _, rule := range diag.Rules() {
		require.True(t, shown[rule.ID], "no case of testdata shows rule %s", rule.ID)
		delete(shown, rule.ID)
	}
	require.Empty(t, shown, "rules that diag.Rules does not list")
}

// Every rule has a case with its name, so that a reader finds what it means.
func TestCasesAreNamedAfterRules(t *testing.T) {
	t.Parallel()
	for _, rule := range diag.Rules() {
		if rule.ID == diag.YAMLTooLarge || rule.ID == diag.OutputShared || rule.ID == diag.OutputPackage {
			continue
		}
		require.FileExists(t, stderrFile(string(rule.ID)))
	}
}
