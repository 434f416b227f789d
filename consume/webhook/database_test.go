package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/webhook"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestDatabaseAway: without a database, an event is not charged, and the log says so once. When the database is back, the
// same event is applied.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	var proxy *pgtest.Proxy
	s := &steps{}
	r := newReceiver(t, s, func(c *webhook.Config) {
		proxy = pgtest.NewProxy(t, c.DB.(*pgxpool.Pool))
		c.DB, c.Timeout = proxy.Pool(t), 5*time.Second
	})
	pgtest.Eventually(t, func() bool { return r.send(event(t, binary, uuid.New(), step{"k", 0})).status == http.StatusNoContent })
	q := event(t, binary, uuid.New(), step{"k", 1})
	s.do = func(context.Context, pgx.Tx, consume.Delivery[step]) error { // in the middle of a transaction
		proxy.Swallow()
		proxy.Cut()
		return nil
	}
	for range 2 {
		got := r.send(q)
		require.Equal(t, reply{http.StatusServiceUnavailable, "unavailable: send it again later", got.header}, got)
		require.Equal(t, "2", got.header.Get("Retry-After"))
	}
	require.Equal(t, 1, strings.Count(r.logged(), `level=WARN msg="database does not answer: events are refused with 503, and the sender sends them again" status=503`), r.logged())
	require.NotContains(t, r.logged(), "answers again")
	proxy.Pass()
	s.do = nil
	pgtest.Eventually(t, func() bool { return r.send(q).status == http.StatusNoContent }, r.logged)
	require.Contains(t, r.logged(), `level=INFO msg="database answers again"`)
	require.Equal(t, 2, r.count("steps"))
}

// TestNotMigrated: missing tables are refused with 503, and the log says that they are missing and what to run, not that the
// database is silent.
func TestNotMigrated(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, nil)
	_, err := r.pool.Exec(t.Context(), "ALTER SCHEMA outbox RENAME TO elsewhere")
	require.NoError(t, err)
	q := event(t, binary, uuid.New(), step{"k", 1})
	for range 2 {
		require.Equal(t, http.StatusServiceUnavailable, r.send(q).status)
	}
	require.Equal(t, 1, strings.Count(r.logged(), `level=ERROR msg="tables of the inbox are missing or old: events are refused with 503, and the sender sends them again" status=503`), r.logged())
	require.Contains(t, r.logged(), "run `outboxgen migrate up --schema outbox`")
	require.NotContains(t, r.logged(), "does not answer")
	_, err = r.pool.Exec(t.Context(), "ALTER SCHEMA elsewhere RENAME TO outbox")
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, r.send(q).status)
	require.Contains(t, r.logged(), `level=INFO msg="tables of the inbox are there again"`)
}

// TestShutdownOfTheDatabase: an error that says that the server shuts down charges nothing while the database does not answer,
// and is the event's fault if it does.
func TestShutdownOfTheDatabase(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"57P01", "08006", "53300"} {
		for _, want := range []int{http.StatusServiceUnavailable, http.StatusInternalServerError} {
			t.Run(fmt.Sprint(code, " ", want), func(t *testing.T) {
				t.Parallel()
				var proxy *pgtest.Proxy
				s := &steps{}
				r := newReceiver(t, s, func(c *webhook.Config) {
					proxy = pgtest.NewProxy(t, c.DB.(*pgxpool.Pool))
					c.DB, c.Timeout = proxy.Pool(t), 4*time.Second
				})
				pgtest.Eventually(t, func() bool {
					return r.send(event(t, binary, uuid.New(), step{"k", 0})).status == http.StatusNoContent
				})
				s.do = func(context.Context, pgx.Tx, consume.Delivery[step]) error {
					if want == http.StatusServiceUnavailable {
						proxy.Swallow()
						proxy.Cut()
					}
					return &pgconn.PgError{Code: code}
				}
				require.Equal(t, want, r.send(event(t, binary, uuid.New(), step{"k", 1})).status)
				proxy.Pass()
				proxy.Cut()
			})
		}
	}
}

// TestReadCommitted: the default isolation of the database does not matter.
func TestReadCommitted(t *testing.T) {
	t.Parallel()
	var is string
	s := &steps{do: func(ctx context.Context, tx pgx.Tx, _ consume.Delivery[step]) error {
		return tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&is)
	}}
	r := newReceiver(t, s, nil)
	pgtest.Execute(t, r.pool, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$")
	r.pool.Reset()
	require.Equal(t, http.StatusNoContent, r.send(event(t, binary, uuid.New(), step{"k", 1})).status)
	require.Equal(t, "read committed", is)
}

// unreachable is a database that begins no transaction.
type unreachable struct{}

func (unreachable) Begin(context.Context) (pgx.Tx, error) { return nil, errors.New("S3CRET refuses") }

// TestNoTransaction: whatever the reason is that no transaction begins, nothing is charged.
func TestNoTransaction(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, func(c *webhook.Config) { c.DB = unreachable{} })
	got := r.send(event(t, binary, uuid.New(), step{"k", 1}))
	require.Equal(t, http.StatusServiceUnavailable, got.status)
	require.NotContains(t, got.body, "S3CRET")
	require.Contains(t, r.logged(), "database does not answer")
}

// TestUnusableDatabase: a database that can take no event charges none.
func TestUnusableDatabase(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, &steps{}, nil)
	q := event(t, binary, uuid.New(), step{"k", 1})
	for undo, do := range map[string]string{
		"ALTER TABLE outbox.gone RENAME TO processed_events":    "ALTER TABLE outbox.processed_events RENAME TO gone",
		"ALTER DATABASE %s RESET default_transaction_read_only": "ALTER DATABASE %s SET default_transaction_read_only = on",
	} {
		statement := func(sql string) {
			if strings.Contains(sql, "%s") {
				sql = fmt.Sprintf(sql, pgx.Identifier{r.pool.Config().ConnConfig.Database}.Sanitize())
			}
			_, err := r.pool.Exec(t.Context(), "BEGIN READ WRITE; "+sql+"; COMMIT")
			require.NoError(t, err)
			r.pool.Reset()
		}
		statement(do)
		require.Equal(t, http.StatusServiceUnavailable, r.send(q).status, do)
		want := "database does not answer"
		if strings.Contains(do, "processed_events") {
			want = "tables of the inbox are missing or old"
		}
		require.Contains(t, r.logged(), want)
		statement(undo)
	}
	require.Equal(t, http.StatusNoContent, r.send(q).status)
}

// TestSenderLeaves: the transaction of a sender that has left is rolled back, and the log does not blame the database.
func TestSenderLeaves(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	s := &steps{do: func(ctx context.Context, _ pgx.Tx, _ consume.Delivery[step]) error {
		leave()
		<-ctx.Done()
		return ctx.Err()
	}}
	r := newReceiver(t, s, nil)
	q := event(t, binary, uuid.New(), step{"k", 1})
	_, err := r.try(ctx, q)
	require.ErrorIs(t, err, context.Canceled)
	pgtest.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.answered) == 1
	})
	require.Empty(t, r.logged())
	s.do = nil
	require.Equal(t, http.StatusNoContent, r.send(q).status)
	require.Equal(t, 1, r.count("steps"))
}
