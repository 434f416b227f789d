package statements_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// What no case shows of the function claim_turns: the order of the events, and times to the microsecond.

// claimNew claims from the turns of topic x that are new, with a batch of $1.
const claimNew = `SELECT right(t.id::text, 1) FROM outbox_schema.claim_turns('a', gen_random_uuid(), '1 hour', $1, NULL, '{}', 1, '{}', '{}', '{}', '{}',
	'{}', '{}', '{}', '{}', ARRAY[outbox_schema.lane('x') | (1 << 30)], '{-infinity}', '{00000000-0000-0000-0000-000000000000}', 9, '{}', '{}', 0, 9, 9, 0,
	'{}', 9, 0, '0') AS t WHERE t.kind = 0`

// TestTurnsAreClaimedInOrder: a claim returns the first event of each turn, then the second of each.
func TestTurnsAreClaimedInOrder(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 1)
	_, err := conns[0].Exec(t.Context(), schema.Text(`INSERT INTO outbox_schema.queue (id, namespace, topic, lane, turn, next_attempt_at)
		SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, 'a', 'x', outbox_schema.lane('x') | (1 << 30), turn, now() - interval '1 hour' / n
		FROM (VALUES (1, 'k1'), (2, 'k2'), (3, 'k2'), (4, 'k1'), (5, 'k1')) AS e (n, turn)`))
	require.NoError(t, err)
	rows, err := conns[0].Query(t.Context(), schema.Text(claimNew), 9)
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"1", "2", "4", "3", "5"}, ids)
}

// TestStartsOfOneMomentAreAdded: starts are counted in 64 pieces of a period, of which an edge is at the epoch, and at the end of
// the piece that is a 32nd of the period behind the claim. Those of one piece are one number.
func TestStartsOfOneMomentAreAdded(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 1)
	for _, sql := range []string{
		// The first piece has ended a year ago. The next two have as many years as the first.
		`INSERT INTO outbox_schema.limits (namespace, topic, per, counted_as, nth, tag, part, rate, period)
			VALUES ('a', 'x', '', 'x', 1, 't', 0, 9, make_interval(secs => extract(epoch FROM now() - interval '1 year')::bigint * 64))`,
		`INSERT INTO outbox_schema.queue (id, namespace, topic, lane, turn)
			SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, 'a', 'x', outbox_schema.lane('x') | (1 << 30), 't'
			FROM generate_series(1, 3) AS n`,
	} {
		_, err := conns[0].Exec(t.Context(), schema.Text(sql))
		require.NoError(t, err)
	}
	for _, batch := range []int{1, 2} {
		_, err := conns[0].Exec(t.Context(), schema.Text(claimNew), batch)
		require.NoError(t, err)
	}
	var starts []int32
	var atEdge bool
	require.NoError(t, conns[0].QueryRow(t.Context(), schema.Text(`SELECT u.starts, u.starts_at = ARRAY['epoch'::timestamptz + l.period / 64 * 4]
		FROM outbox_schema.limit_usage AS u CROSS JOIN outbox_schema.limits AS l`)).Scan(&starts, &atEdge))
	require.Equal(t, []int32{3}, starts)
	require.True(t, atEdge)
}
