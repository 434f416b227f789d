package listener_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerKeepsFailures: the latest five failed attempts stay with an event, whether it is parked, blocks its shard or is
// dead, and after it was delivered. A process that changes hands keeps them.
func TestListenerKeepsFailures(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, parks := range []bool{false, true} {
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprintf("parks %t, dies %t", parks, dies), func(t *testing.T) {
				t.Parallel()
				runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
					pool := pgtest.Database(t)
					h := runtimetest.NewNotes()
					drain := func() listener.Report {
						runtimetest.RetryNow(t, pool)
						spec := listener.Spec{ParkKeys: parks, Retry: outbox.Retry{MaxAttempts: 7}}
						return runtimetest.DrainAll(t, runtimetest.ListenAs(t, pool, transactional, spec, listener.Config{}, h))
					}
					drain()
					runtimetest.PutAll(t, pool, "x1", "a1")
					id := runtimetest.IDOf(t, pool, "x1")
					for n := range 7 {
						h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
							if d.Payload.Key == "x" && (n < 6 || dies) {
								return fmt.Errorf("failure %d", n+1)
							}
							return nil
						}
						drain()
					}
					want := []string{"2 failure 2", "3 failure 3", "4 failure 4", "5 failure 5", "6 failure 6"}
					if dies {
						want = append(want[1:], "7 failure 7")
					}
					require.Equal(t, strings.Join(want, ", "), pgtest.Value[string](t, pool, `SELECT string_agg(concat(attempt, ' ', error), ', ' ORDER BY at)
						FROM outbox.listener_failures WHERE id = $1 AND listener = 'ears' AND worker IS NOT NULL`, id))
					require.Equal(t, 5, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listener_failures"), "nothing of others")

					a := runtimetest.AdminOf(t, pool)
					detail, err := a.Event(t.Context(), id)
					require.NoError(t, err)
					require.Len(t, detail.Listeners, 1)
					var got []string
					for _, f := range detail.Listeners[0].Failures {
						got = append(got, fmt.Sprint(f.Attempt, " ", f.Error))
					}
					require.Equal(t, want, got)
				})
			})
		}
	}
}

// TestLateHolderKeepsNoFailures: what has lost its lease writes no failure.
func TestLateHolderKeepsNoFailures(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error {
		pgtest.Execute(t, pool, "UPDATE outbox.listeners SET lease_no = lease_no + 1")
		return runtimetest.ErrHandler
	}
	runtimetest.PutAll(t, pool, "x1")
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	r, err := l.DrainUpTo(t.Context(), outbox.DrainLimit{Events: 1})
	require.NoError(t, err, "a statement that fails writes nothing either")
	require.Equal(t, listener.Report{Lost: 1, Ended: outbox.EndEvents}, r)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listener_failures"))
}
