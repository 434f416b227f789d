package listener_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
)

// Negative controls: readers that are known to be wrong. They show that the tests of this cursor find errors.

// control makes a reader for a database.
type control func(t testing.TB, pool *pgxpool.Pool) reader

func sound(t testing.TB, pool *pgxpool.Pool) reader {
	return listens(t, pool, listener.Spec{Name: "sound"}, listener.Config{PruneInterval: -1}, 0)
}

func aboveHighest(_ testing.TB, pool *pgxpool.Pool) reader { return rival(pool, readAbove) }

func belowHorizon(_ testing.TB, pool *pgxpool.Pool) reader { return rival(pool, readBelowHorizon) }

func without(edits ...listener.Edit) control {
	return func(t testing.TB, pool *pgxpool.Pool) reader {
		return listens(t, pool, listener.Spec{Name: "edited"}, listener.Config{PruneInterval: -1}, 0, edits...)
	}
}

// The same writers find an error in each wrong reader, most of them in a fraction of the steps.
func TestChaosFindsWrongCursors(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	server := calmServer(t)
	const each = 5000
	wrong := map[string]control{
		"seq above cursor": aboveHighest, "xmin horizon": belowHorizon, "without bound": without(listener.WithoutBound),
	}
	for round := 1; len(wrong) > 0; round++ {
		require.LessOrEqual(t, round, 10, "not found: %v", slices.Collect(maps.Keys(wrong)))
		c, pool := chaosDatabase(t, server, fmt.Sprint("control ", round), each)
		readers := make(map[string]reader)
		for name, make := range wrong {
			readers[name] = make(t, pool)
		}
		for name, v := range c.run(t, readers) {
			t.Logf("%-18s after %d steps: %+v", name, round*each, v)
			require.Zero(t, v.Duplicate+v.Phantom, name)
			if v.Lost+v.Disordered > 0 {
				delete(wrong, name)
			}
		}
	}
}

// scene has writers that take steps as the test says, and a reader, on a server without other activity.
type scene struct {
	t     *testing.T
	pool  *pgxpool.Pool
	read  reader
	heard []string
	names map[uuid.UUID]string
}

// newScene starts with a reader that has heard all events of earlier scenes.
func newScene(t *testing.T, pool *pgxpool.Pool, make control) *scene {
	t.Helper()
	pgtest.Execute(t, pool, "TRUNCATE outbox.log, outbox.listeners")
	s := &scene{t: t, pool: pool, read: make(t, pool), names: map[uuid.UUID]string{}}
	s.look() // attaches
	return s
}

// calmServer returns a server that no other test uses and that starts no transactions by itself.
func calmServer(t testing.TB) *pgserver.Server {
	t.Helper()
	return pgtest.Server(t, pgserver.Options{Settings: map[string]string{"max_prepared_transactions": "64", "autovacuum": "off"}})
}

func (s *scene) begin() pgx.Tx {
	s.t.Helper()
	return pgtest.Begin(s.t, s.pool, pgx.TxOptions{})
}

// takeXID assigns the xid of tx before it enqueues anything.
func (s *scene) takeXID(tx pgx.Tx) {
	s.t.Helper()
	pgtest.Value[string](s.t, tx, "SELECT pg_current_xact_id()::text")
}

func (s *scene) enqueue(tx pgx.Tx, name string) {
	s.t.Helper()
	receipt, err := chaosTopics[true].Untyped().Enqueue(s.t.Context(), tx, runtimetest.Said{Key: name, N: 1})
	require.NoError(s.t, err)
	s.names[receipt.ID] = name
}

func (s *scene) commit(tx pgx.Tx) {
	s.t.Helper()
	require.NoError(s.t, tx.Commit(s.t.Context()))
}

// put commits an event in a separate transaction.
func (s *scene) put(name string) {
	s.t.Helper()
	tx := s.begin()
	s.enqueue(tx, name)
	s.commit(tx)
}

// look makes the reader read what is visible.
func (s *scene) look() {
	s.t.Helper()
	require.NoError(s.t, s.read.drain(context.Background(), 100, func(id uuid.UUID) { s.heard = append(s.heard, s.names[id]) }))
}

// Each interleaving breaks one of the wrong cursors; the listener's cursor handles them all.
func TestCursorUnderInterleavings(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	_, pool := chaosDatabase(t, calmServer(t), "scenes", 0)
	for name, c := range map[string]struct {
		play  func(s *scene)
		want  []string
		wrong control
		lost  []string // by the wrong cursor
	}{
		"a lower seq commits later": {
			play: func(s *scene) {
				late := s.begin()
				s.enqueue(late, "late")
				s.put("first")
				s.look()
				s.commit(late)
				s.look()
				s.put("last")
				s.look()
			},
			want: []string{"first", "late", "last"}, wrong: aboveHighest, lost: []string{"late"},
		},
		"a lower seq has a higher xid": {
			play: func(s *scene) {
				early, late := s.begin(), s.begin()
				s.takeXID(early)
				s.enqueue(late, "late") // its xid is above that of early, its seq below
				s.enqueue(early, "early")
				s.commit(early)
				s.look()
				s.commit(late)
				s.look()
			},
			want: []string{"early", "late"}, wrong: belowHorizon, lost: []string{"late"},
		},
		// The same in terms of snapshots: xmax follows the latest xid that has ended, so late is in no list.
		"an xid in use is above xmax": {
			play: func(s *scene) {
				early, late := s.begin(), s.begin()
				s.takeXID(early)
				s.enqueue(late, "late")
				s.enqueue(early, "early")
				s.commit(early)
				s.look()
				s.commit(late)
				s.look()
				s.put("last")
				s.look()
			},
			want: []string{"early", "late", "last"}, wrong: without(listener.WithoutBound), lost: []string{"late"},
		},
		"a straggler of a straggler's window": {
			play: func(s *scene) {
				first, second := s.begin(), s.begin()
				s.enqueue(first, "first")
				s.enqueue(second, "second")
				s.put("third")
				s.look()
				s.commit(second)
				s.look()
				s.put("fourth")
				s.look()
				s.commit(first)
				s.look()
			},
			want: []string{"third", "second", "fourth", "first"}, wrong: without(listener.WithoutStragglers), lost: []string{"second", "first"},
		},
		"a savepoint's events": {
			play: func(s *scene) {
				tx := s.begin()
				for _, name := range []string{"kept", "undone"} {
					_, err := tx.Exec(s.t.Context(), "SAVEPOINT s")
					require.NoError(s.t, err)
					s.enqueue(tx, name)
					if name == "undone" {
						_, err = tx.Exec(s.t.Context(), "ROLLBACK TO SAVEPOINT s")
						require.NoError(s.t, err)
					}
				}
				s.put("first")
				s.look()
				s.commit(tx)
				s.look()
			},
			want: []string{"first", "kept"}, wrong: aboveHighest, lost: []string{"kept"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, pool, sound)
			c.play(s)
			require.Equal(t, c.want, s.heard)
			s = newScene(t, pool, c.wrong)
			c.play(s)
			var kept []string
			for _, name := range c.want {
				if !slices.Contains(c.lost, name) {
					kept = append(kept, name)
				}
			}
			require.Equal(t, kept, s.heard, "the control")
		})
	}
}
