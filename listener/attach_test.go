package listener_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// deeds creates triggers that record who wrote and who deleted each event, and what each listener saw when it was
// attached.
const deeds = `
	CREATE TABLE written (id uuid PRIMARY KEY, xid xid8 NOT NULL);
	CREATE TABLE deleted (id uuid PRIMARY KEY, xid xid8 NOT NULL);
	CREATE TABLE attached (listener text PRIMARY KEY, lo pg_snapshot NOT NULL, seen pg_snapshot NOT NULL);
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
		IF TG_OP = 'DELETE' THEN
			INSERT INTO deleted SELECT o.id, pg_current_xact_id() FROM gone AS o;
		ELSIF TG_TABLE_NAME = 'log' THEN
			INSERT INTO written SELECT n.id, pg_current_xact_id() FROM fresh AS n;
		ELSE
			INSERT INTO attached SELECT n.listener, n.lo, pg_current_snapshot() FROM fresh AS n;
		END IF;
		RETURN NULL;
	END $$;
	CREATE TRIGGER note_insert AFTER INSERT ON outbox.log REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION note();
	CREATE TRIGGER note_delete AFTER DELETE ON outbox.log REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION note();
	CREATE TRIGGER note_attach AFTER INSERT ON outbox.listeners REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION note();`

// TestAttachUnderConcurrentWritesMissesNothing attaches listeners one after the other while writers commit in any order
// and events that all listeners have passed are pruned immediately. It compares what each listener got with what the
// database recorded when it was attached.
func TestAttachUnderConcurrentWritesMissesNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, deeds)
	cfg := listener.Config{Wake: outbox.WakePoll, PollInterval: 5 * time.Millisecond, PruneInterval: -1, BatchSize: 10}
	var stops []func()
	join := func(spec listener.Spec) *runtimetest.Notes {
		h := runtimetest.NewNotes()
		stops = append(stops, runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, spec, cfg, h)))
		return h
	}
	first := join(listener.Spec{Name: "first"})
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM attached")

	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	t.Cleanup(end)
	open := func() bool {
		select {
		case <-over:
			return false
		default:
			return true
		}
	}
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for open() {
				err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
					if _, err := runtimetest.SaidTopic.EnqueueMany(context.Background(), tx, []runtimetest.Said{{Key: "a"}, {Key: "b"}, {Key: "c"}}[rand.IntN(3):]); err != nil {
						return err
					}
					if _, err := tx.Exec(context.Background(), "SELECT pg_sleep($1)", rand.Float64()/100); err != nil || rand.IntN(5) > 0 {
						return err
					}
					return runtimetest.ErrHandler // rolls back
				})
				if err != nil && err != runtimetest.ErrHandler {
					t.Error("write:", err)
					return
				}
			}
		})
	}
	pruner := runtimetest.AdminOf(t, pool)
	busy.Go(func() {
		for open() {
			if _, err := pruner.Prune(context.Background(), map[string]outbox.Retention{"test/said": {Delivered: time.Nanosecond}}); err != nil {
				t.Error("prune:", err)
				return
			}
		}
	})

	joined := make([]*runtimetest.Notes, 8)
	name := func(i int) string { return fmt.Sprint("newcomer", i) }
	for i := range joined {
		gone := pgtest.Count(t, pool, "SELECT count(*) FROM deleted")
		pgtest.Eventually(t, func() bool { return pgtest.Count(t, pool, "SELECT count(*) FROM deleted") > gone })
		joined[i] = join(listener.Spec{Name: name(i), Latest: i%2 == 1})
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM attached WHERE listener = $1", name(i))
	}
	end()
	busy.Wait()
	pgtest.Settles(t, pool, 1+len(joined), `SELECT count(*) FROM outbox.listeners AS l WHERE NOT l.in_batch AND NOT l.running
		AND NOT EXISTS (SELECT FROM outbox.log AS g WHERE NOT (g.seq <= l.high_seq AND pg_visible_in_snapshot(g.xid, l.lo)))`)
	for _, stop := range stops {
		stop()
	}
	first.Whole(t, pool, "first", false)
	for i, h := range joined {
		h.Whole(t, pool, name(i), i%2 == 1)
	}
}

// A transaction that is older than the last committed one, but wrote later, has the highest position. A younger one
// that is still open has a lower position, and its xid is in no list of a snapshot.
func TestAttachBehindAYoungerTransactionMissesNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	enqueue := func(tx pgx.Tx, key string) {
		_, err := runtimetest.SaidTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: key, N: 1})
		require.NoError(t, err)
	}
	older, younger := pgtest.Begin(t, pool, pgx.TxOptions{}), pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := older.Exec(t.Context(), "SELECT pg_current_xact_id()")
	require.NoError(t, err)
	enqueue(younger, "younger")
	enqueue(older, "older")
	require.NoError(t, older.Commit(t.Context()))
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{Latest: true}, listener.Config{}, h)
	runtimetest.DrainAll(t, l)
	require.NoError(t, younger.Commit(t.Context()))
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"younger1"}, h.Names())
}
