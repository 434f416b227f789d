package listener

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener/internal/core/simtest"
)

// never stands for the null of a time.
const never = "'0001-01-01 UTC'::timestamptz"

func nullable(at time.Time) time.Time {
	if at.Year() == 1 {
		return time.Time{}
	}
	return at
}

// compare compares the rows of listeners, parked and dead letters.
func (m *tableModel) compare() {
	rows, err := m.pool.Query(m.t.Context(), `
		SELECT shard, lease_no, last_seq, coalesce(lease_id, $1), coalesce(lease_by, $1), coalesce(preferred, $1), running, in_batch, one_by_one,
			retry_count, coalesce(lease_until, `+never+`), coalesce(retry_after, `+never+`) FROM outbox.listeners ORDER BY shard`, uuid.Nil)
	require.NoError(m.t, err)
	var c simtest.Cursor
	var shard int
	all := m.model.Cursors()
	_, err = pgx.ForEachRow(rows, []any{
		&shard, &c.LeaseNo, &c.LastSeq, &c.LeaseID, &c.LeaseBy, &c.Preferred, &c.Running, &c.InBatch, &c.OneByOne, &c.RetryCount, &c.LeaseUntil,
		&c.RetryAfter,
	}, func() error {
		want := all[shard]
		m.times(want.LeaseUntil, nullable(c.LeaseUntil), "lease until")
		m.times(want.RetryAfter, nullable(c.RetryAfter), "retry after")
		if want.LeaseBy == uuid.Max && c.LeaseBy != uuid.Nil { // it is let expire: nobody has it
			want.LeaseBy = c.LeaseBy
		}
		want.LeaseUntil, want.RetryAfter = c.LeaseUntil, c.RetryAfter
		m.equal(want, c, fmt.Sprint("shard ", shard))
		return nil
	})
	require.NoError(m.t, err)
	rows, err = m.pool.Query(m.t.Context(), "SELECT no, seq, key, attempts, taken, coalesce(retry_after, "+never+") FROM outbox.parked ORDER BY no")
	require.NoError(m.t, err)
	parked, err := pgx.CollectRows(rows, pgx.RowToStructByPos[simtest.Parked])
	require.NoError(m.t, err)
	want := m.model.Parked()
	require.Len(m.t, parked, len(want), "parked events, after\n%v", m)
	for i := range want {
		m.times(want[i].RetryAfter, nullable(parked[i].RetryAfter), "parked until")
		want[i].RetryAfter = parked[i].RetryAfter
		m.equal(want[i], parked[i], "parked event")
	}
	rows, err = m.pool.Query(m.t.Context(), "SELECT seq FROM outbox.dead_letters ORDER BY seq")
	require.NoError(m.t, err)
	dead, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(m.t, err)
	n := 0
	for seq := range int64(2000) {
		if m.model.Dead(seq) {
			n++
		}
	}
	m.equal(n, len(dead), "number of dead letters")
	for _, seq := range dead {
		require.True(m.t, m.model.Dead(seq), "event %d has a dead letter, after\n%v", seq, m)
	}
}

func (m *tableModel) times(want, got time.Time, what string) {
	m.t.Helper()
	m.equal(want.IsZero(), got.IsZero(), what)
	require.WithinDuration(m.t, want, got, tableLease/2, "%s, after\n%v", what, m)
}

// adopt rounds the times of the tables, and makes them those of the model: it knows when a statement ran only nearly.
func (m *tableModel) adopt() {
	const bin = "date_bin('10 s', %s, '2000-01-01 UTC')"
	rows, err := m.pool.Query(m.t.Context(), fmt.Sprintf(
		"UPDATE outbox.listeners SET lease_until = "+bin+", retry_after = "+bin+" RETURNING shard, coalesce(lease_until, "+never+"), coalesce(retry_after, "+never+")",
		"lease_until", "retry_after"))
	require.NoError(m.t, err)
	var shard int
	var until, after time.Time
	_, err = pgx.ForEachRow(rows, []any{&shard, &until, &after}, func() error {
		m.model.SetTimes(shard, nullable(until), nullable(after))
		return nil
	})
	require.NoError(m.t, err)
	// Heads have different times, or their order would be open.
	rows, err = m.pool.Query(m.t.Context(), fmt.Sprintf(
		"UPDATE outbox.parked SET retry_after = "+bin+" + no * interval '1 ms' WHERE retry_after IS NOT NULL RETURNING no, retry_after", "retry_after"))
	require.NoError(m.t, err)
	var no int64
	_, err = pgx.ForEachRow(rows, []any{&no, &after}, func() error {
		m.model.SetRetry(no, after)
		return nil
	})
	require.NoError(m.t, err)
}

func (m *tableModel) play() {
	for range tableSteps {
		// Nothing falls due in the middle of a step.
		pgtest.Settles(m.t, m.pool, 1, "SELECT (extract(epoch FROM clock_timestamp())::numeric % 10 BETWEEN 1 AND 8)::integer")
		w, shard := m.rnd.IntN(3), m.rnd.IntN(tableShards)
		switch n := m.rnd.IntN(100); {
		case n < 12:
			m.enqueue()
		case n < 24:
			m.finish()
		case n < 46:
			m.take(w, shard)
		case n < 58:
			m.takeParked(shard)
		case n < 80:
			m.end(shard)
		case n < 92:
			m.ask(w, shard)
		default:
			m.pass()
			m.adopt()
		}
		m.compare()
		m.adopt()
	}
	for _, e := range m.open {
		require.NoError(m.t, e.tx.Rollback(m.t.Context()))
	}
}

// TestTablesAgainstTheModel: what simtest takes for the tables of listeners is what PostgreSQL has. The same random leases,
// their ends, parked events, dead letters, renewals and questions give the same answers and rows, also with events that are
// committed late; time passes by moving the times in the tables. Changes of the number of shards are left out.
// OUTBOXGEN_MODEL_SEEDS says how many schedules it plays, and OUTBOXGEN_MODEL_SEED plays one.
func TestTablesAgainstTheModel(t *testing.T) {
	t.Parallel()
	first, n := uint64(1), 2
	if text := os.Getenv("OUTBOXGEN_MODEL_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		first, n = seed, 1
	} else if text := os.Getenv("OUTBOXGEN_MODEL_SEEDS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	for i := range n {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newTableModel(t, seed)
			m.play()
			t.Logf("OUTBOXGEN_MODEL_SEED=%d: %v", seed, m.stats)
		})
	}
}
