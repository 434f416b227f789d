package sender_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/mailer/database"
	"github.com/outboxgen/outboxgen/examples/mailer/events"
	"github.com/outboxgen/outboxgen/examples/mailer/mail"
	"github.com/outboxgen/outboxgen/examples/mailer/provider"
	"github.com/outboxgen/outboxgen/examples/mailer/sender"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
)

func mailerDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	return pool
}

func dispatcher(t *testing.T, pool *pgxpool.Pool, p *provider.Provider) *queue.Dispatcher {
	t.Helper()
	d, err := events.NewMailsDispatcher(pool, &events.MailsHandler{Sender: sender.New(pool, p)}, queue.Config{})
	require.NoError(t, err)
	return d
}

// runTwo runs two dispatchers until stop is called.
func runTwo(t *testing.T, pool *pgxpool.Pool, p *provider.Provider) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 2 {
		d := dispatcher(t, pool, p)
		running.Go(func() {
			if err := d.Run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// writeMails writes n mails of a mailbox.
func writeMails(t *testing.T, pool *pgxpool.Pool, tenant, mailbox uuid.UUID, n int) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		for range n {
			if _, err := mail.Write(t.Context(), tx, mail.Mail{TenantID: tenant, MailboxID: mailbox, To: "ada@example.com"}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// writeDigest writes a digest for the addresses.
func writeDigest(t *testing.T, pool *pgxpool.Pool, text string, addresses ...string) {
	t.Helper()
	d := mail.Digest{TenantID: uuid.New(), Text: text, Readers: make(map[uuid.UUID]string)}
	for _, to := range addresses {
		d.Readers[uuid.New()] = to
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := mail.WriteDigest(t.Context(), tx, d)
		return err
	}))
}

func count(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

const sentSQL = "SELECT count(*) FROM mailer.mails WHERE mailbox_id = $1 AND sent_at IS NOT NULL"

// eventually waits until so many mails of a mailbox are sent, or p has refused one.
func eventually(t *testing.T, pool *pgxpool.Pool, p *provider.Provider, mailbox uuid.UUID, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		return count(t, pool, sentSQL, mailbox) == n || p.Books().Refused > 0
	}, time.Minute, 10*time.Millisecond)
}
