package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModulesAreDocumented: a page has the go get of each module that users require, and CONTRIBUTING has the modules that must be
// replaced to use it from a checkout.
func TestModulesAreDocumented(t *testing.T) {
	t.Parallel()
	var modules []string
	for _, pattern := range []string{"publish/*", "consume/*", "telemetry/*", "sqltx"} {
		files, err := filepath.Glob("../../" + pattern + "/go.mod")
		require.NoError(t, err)
		for _, file := range files {
			if dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), "../../"); dir != "telemetry/promtest" { // has only tests
				modules = append(modules, dir)
			}
		}
	}
	require.Greater(t, len(modules), 8)
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	documented := ""
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, line := range regexp.MustCompile(`(?m)go get github.com/outboxgen/outboxgen/.*$`).FindAllString(string(text), -1) {
			documented += line + "\n"
		}
	}
	contributing, err := os.ReadFile("../../CONTRIBUTING.md")
	require.NoError(t, err)
	for _, dir := range modules {
		require.Contains(t, documented, dir, "no page has a go get of %s", dir)
		mod, err := os.ReadFile("../../" + dir + "/go.mod")
		require.NoError(t, err)
		rows := strings.Split(string(contributing), "\n")
		row := rows[max(0, slices.IndexFunc(rows, func(row string) bool {
			imports, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
			return strings.HasPrefix(row, "|") && strings.Contains(imports, "`"+dir+"`")
		}))]
		require.Contains(t, row, "`"+dir+"`", "CONTRIBUTING.md has no row for it")
		for _, needed := range regexp.MustCompile(`(?m)^\tgithub.com/outboxgen/outboxgen/(\S+) v`).FindAllStringSubmatch(string(mod), -1) {
			_, replaced, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
			require.Contains(t, replaced, "`"+needed[1]+"`", "%s requires it", dir)
		}
	}
}
