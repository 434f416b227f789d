package check

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// elsewhere are the commands of others that the pages use.
var elsewhere = strings.Fields(`cat cd code createdb curl docker echo export gcloud git go jq kafka-topics.sh kill ls make mkdir openssl page-somebody pg_dump
	pg_basebackup pg_ctl pg_restore pg_rewind pg_upgrade pgbouncer psql rm sha256sum sleep sort systemctl tar timeout touch true uniq vacuumdb`)

// command is one command of outboxgen, as docs/reference/cli.md has it.
type command struct {
	flags    map[string]bool // by name; true if it takes a value
	argument bool            // it may have arguments
}

// commands reads docs/reference/cli.md, which a test compares with the commands.
func commands(t testing.TB) map[string]command {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/reference/cli.md"))
	require.NoError(t, err)
	found := make(map[string]command)
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		name, rest, _ := strings.Cut(section, "\n")
		c := command{flags: map[string]bool{"--json": false, "--help": false}}
		for _, m := range regexp.MustCompile("(?m)^\\| `(--[a-z-]+)( [^`]+)?` \\|").FindAllStringSubmatch(rest, -1) {
			c.flags[m[1]] = m[2] != ""
		}
		usage := regexp.MustCompile("(?m)^" + name + "(.*)$").FindStringSubmatch(rest)
		require.NotNil(t, usage, name)
		c.argument = strings.TrimSpace(strings.ReplaceAll(usage[1], "[flags]", "")) != ""
		found[name] = c
	}
	require.Greater(t, len(found), 30)
	return found
}

// TestShellBlocks checks that each command of outboxgen on the pages exists, with its flags, and that every other command
// is one that the pages may use.
func TestShellBlocks(t *testing.T) {
	t.Parallel()
	known := commands(t)
	blocks := all(t, "sh")
	require.Greater(t, len(blocks), 40)
	for _, b := range blocks {
		text := strings.ReplaceAll(b.text, "\\\n", " ")
		for line := range strings.Lines(text) {
			for _, words := range simple(line) {
				checkCommand(t, b, known, words)
			}
		}
	}
}

// simple splits a line into its simple commands, each into words. Quoted words are kept as they are.
func simple(line string) (list [][]string) {
	line = regexp.MustCompile(`^[*0-9/]+( [*0-9/]+){4}  `).ReplaceAllString(strings.TrimSpace(line), "") // a line of a crontab
	token := regexp.MustCompile(`'[^']*'|"[^"]*"|(?:\$\([^)]*\)|[^\s'"|&;#()])+|\|\||&&|[|&;()]|#.*`)
	var words []string
	end := func() {
		if len(words) > 0 {
			list = append(list, words)
		}
		words = nil
	}
	for _, s := range token.FindAllString(line, -1) {
		switch {
		case strings.HasPrefix(s, "#"):
			end()
			return list
		case strings.ContainsAny(s[:1], "|&;()"):
			end()
		default:
			for _, m := range regexp.MustCompile(`\$\(([^)]*)\)`).FindAllStringSubmatch(s, -1) {
				list = append(list, simple(m[1])...)
			}
			words = append(words, s)
		}
	}
	end()
	return list
}

func checkCommand(t testing.TB, b block, known map[string]command, words []string) {
	t.Helper()
	for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
		words = words[1:]
	}
	switch {
	case len(words) == 0:
		return
	case len(words) > 2 && slices.Equal(words[:2], []string{"go", "tool"}):
		words = words[2:]
		if words[0] == "-n" {
			return
		}
	}
	if words[0] != "outboxgen" {
		require.Contains(t, elsewhere, words[0], "%s: an unknown command", b)
		return
	}
	name, words := "outboxgen", words[1:]
	for len(words) > 0 {
		if _, ok := known[name+" "+words[0]]; !ok {
			break
		}
		name, words = name+" "+words[0], words[1:]
	}
	if name == "outboxgen" {
		require.Contains(t, []string{"--version", "--help", "help", "completion"}, words[0], "%s: outboxgen has no such command", b)
		return
	}
	for i := 0; i < len(words); i++ {
		word, _, given := strings.Cut(words[i], "=")
		switch takes, ok := known[name].flags[word]; {
		case words[i] == ">", words[i] == "<", words[i] == "2>":
			i++
		case strings.HasPrefix(word, "-"):
			require.True(t, ok, "%s: %s has no flag %s", b, name, word)
			if takes && !given {
				i++
				require.Less(t, i, len(words), "%s: %s needs a value", b, word)
			}
		default:
			require.True(t, known[name].argument, "%s: %s takes no argument %s", b, name, words[i])
		}
	}
}
