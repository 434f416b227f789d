package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/cmd/outboxgen/internal/cli"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestAuditShowsWhatCommandsDid: each command that changes something leaves an entry with the person and the reason of its
// flags.
func TestAuditShowsWhatCommandsDid(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, `INSERT INTO outbox.listeners (listener, shard, shards, lo, lo_bound, high_seq, system_id)
		SELECT 'ears', 0, 1, '1:1:', '1', 0, c.system_identifier FROM pg_control_system() AS c`)
	command := func(args ...string) (code int, stdout, stderr string) {
		var out, notes bytes.Buffer
		code = cli.Run(t.Context(), cli.Env{Stdout: &out, Stderr: &notes, Getenv: func(string) string { return "" }},
			append(args, "--database-url", pgtest.URL(t, pool)))
		return code, out.String(), notes.String()
	}
	code, out, notes := command("audit")
	require.Zero(t, code, notes)
	require.Empty(t, out)
	require.Equal(t, "no act is recorded\n", notes)
	for _, args := range [][]string{
		{"listener", "pause", "ears", "--who", "ann", "--reason", "a release"},
		{"listener", "resume", "ears", "--who", "ann"},
		{"listener", "rewind", "ears", "--to", "start", "--who", "ann", "--reason", "a bug", "--yes"},
		{"listener", "rewind", "ears", "--to", "start", "--who", "ann"}, // a dry run
		{"listener", "detach", "ears", "--yes"},
	} {
		code, _, notes := command(args...)
		require.Zero(t, code, notes)
	}
	var document struct {
		Entries []struct {
			No               int64
			At               time.Time
			Who, Action, Why string
			Scope            string
			Filter           map[string]any
			Events           int64
		}
		Next string
	}
	_, out, _ = command("audit", "--json")
	require.NoError(t, json.Unmarshal([]byte(out), &document))
	var got []string
	for _, e := range document.Entries {
		require.Equal(t, "ears", e.Filter["listener"])
		who := e.Who
		if strings.Contains(who, "@") {
			who = "user@host"
		}
		got = append(got, fmt.Sprintf("%s %s %q %s", who, e.Action, e.Why, e.Scope))
	}
	require.Equal(t, []string{
		`user@host detach "" listener ears`,
		`ann rewind "a bug" listener ears, to the start of the log`,
		`ann resume "" listener ears`,
		`ann pause "a release" listener ears`,
	}, got)
	require.Empty(t, document.Next)

	code, out, notes = command("audit", "--who", "ann", "--action", "pause", "--since", "1h")
	require.Zero(t, code, notes)
	require.Regexp(t, `^AT +WHO +ACTION +EVENTS +SCOPE +WHY\n\S+Z +ann +pause +0 +listener ears +a release\n$`, out)
	_, out, notes = command("audit", "--limit", "3")
	require.Equal(t, 4, strings.Count(out, "\n"))
	require.Regexp(t, `^more: outboxgen audit --limit 3 .*--after \d+\n$`, notes)
	_, out, notes = command("audit", "--limit", "3", "--after", notes[strings.LastIndex(notes, " ")+1:len(notes)-1])
	require.Contains(t, out, "pause")
	require.Equal(t, 2, strings.Count(out, "\n"))
	require.Empty(t, notes)
	for _, args := range [][]string{{"--limit", "0"}, {"--since", "soon"}, {"--until", "start"}, {"--after", "x"}, {"--since", "1h", "--until", "2h"}} {
		code, _, notes := command(append([]string{"audit"}, args...)...)
		require.Equal(t, 2, code, notes)
	}
}
