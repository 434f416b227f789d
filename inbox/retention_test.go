package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// age makes the record of event older.
func age(t testing.TB, pool *pgxpool.Pool, event uuid.UUID, by time.Duration) {
	t.Helper()
	execute(t, pool, "UPDATE outbox.processed_events SET processed_at = processed_at - $2::interval WHERE event_id = $1", event, by)
}

// record writes n records of a group, 1 ms apart. The oldest has the given age.
func record(t testing.TB, pool *pgxpool.Pool, name string, n int, oldest time.Duration) {
	t.Helper()
	execute(t, pool, `INSERT INTO outbox.processed_events (consumer_group, event_id, processed_at)
		SELECT $1, gen_random_uuid(), statement_timestamp() - $3::interval + i * interval '1 ms' FROM generate_series(0, $2::int - 1) AS i`, name, n, oldest)
}

func prune(t testing.TB, pool *pgxpool.Pool, in *inbox.Inbox) int {
	t.Helper()
	n, err := in.Prune(t.Context(), pool)
	require.NoError(t, err)
	return n
}

func TestPruneKeepsTheRetention(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{Retention: time.Hour, ReplayWindow: time.Hour})
	old, young := uuid.New(), uuid.New()
	for _, event := range []uuid.UUID{old, young} {
		_, err := deliver(t.Context(), pool, in, event)
		require.NoError(t, err)
	}
	age(t, pool, old, time.Hour+time.Second)
	age(t, pool, young, time.Hour-time.Minute)
	record(t, pool, "other", 10, 1000*time.Hour) // of another group
	require.Equal(t, 1, prune(t, pool, in))
	require.Zero(t, prune(t, pool, in))
	require.Equal(t, 11, recorded(t, pool))

	handled, err := deliver(t.Context(), pool, in, young)
	require.NoError(t, err)
	require.False(t, handled)
	// This is what would happen with Retention < ReplayWindow.
	handled, err = deliver(t.Context(), pool, in, old)
	require.NoError(t, err)
	require.True(t, handled)
	require.Equal(t, 2, effects(t, pool, old))
}

// Versions are not pruned, so a replay from before the retention is stale and changes nothing.
func TestReplayAfterPruneIsStale(t *testing.T) {
	t.Parallel()
	for policy, want := range map[inbox.Stale]inbox.Outcome{inbox.Skip: inbox.Skipped, inbox.Quarantine: inbox.Quarantined, inbox.Error: ""} {
		pool := cardsDatabase(t)
		in := newInbox(t, inbox.Config{Stale: policy, Retention: time.Hour, ReplayWindow: time.Hour})
		var log []inbox.Event
		for n := range 3 {
			for v := range int64(4) {
				log = append(log, user(n, v+1))
			}
		}
		for _, e := range log {
			outcome, err := apply(t.Context(), pool, in, e)
			require.NoError(t, err)
			require.Equal(t, inbox.Applied, outcome)
			age(t, pool, e.ID, 2*time.Hour)
		}
		require.Equal(t, len(log), prune(t, pool, in))
		require.Zero(t, recorded(t, pool))
		for _, e := range log {
			outcome, err := apply(t.Context(), pool, in, e)
			if policy == inbox.Error {
				require.ErrorIs(t, err, inbox.ErrStale)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, want, outcome)
			require.Equal(t, 1, effects(t, pool, e.ID))
		}
		for n := range 3 {
			require.Equal(t, fmt.Sprintf(`{"user":%d,"version":4}`, n), card(t, pool, n))
		}
	}
}

func TestPruneOfQuarantinedEvents(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	in := newInbox(t, inbox.Config{Stale: inbox.Quarantine, QuarantineRetention: time.Minute})
	for v := int64(5); v > 0; v-- {
		_, err := apply(t.Context(), pool, in, user(1, v))
		require.NoError(t, err)
	}
	require.Zero(t, prune(t, pool, in))
	execute(t, pool, "UPDATE outbox.inbox_quarantined SET quarantined_at = quarantined_at - interval '1 minute' WHERE version <= 3")
	execute(t, pool, `INSERT INTO outbox.inbox_quarantined (consumer_group, event_id, source, tenant_id, entity_type, entity_id, version, last_version, last_event_id, quarantined_at)
		VALUES ('other', gen_random_uuid(), '', gen_random_uuid(), 'user', '1', 9, 9, gen_random_uuid(), '2020-01-01')`)
	holder := begin(t, pool, "")
	require.Equal(t, 2, value[int](t, holder, "SELECT version FROM outbox.inbox_quarantined WHERE version = 2 FOR UPDATE"))
	require.Equal(t, 2, prune(t, pool, in), "a locked row is left for the next prune")
	require.NoError(t, holder.Rollback(t.Context()))
	require.Equal(t, 1, prune(t, pool, in))
	require.Equal(t, []int{4, 9}, value[[]int](t, pool, "SELECT array_agg(version ORDER BY version) FROM outbox.inbox_quarantined"))
}

// TestPruneOfMessages: dead ones are deleted when they are old, parked ones are not.
func TestPruneOfMessages(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{QuarantineRetention: time.Hour})
	for id, failed := range map[string]time.Duration{"dead old": 61 * time.Minute, "dead young": time.Minute, "parked old": 61 * time.Minute} {
		status, _, _ := strings.Cut(id, " ")
		execute(t, pool, `INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, type, namespace, topic, version, envelope, body,
			status, attempts, next_attempt_at, error, failed_at)
			VALUES ($1, $2, '', '', 'a', 'b', 1, '{}', '', $3, 1, 'infinity', '', statement_timestamp() - $4::interval)`, group, id, status, failed)
	}
	require.Equal(t, 1, prune(t, pool, in))
	require.Equal(t, []string{"dead young", "parked old"}, value[[]string](t, pool, "SELECT array_agg(message_id ORDER BY message_id) FROM outbox.inbox_messages"))
}

func TestForeverIsNeverPruned(t *testing.T) {
	t.Parallel()
	pool := database(t)
	record(t, pool, group, 1, 200*365*24*time.Hour)
	execute(t, pool, `INSERT INTO outbox.inbox_quarantined (consumer_group, event_id, source, tenant_id, entity_type, entity_id, version, last_version, last_event_id, quarantined_at)
		VALUES ($1, gen_random_uuid(), '', gen_random_uuid(), 'a', 'b', 1, 1, gen_random_uuid(), '1800-01-01')`, group)
	for _, cfg := range []inbox.Config{
		{Retention: inbox.Forever, QuarantineRetention: inbox.Forever},
		{ReplayWindow: inbox.Forever, QuarantineRetention: inbox.Forever},
		{ReplayWindow: inbox.Forever - 1, QuarantineRetention: inbox.Forever - 1},
	} {
		require.Zero(t, prune(t, pool, newInbox(t, cfg)))
	}
}

// Several processes prune more than one chunk concurrently while consumers run. Each old record is deleted once, newer
// records stay, and nothing fails.
func TestConcurrentPrunesBesideConsumers(t *testing.T) {
	t.Parallel()
	const old, pruners, consumers, each = 10_500, 3, 4, 50
	pool := database(t)
	in := newInbox(t, inbox.Config{Retention: time.Hour, ReplayWindow: time.Hour})
	record(t, pool, group, old, 2*time.Hour)
	record(t, pool, group, 1000, 10*time.Minute)
	var wg sync.WaitGroup
	var deleted atomic.Int64
	strict := pgtest.Strict(t, pool)
	for range pruners {
		wg.Go(func() {
			n, err := in.Prune(t.Context(), strict)
			check(t, err)
			deleted.Add(int64(n))
		})
	}
	for range consumers {
		wg.Go(func() {
			for range each {
				_, err := deliver(t.Context(), pool, in, uuid.New())
				check(t, err)
			}
		})
	}
	wg.Wait()
	prune(t, pool, in) // deletes what a prune skipped because another one had locked it
	require.LessOrEqual(t, deleted.Load(), int64(old))
	require.Equal(t, 1000+consumers*each, recorded(t, pool))
	require.Zero(t, value[int](t, pool, "SELECT count(*) FROM outbox.processed_events WHERE processed_at < statement_timestamp() - interval '1 hour'"))
}

// A prune does not wait for consumers with open transactions or for locked rows.
func TestPruneWaitsForNobody(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{Retention: time.Hour, ReplayWindow: time.Hour})
	record(t, pool, group, 2500, 2*time.Hour)
	consumer := begin(t, pool, "")
	event := uuid.New()
	_, err := in.Once(t.Context(), consumer, event, effect(consumer, event))
	require.NoError(t, err)
	holder := begin(t, pool, "")
	held := value[int](t, holder, `SELECT count(*) FROM (SELECT FROM outbox.processed_events
		WHERE processed_at < statement_timestamp() - interval '1 hour' ORDER BY processed_at LIMIT 7 FOR UPDATE) AS h`)
	require.Equal(t, 7, held)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := in.Prune(ctx, pool)
	require.NoError(t, err)
	require.Equal(t, 2500-held, n)
	require.NoError(t, holder.Rollback(t.Context()))
	require.NoError(t, consumer.Commit(t.Context()))
	require.Equal(t, held, prune(t, pool, in))
	require.Equal(t, 1, effects(t, pool, event))
	require.Equal(t, 1, recorded(t, pool))
}

// No consumer waits for an open prune, except for a delivery of the very event whose record it deletes.
func TestConsumersDoNotWaitForPrune(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{Retention: time.Hour, ReplayWindow: time.Hour})
	old := uuid.New()
	_, err := deliver(t.Context(), pool, in, old)
	require.NoError(t, err)
	pruner := begin(t, pool, "")
	_, err = pruner.Exec(t.Context(), "DELETE FROM outbox.processed_events")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	handled, err := deliver(ctx, pool, in, uuid.New())
	require.NoError(t, err)
	require.True(t, handled)
	again := begin(t, pool, "")
	answers := second(t, way{call: in.Once}, again, old)
	blocked(t, pool, again, pruner)
	require.NoError(t, pruner.Commit(t.Context()))
	require.Equal(t, answer{handled: true}, <-answers)
}

func TestPruneEndsWithItsContext(t *testing.T) {
	t.Parallel()
	pool := database(t)
	record(t, pool, group, 100, 2*time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, err := newInbox(t, inbox.Config{Retention: time.Hour, ReplayWindow: time.Hour}).Prune(ctx, pool)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "prune handled events: ")
	require.Zero(t, n)
	require.Equal(t, 100, recorded(t, pool))
}

// To rebuild a projection, one transaction empties it and resets the group; then the log is replayed from the start.
func TestResetLetsTheLogBeReplayed(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	in := newInbox(t, inbox.Config{Stale: inbox.Quarantine})
	other := newInbox(t, inbox.Config{Group: "other"})
	log := []inbox.Event{user(1, 1), user(2, 1), user(1, 3), user(1, 2), user(2, 2)}
	replay := func() {
		t.Helper()
		for i, e := range log {
			want := inbox.Applied
			if i == 3 {
				want = inbox.Quarantined
			}
			outcome, err := apply(t.Context(), pool, in, e)
			require.NoError(t, err)
			require.Equal(t, want, outcome)
		}
	}
	_, err := apply(t.Context(), pool, other, log[0])
	require.NoError(t, err)
	replay()
	for _, commits := range []bool{false, true} {
		tx := begin(t, pool, "")
		require.NoError(t, in.Reset(t.Context(), tx))
		_, err := tx.Exec(t.Context(), "TRUNCATE cards")
		require.NoError(t, err)
		if commits {
			require.NoError(t, tx.Commit(t.Context()))
		} else {
			require.NoError(t, tx.Rollback(t.Context()))
			require.Equal(t, len(log)+1, recorded(t, pool))
		}
	}
	for table, left := range map[string][]string{"processed_events": {"other"}, "entity_versions": {"other"}, "inbox_quarantined": {}} {
		got := value[[]string](t, pool, "SELECT coalesce(array_agg(consumer_group), '{}') FROM "+pgx.Identifier{"outbox", table}.Sanitize())
		require.Equal(t, left, got, table)
	}
	replay()
	require.Equal(t, `{"user":1,"version":3}`, card(t, pool, 1))
}
