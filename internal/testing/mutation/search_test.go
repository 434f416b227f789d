package main

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

const root = "../../.."

// mutantsOf returns the mutants of a unit.
func mutantsOf(t *testing.T, unit string) []mutant {
	t.Helper()
	units, err := queryUnits(root + "/" + queriesDir)
	require.NoError(t, err)
	objects, err := schemaUnits()
	require.NoError(t, err)
	all, err := sqlMutants(append(units, objects...))
	require.NoError(t, err)
	var own []mutant
	for _, m := range all {
		if m.unit == unit {
			own = append(own, m)
		}
	}
	require.NotEmpty(t, own, unit)
	return own
}

// TestSearchFindsCases: the search tells the mutants of a small statement apart, also one that only another session notices.
// The cases that are kept kill mutants of a query, a view and a table, and not a text that says the same.
func TestSearchFindsCases(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	ctx := t.Context()
	server, err := startServer(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	server.root = root
	conn, err := pgx.Connect(ctx, server.URL())
	require.NoError(t, err)
	locker, err := pgx.Connect(ctx, server.URL())
	require.NoError(t, err)
	b, err := openBench(ctx, server, conn, "outbox")
	require.NoError(t, err)
	known, err := allStatements(ctx, server, b)
	require.NoError(t, err)
	h := &hunt{server: server, dir: t.TempDir(), conn: conn, locker: locker, bench: b, statement: known["EventUnsettle"], r: rand.New(rand.NewPCG(1, 1))}
	require.NoError(t, h.run(ctx, mutantsOf(t, "EventUnsettle"), time.Minute)) // it ends when all are told apart
	require.Empty(t, h.live)
	kept, err := statements.ReadCases(h.dir, "EventUnsettle")
	require.NoError(t, err)
	require.NotEmpty(t, kept)

	r, err := newReplayer(ctx, server)
	require.NoError(t, err)
	for unit, fewest := range map[string]int{"EventUnsettle": 4, "EventExtend": 7, "view event_status": 27, "table pauses": 17, "index dead_letters_event": 2} {
		killed := 0
		for _, m := range mutantsOf(t, unit) {
			kills, err := r.kills(ctx, m)
			require.NoError(t, err, m.id)
			if kills {
				killed++
			}
		}
		require.GreaterOrEqual(t, killed, fewest, unit)
	}
	same := mutantsOf(t, "EventExtend")[0]
	same.text = r.known["EventExtend"].Text
	kills, err := r.kills(ctx, same)
	require.NoError(t, err)
	require.False(t, kills)
	objects, err := schemaUnits()
	require.NoError(t, err)
	for _, u := range objects {
		if u.name != "function enqueue" && u.name != "function claim_turns" && u.name != "view event_status" {
			continue
		}
		same := mutantsOf(t, u.name)[0]
		same.object = u.text
		kills, err := r.kills(ctx, same)
		require.NoError(t, err)
		require.False(t, kills, u.name)
	}
}

// TestDomainsOfParameters: a parameter gets values of the columns that it is compared with, of its type.
func TestDomainsOfParameters(t *testing.T) {
	t.Parallel()
	for param, column := range map[string]string{
		"topics": "topic", "delays_us": "delay_us", "after_dues": "next_attempt_at", "known_turns": "turn", "statuses": "status",
		"bodies": "body", "worker_id": "locked_by", "p_paused": "paused",
	} {
		require.Contains(t, columnsOf(param), column, param)
	}
	require.True(t, fits("#1", "uuid"))
	require.False(t, fits("k1", "uuid"))
	require.True(t, fits("now-1h", "timestamp with time zone[]"))
	require.False(t, fits("true", "timestamp with time zone"))
}
