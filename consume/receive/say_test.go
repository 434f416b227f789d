package receive_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// TestLogOfAParkedKey: one line says that a key is parked, with the next attempt and how many are left, and one that it
// continues. The same is said of a message that fails after it has waited behind another one.
func TestLogOfAParkedKey(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e, log := &effects{}, runtimetest.NewLogSpy()
	failing := func(n int) {
		e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
			if p.N == n {
				return errors.New("not yet")
			}
			return nil
		})
	}
	failing(2)
	cfg := quick(receive.Config{Attempts: 1, MaxAttempts: 1000})
	cfg.Logger = log.Logger()
	r := receiver(t, pool, e, cfg)
	_, err := r.Receive(t.Context(), messages(9, "a"))
	require.NoError(t, err)
	parked := log.Await(t, `msg="message is parked"`)
	require.Regexp(t, `place=test:a/2 .* attempt=1 next_attempt=\d{4}-\S+Z attempts_left=999 error=.*not yet`, parked)
	require.Equal(t, int32(1000), pgtest.Value[int32](t, pool, "SELECT max_attempts FROM outbox.inbox_messages WHERE attempts = 1"))
	start(t, r)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts > 3")
	failing(5)
	require.Contains(t, log.Await(t, "and its key continues"), "place=test:a/2")
	require.Regexp(t, `place=test:a/5 .* attempt=1 .*attempts_left=999`, log.Await(t, `msg="message is parked"`))
	e.set(nil)
	require.Contains(t, log.Await(t, "and its key continues"), "place=test:a/5")
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
	require.Equal(t, 2, strings.Count(log.String(), "message is parked"), log.String())
	require.Equal(t, 2, strings.Count(log.String(), "key continues"), log.String())
}

// TestStaleReplayIsLogged: a replayed dead letter has no effect if a later version of its entity was applied meanwhile. A line
// of the log says so.
func TestStaleReplayIsLogged(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e, log := &effects{}, runtimetest.NewLogSpy()
	e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
		if p.N == 3 {
			return errors.New("no")
		}
		return nil
	})
	cfg := quick(receive.Config{Attempts: 1, MaxAttempts: 1})
	cfg.Logger = log.Logger()
	r := receiver(t, pool, e, cfg)
	ms := messages(4, "a")
	for i := range ms {
		ms[i].Attributes["entitytype"], ms[i].Attributes["entityid"] = "user", "7"
		ms[i].Attributes["entityversion"] = string(rune('1' + i))
	}
	_, err := r.Receive(t.Context(), ms)
	require.NoError(t, err)
	require.Equal(t, 1, kept(t, pool, "dead"))
	e.set(nil)
	ops, err := admin.New(pool, "")
	require.NoError(t, err)
	_, err = ops.Replay(t.Context(), admin.Filter{Consumer: "counts"}, admin.Act{Who: "me"})
	require.NoError(t, err)
	start(t, r)
	line := log.Await(t, "parked message had no effect: it is stale")
	require.Contains(t, line, "place=test:a/3")
	require.Contains(t, line, "version=3 applied_version=4")
	require.NotContains(t, line, "lines_left_out")
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
	require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
}

// TestReady: a missing schema is an error that names the database and what to run. While messages wait for the tables, the
// log does not say that the database is silent.
func TestReady(t *testing.T) {
	t.Parallel()
	empty := pgtest.Pool(t, pgtest.Empty(t))
	log := runtimetest.NewLogSpy()
	r := receiver(t, empty, &effects{}, receive.Config{Logger: log.Logger()})
	err := r.Ready(t.Context())
	require.ErrorIs(t, err, inbox.ErrNotMigrated)
	require.ErrorContains(t, err, "database "+empty.Config().ConnConfig.Database+": ")
	require.ErrorContains(t, err, "run `outboxgen migrate up --schema outbox`")
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	require.ErrorIs(t, r.Run(ctx), inbox.ErrNotMigrated)

	ended := make(chan error, 1)
	go func() {
		_, err := r.Receive(ctx, []receive.Message{message(uuid.NewString(), 1)})
		ended <- err
	}()
	require.Contains(t, log.Await(t, "messages wait"), "level=ERROR")
	cancel()
	require.ErrorIs(t, pgtest.Receive(t, ended, "the end of Receive"), context.Canceled)
	require.NotContains(t, log.String(), "does not answer")
	require.NoError(t, receiver(t, database(t), &effects{}, receive.Config{}).Ready(t.Context()))
}
