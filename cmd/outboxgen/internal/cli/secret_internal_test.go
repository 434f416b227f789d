package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// urlCommands are the commands that take the address of a database.
var urlCommands = [][]string{
	{"migrate", "up"}, {"migrate", "down"}, {"migrate", "status"}, {"migrate", "validate"}, {"prune"},
	{"listener", "list"}, {"listener", "pause", "ears"}, {"listener", "resume", "ears"}, {"listener", "skip", "ears"},
	{"listener", "rewind", "ears", "--to", "start"}, {"listener", "detach", "ears"}, {"listener", "rebase"},
	{"dead", "list"}, {"dead", "groups"}, {"dead", "show", "0190a5c2-7b1e-7c00-8000-0123456789ab"}, {"dead", "export"},
	{"dead", "replay", "--all"}, {"audit"}, {"dead", "discard", "--all", "--reason", "x"},
}

// No command shows a piece of a password, however the address is written and wherever it is given. Nothing listens on
// port 1.
func TestNoCommandShowsAPassword(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "outbox.yaml")
	require.NoError(t, os.WriteFile(config, []byte("version: \"1\"\npackage: a\nnamespaces: {a: {topics: {b: {payload: {}}}}}\n"), 0o600))
	var addresses []string
	for _, password := range []string{"xyq7vkj", "7/xyq", "7/vkj?xyq", "7?xyq", "7#vkj", "xyq/vkj", "xyq?vkj", "xyq#vkj", "xyq@vkj", "xyq:vkj", "xyq%vkj", "xyq%zz", "xyq vkj", "xyq%2Fvkj", "7/a@xyq", "xyq\\vkj", "xyq[vkj"} {
		for _, rest := range []string{"@127.0.0.1:1/d", "@127.0.0.1:1/d?sslmode=disable", "@127.0.0.1:1", "@127.0.0.1:x/d", "@127.0.0.1:1/d?application_name=a@b"} {
			addresses = append(addresses, "postgres://u:"+password+rest, "postgresql://:"+password+rest)
		}
	}
	for _, password := range []string{"xyq/vkj", "'xyq vkj'", "xyq vkj", "xyq' vkj", "'xyq'vkj", "xyq=vkj", "xyq vkj=a", "'xyqvkj", "xyq\\ vkj"} {
		for _, rest := range []string{"", " dbname=d", " port=x", " sslmode=bogus"} {
			addresses = append(addresses, "host=127.0.0.1 port=1 user=u password="+password+rest, "password="+password+" host=127.0.0.1 port=1"+rest)
		}
	}
	for i, address := range addresses {
		command := urlCommands[i%len(urlCommands)]
		if i < len(urlCommands) { // each of them with the first address, too
			address = addresses[i%3]
		}
		for name, args := range map[string][]string{
			"flag":     append(slices.Clone(command), "--database-url", address, "--config", config),
			"variable": append(slices.Clone(command), "--config", config),
			"argument": append(slices.Clone(command), address),
			"config":   append(slices.Clone(command), "--config", address),
			"schema":   append(slices.Clone(command), "--schema", address),
			"json":     append(slices.Clone(command), "--json", "--database-url", address, "--config", config),
		} {
			if name != "flag" && name != "json" && name != "variable" && strings.Contains(address, "=") {
				continue // the argument of another flag can be anything
			}
			var out bytes.Buffer
			env := Env{Stdout: &out, Stderr: &out, Getenv: func(key string) string {
				if key == "DATABASE_URL" && name != "flag" && name != "json" {
					return address
				}
				return ""
			}}
			code := Run(t.Context(), env, args)
			require.NotZero(t, code, "%s %q", name, args)
			for _, piece := range []string{"xyq", "vkj"} {
				require.NotContains(t, out.String(), piece, "%s %q", name, args)
			}
			require.Equal(t, 1, strings.Count(out.String(), "\n"), "%s %q: %s", name, args, out.String())
		}
	}
}

// The PG* variables are read by the driver.
func TestNoCommandShowsAPasswordOfTheEnvironment(t *testing.T) { // not parallel: it sets variables of the process
	t.Setenv("PGHOST", "127.0.0.1")
	t.Setenv("PGPORT", "1")
	t.Setenv("PGDATABASE", "d")
	for _, password := range []string{"xyqvkj", "xyq/vkj", "xyq vkj", "xyq'vkj", "xyq@vkj"} {
		t.Setenv("PGPASSWORD", password)
		_, complaints, code := start(t, "migrate", "status")
		require.Equal(t, exitFailure, code)
		require.NotContains(t, complaints, "xyq")
		require.NotContains(t, complaints, "vkj")
	}
}
