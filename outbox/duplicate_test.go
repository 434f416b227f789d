package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

func TestDuplicateKeyReturnsTheFirstEvent(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	m := runtimetest.Message(runtimetest.TenantA, 1)
	first := runtimetest.EnqueueAll(t, pool, m)[0]
	require.False(t, first.Duplicate)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for range 2 {
			again, err := outbox.Enqueue(t.Context(), tx, "", m)
			require.NoError(t, err)
			require.Equal(t, outbox.Receipt{ID: first.ID, Duplicate: true}, again)
		}
		own, err := outbox.Enqueue(t.Context(), tx, "", runtimetest.Message(runtimetest.TenantA, 2))
		require.NoError(t, err)
		again, err := outbox.Enqueue(t.Context(), tx, "", runtimetest.Message(runtimetest.TenantA, 2))
		require.NoError(t, err)
		require.Equal(t, outbox.Receipt{ID: own.ID, Duplicate: true}, again)
		for _, change := range []func(*outbox.Message){
			func(m *outbox.Message) { m.Topic = "pong" },
			func(m *outbox.Message) { m.Namespace = "elsewhere" },
			func(m *outbox.Message) { m.DedupeKey = "" },
		} {
			other := m
			change(&other)
			receipt, err := outbox.Enqueue(t.Context(), tx, "", other)
			require.NoError(t, err)
			require.False(t, receipt.Duplicate, "a key is of one topic")
		}
	})
	require.Equal(t, 5, runtimetest.CountWhere(t, pool, "true"))
}

// A duplicate is one however far the first event has come, for as long as it is kept.
func TestDuplicateOfDeliveredAndDeadEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	first := runtimetest.EnqueueAll(t, pool, runtimetest.Message(runtimetest.TenantA, 1), runtimetest.Message(runtimetest.TenantA, 2))
	claimed := runtimetest.ClaimN(t, s, 2)
	_, err := s.Ack(t.Context(), claimed[0])
	require.NoError(t, err)
	_, err = s.Nack(t.Context(), queue.Failure{Claimed: claimed[1], Err: outbox.Permanent(fmt.Errorf("no"))})
	require.NoError(t, err)
	again := runtimetest.EnqueueAll(t, pool, runtimetest.Message(runtimetest.TenantA, 1), runtimetest.Message(runtimetest.TenantA, 2))
	require.Equal(t, []outbox.Receipt{{ID: first[0].ID, Duplicate: true}, {ID: first[1].ID, Duplicate: true}}, again)
}

func TestConcurrentDuplicatesLeaveEveryTransactionUsable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for round, rivals := range []int{2, 2, 3, 5, 8, 13, 32} {
		m := runtimetest.Message(runtimetest.TenantA, round)
		type result struct {
			receipt   outbox.Receipt
			committed bool
		}
		results := make([]result, rivals)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range rivals {
			wg.Go(func() {
				<-start
				tx, err := pool.Begin(t.Context())
				if !pgtest.Check(t, err) {
					return
				}
				defer func() { _ = tx.Rollback(t.Context()) }()
				receipt, err := outbox.Enqueue(t.Context(), tx, "", m)
				if !pgtest.Check(t, err) {
					return
				}
				_, err = tx.Exec(t.Context(), "SELECT 1")
				pgtest.Check(t, err)
				if i == 0 || rand.IntN(2) == 0 {
					pgtest.Check(t, tx.Commit(t.Context()))
					results[i] = result{receipt, true}
				}
			})
		}
		close(start)
		wg.Wait()
		id := pgtest.Value[uuid.UUID](t, pool, "SELECT id FROM testing.events WHERE dedupe_key = $1", m.DedupeKey)
		winners := 0
		for _, r := range results {
			if !r.committed {
				continue
			}
			require.Equal(t, id, r.receipt.ID, "%d rivals", rivals)
			if !r.receipt.Duplicate {
				winners++
			}
		}
		require.Equal(t, 1, winners, "%d rivals", rivals)
	}
}

func TestDuplicateUnderEachIsolationLevel(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ways := map[string]func(tx pgx.Tx, m outbox.Message) (outbox.Receipt, error){
		"enqueue": func(tx pgx.Tx, m outbox.Message) (outbox.Receipt, error) {
			return outbox.Enqueue(t.Context(), tx, "", m)
		},
		"many": func(tx pgx.Tx, m outbox.Message) (outbox.Receipt, error) {
			receipts, err := outbox.EnqueueMany(t.Context(), tx, "", []outbox.Message{m})
			if err != nil {
				return outbox.Receipt{}, err
			}
			return receipts[0], nil
		},
		"queue": func(tx pgx.Tx, m outbox.Message) (outbox.Receipt, error) {
			var b pgx.Batch
			queued, err := outbox.EnqueueInBatch(&b, "", m)
			require.NoError(t, err)
			sendErr := tx.SendBatch(t.Context(), &b).Close()
			receipt, err := queued.Receipt()
			require.Equal(t, sendErr == nil, err == nil)
			return receipt, err
		},
	}
	n := 0
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for way, enqueue := range ways {
			n++
			m := runtimetest.Message(runtimetest.TenantA, n)
			tx := pgtest.Begin(t, pool, pgx.TxOptions{IsoLevel: level})
			pgtest.Value[int](t, tx, "SELECT count(*) FROM testing.events") // takes the snapshot
			rival := runtimetest.EnqueueAll(t, pool, m)[0]
			receipt, err := enqueue(tx, m)
			if level == pgx.ReadCommitted {
				require.NoError(t, err, way)
				require.Equal(t, outbox.Receipt{ID: rival.ID, Duplicate: true}, receipt, way)
			} else {
				require.ErrorIs(t, err, outbox.ErrSerialization, "%s %s", level, way)
			}
			require.NoError(t, tx.Rollback(t.Context()))
			// Without a rival each level is as good as another.
			tx = pgtest.Begin(t, pool, pgx.TxOptions{IsoLevel: level})
			m.DedupeKey += "/free"
			receipt, err = enqueue(tx, m)
			require.NoError(t, err)
			require.False(t, receipt.Duplicate)
			require.NoError(t, tx.Commit(t.Context()))
		}
	}
}

func TestEnqueueManyReceiptsAreInOrder(t *testing.T) {
	t.Parallel()
	const n = 2500 // more than two statements
	pool := pgtest.Database(t)
	there := runtimetest.EnqueueAll(t, pool, runtimetest.Message(runtimetest.TenantA, 7), runtimetest.Message(runtimetest.TenantA, 2101))
	ms := make([]outbox.Message, 0, n)
	for _, i := range rand.Perm(n) {
		m := runtimetest.Message(runtimetest.TenantA, i)
		m.Payload = fmt.Appendf(nil, `{"n":%d}`, i)
		m.Entity = outbox.Entity{Type: "n", ID: fmt.Sprint(i), Version: int64(i)}
		if i%3 == 0 {
			m.Headers = map[string]string{"n": fmt.Sprint(i)}
		}
		if i%5 == 0 {
			m.NotBefore = time.Now().Add(runtimetest.LongLease)
		}
		ms = append(ms, m)
	}
	ms = append(ms, ms[0], runtimetest.Message(runtimetest.TenantA, 7)) // twice in one call, and once too often
	receipts := runtimetest.EnqueueAll(t, pool, ms...)
	require.Len(t, receipts, len(ms))
	seen := map[uuid.UUID]bool{}
	for i, r := range receipts {
		var key, headers string
		var n int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT dedupe_key, (payload->>'n')::int, coalesce(headers->>'n', '') FROM testing.events WHERE id = $1`, r.ID).
			Scan(&key, &n, &headers))
		require.Equal(t, ms[i].DedupeKey, key)
		require.Equal(t, ms[i].Headers["n"], headers)
		duplicate := r.ID == there[0].ID || r.ID == there[1].ID
		if i != 0 && i != len(ms)-2 {
			require.Equal(t, duplicate, r.Duplicate, key)
		}
		seen[r.ID] = true
	}
	require.Equal(t, receipts[0].ID, receipts[len(ms)-2].ID)
	require.True(t, receipts[0].Duplicate || receipts[len(ms)-2].Duplicate)
	require.Len(t, seen, n)
	require.Equal(t, n, runtimetest.CountWhere(t, pool, "true"))
}

func TestEnqueueManyOfNothing(t *testing.T) {
	t.Parallel()
	receipts, err := outbox.EnqueueMany(t.Context(), nil, "", nil)
	require.NoError(t, err)
	require.Empty(t, receipts)
}

func TestEnqueueManyOverlappingDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	const workers, rounds, keys = 4, 3, 2000
	pool := pgtest.Database(t)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for round := range rounds {
				var ms []outbox.Message
				for _, n := range rand.Perm(keys)[:keys*3/4] {
					ms = append(ms, runtimetest.Message(runtimetest.TenantA, round*keys+n))
				}
				pgtest.Check(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := outbox.EnqueueMany(t.Context(), tx, "", ms)
					return err
				}))
			}
		})
	}
	wg.Wait()
	require.Equal(t, runtimetest.CountWhere(t, pool, "true"), pgtest.Value[int](t, pool, "SELECT count(DISTINCT dedupe_key) FROM testing.events"))
}

// Statements of a thousand are cut by Go's order of keys. A database that sorts words as people do would
// insert in another order within one, and two calls could wait for each other crosswise.
func TestEnqueueManyInsertsInByteOrderWhateverTheCollation(t *testing.T) {
	t.Parallel()
	pool := collated(t)
	var ms []outbox.Message
	for _, key := range []string{"b", "A", "_", "ä", "a", "B", "Z", "z", "-a", "a-"} {
		ms = append(ms, outbox.Message{Namespace: runtimetest.Namespace, Topic: "ping", DedupeKey: key, Payload: []byte("1")})
	}
	runtimetest.EnqueueAll(t, pool, ms...)
	require.Equal(t, []string{"-a", "A", "B", "Z", "_", "a", "a-", "b", "z", "ä"},
		pgtest.Value[[]string](t, pool, "SELECT array_agg(dedupe_key ORDER BY ctid) FROM outbox.events"))
}

// collated returns a database whose default collation is English, where the server can do that.
func collated(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Empty(t))
	if pgtest.Value[int](t, pool, "SELECT current_setting('server_version_num')::int") >= 150000 {
		name := pool.Config().ConnConfig.Database + "_english"
		pgtest.Execute(t, pool, "CREATE DATABASE "+name+" TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'")
		admin := pool
		t.Cleanup(func() {
			_, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)")
			require.NoError(t, err)
		})
		cfg := pool.Config()
		cfg.ConnConfig.Database = name
		english, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(english.Close)
		require.True(t, pgtest.Value[bool](t, english, "SELECT 'a' < 'B'"))
		pool = english
	}
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	return pool
}
