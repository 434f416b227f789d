package contact_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/contacts/contact"
	"github.com/outboxgen/outboxgen/examples/contacts/events"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

func TestOldestIsClaimedFirst(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	linkMany(t, pool, uuid.New(), 9)
	// The ages are independent of the order in which the rows were written.
	_, err := pool.Exec(t.Context(), `
		UPDATE outbox.queue AS q
		SET next_attempt_at = now() - make_interval(secs => 1 + e.entity_version * 4 % 9)
		FROM outbox.events AS e
		WHERE e.id = q.id`)
	require.NoError(t, err)
	rows, err := pool.Query(t.Context(), "SELECT id FROM outbox.queue ORDER BY next_attempt_at")
	require.NoError(t, err)
	byAge, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(t, err)
	require.False(t, slices.IsSortedFunc(byAge, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }))

	s := store(t, pool)
	var claimed []uuid.UUID
	for range 3 {
		batch, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 3})
		require.NoError(t, err)
		require.Len(t, batch, 3)
		claimed = append(claimed, ids(batch)...)
	}
	require.Equal(t, byAge, claimed)
}

func TestConcurrentClaimsNeverOverlap(t *testing.T) {
	t.Parallel()
	const total, workers, batch = 120, 8, 7
	pool := contactsDatabase(t)
	linkMany(t, pool, uuid.New(), total)

	var mu sync.Mutex
	holders := map[uuid.UUID]int{}
	var errs []error
	var claiming sync.WaitGroup
	for range workers {
		s := store(t, pool)
		claiming.Go(func() {
			for {
				claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: batch})
				mu.Lock()
				for _, c := range claimed {
					holders[c.ID]++
				}
				if err == nil && len(claimed) > batch {
					err = fmt.Errorf("claimed %d events instead of %d", len(claimed), batch)
				}
				errs = append(errs, err)
				mu.Unlock()
				if err != nil || len(claimed) == 0 {
					return
				}
			}
		})
	}
	claiming.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Len(t, holders, total)
	for id, n := range holders {
		require.Equal(t, 1, n, "event %s", id)
	}
}

func TestForeignClaimChangesNothing(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	linkMany(t, pool, uuid.New(), 1)
	holder, other := store(t, pool), store(t, pool)
	stale := claimOne(t, holder)
	_, err := pool.Exec(t.Context(), "UPDATE outbox.queue SET locked_until = now() - interval '1 s'")
	require.NoError(t, err)
	mine := claimOne(t, holder)
	require.Equal(t, stale.ID, mine.ID)
	before := row(t, pool, mine.ID)

	for name, foreign := range map[string]struct {
		store *queue.Store
		claim queue.Claimed
	}{
		"another worker":                     {other, mine},
		"the same worker, whose lease ended": {holder, stale},
	} {
		for verb, finalise := range map[string]func() ([]queue.Outcome, error){
			"ack":     func() ([]queue.Outcome, error) { return foreign.store.Ack(t.Context(), foreign.claim) },
			"release": func() ([]queue.Outcome, error) { return foreign.store.Release(t.Context(), foreign.claim) },
			"extend":  func() ([]queue.Outcome, error) { return foreign.store.Extend(t.Context(), time.Hour, foreign.claim) },
			"nack": func() ([]queue.Outcome, error) {
				return foreign.store.Nack(t.Context(), queue.Failure{Claimed: foreign.claim, Err: errors.New("not mine")})
			},
		} {
			outcomes, err := finalise()
			require.ErrorIs(t, err, outbox.ErrLeaseLost, "%s: %s", name, verb)
			require.Equal(t, []queue.Outcome{queue.Lost}, outcomes, "%s: %s", name, verb)
			require.Equal(t, before, row(t, pool, mine.ID), "%s: %s", name, verb)
		}
	}

	outcomes, err := holder.Ack(t.Context(), mine)
	require.NoError(t, err)
	require.Equal(t, []queue.Outcome{queue.Applied}, outcomes)
	require.NotEqual(t, before, row(t, pool, mine.ID))
}

// linkMany gives a new contact of tenant n identities, each in its own transaction.
func linkMany(t *testing.T, pool *pgxpool.Pool, tenant uuid.UUID, n int) {
	t.Helper()
	id := create(t, pool, tenant, "Ada")
	for i := range n {
		mustLink(t, pool, contact.Identity{TenantID: tenant, ContactID: id, Type: events.IdentityTypeExternalID, Value: fmt.Sprintf("crm-%d", i)})
	}
}

func store(t *testing.T, pool *pgxpool.Pool) *queue.Store {
	t.Helper()
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: events.IdentityLinkedTopic.Untyped().Spec().Namespace})
	require.NoError(t, err)
	return s
}

func claimOne(t *testing.T, s *queue.Store) queue.Claimed {
	t.Helper()
	claimed, err := s.Claim(t.Context(), queue.ClaimConfig{})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	return claimed[0]
}

func ids(claimed []queue.Claimed) []uuid.UUID {
	var all []uuid.UUID
	for _, c := range claimed {
		all = append(all, c.ID)
	}
	return all
}

// row returns an event and its state as text.
func row(t *testing.T, pool *pgxpool.Pool, id uuid.UUID) (text string) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT to_jsonb(e)::text FROM outbox.event_status e WHERE id = $1", id).Scan(&text))
	return text
}
