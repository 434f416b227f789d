package cli

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// urlArguments are the arguments that commands need before they ask their database.
var urlArguments = map[string][]string{
	"listener pause": {"ears"}, "listener resume": {"ears"}, "processes forget": {"0190a5c2-7b1e-7c00-8000-0123456789ab"}, "listener skip": {"ears"}, "listener detach": {"ears"},
	"listener rewind": {"ears", "--to", "start"}, "drained": {"--topic", "a/b"}, "pause": {"a"}, "resume": {"a"}, "dead parked": {"--consumer", "c"},
	"dead show": {"0190a5c2-7b1e-7c00-8000-0123456789ab"}, "events show": {"0190a5c2-7b1e-7c00-8000-0123456789ab"},
	"limit set": {"a/b", "--rate", "1/1m"}, "limit reset": {"a/b"}, "forget": {"--entity", "a/b"}, "enqueue": {"a/b", "--data", "{}"},
	"dead replay": {"--all"}, "dead discard": {"--all", "--reason", "x"},
}

// urlCommands returns the commands that take the address of a database, with their arguments.
func urlCommands(t *testing.T) (all [][]string) {
	t.Helper()
	left := maps.Clone(urlArguments)
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.HasSubCommands() || c.Flag("database-url") == nil {
			return
		}
		_, path, _ := strings.Cut(c.CommandPath(), " ")
		if path == "migrate get" { // it prints files
			return
		}
		all = append(all, append(strings.Fields(path), urlArguments[path]...))
		delete(left, path)
	}
	walk((&app{}).root())
	require.Empty(t, left, "arguments of commands that do not exist")
	require.Greater(t, len(all), 20)
	return all
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
	commands := urlCommands(t)
	for _, command := range commands {
		var out bytes.Buffer
		env := Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
		args := append(slices.Clone(command), "--database-url", "postgres://u@127.0.0.1:1/d", "--config", config)
		require.Equal(t, exitFailure, Run(t.Context(), env, args), "%q must ask the database: %s", args, out.String())
	}
	for i, address := range addresses {
		command := commands[i%len(commands)]
		if i < len(commands) { // each of them with the first addresses, too
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
