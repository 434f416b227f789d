package inbox_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
)

// user returns a new event about a user.
func user(n int, version int64) inbox.Event {
	return inbox.Event{
		ID: uuid.New(), EntityType: "user", EntityID: fmt.Sprint(n), Version: version,
		Payload: fmt.Appendf(nil, `{"user":%d,"version":%d}`, n, version),
	}
}

// apply applies e as a consumer does. The effect replaces the state of the user's card.
func apply(ctx context.Context, pool *pgxpool.Pool, in *inbox.Inbox, e inbox.Event) (outcome inbox.Outcome, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		outcome, err = in.Apply(ctx, tx, e, setCard(tx, e))
		return err
	})
	return outcome, err
}

func setCard(tx pgx.Tx, e inbox.Event) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := tx.Exec(ctx, `INSERT INTO cards VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET state = excluded.state`, e.EntityID, string(e.Payload))
		if err != nil {
			return err
		}
		return effect(tx, e.ID)(ctx)
	}
}

func cardsDatabase(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := database(t)
	execute(t, pool, "CREATE TABLE cards (id text PRIMARY KEY, state text NOT NULL)")
	return pool
}

func card(t testing.TB, pool *pgxpool.Pool, n int) string {
	t.Helper()
	return value[string](t, pool, "SELECT coalesce((SELECT state FROM cards WHERE id = $1), '')", fmt.Sprint(n))
}

func TestStaleVersionsChangeNothing(t *testing.T) {
	t.Parallel()
	for policy, want := range map[inbox.Stale]inbox.Outcome{"": inbox.Skipped, inbox.Skip: inbox.Skipped, inbox.Quarantine: inbox.Quarantined, inbox.Error: ""} {
		pool := cardsDatabase(t)
		in := newInbox(t, inbox.Config{Stale: policy})
		deliverAs := func(e inbox.Event, want inbox.Outcome) {
			t.Helper()
			outcome, err := apply(t.Context(), pool, in, e)
			if want == "" {
				require.ErrorIs(t, err, inbox.ErrStale)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, want, outcome)
		}
		second, fifth := user(1, 2), user(1, 5)
		deliverAs(second, inbox.Applied) // the first version may be any
		deliverAs(fifth, inbox.Applied)  // a gap
		for _, version := range []int64{1, 3, 4, 5} {
			late := user(1, version)
			deliverAs(late, want)
			require.Zero(t, effects(t, pool, late.ID))
			again := inbox.Duplicate
			if policy == inbox.Error {
				again = "" // nothing was recorded: it stays an error
			}
			deliverAs(late, again)
		}
		deliverAs(second, inbox.Duplicate) // with any policy: it was applied
		deliverAs(fifth, inbox.Duplicate)
		require.Equal(t, `{"user":1,"version":5}`, card(t, pool, 1))
		sixth := user(1, 6)
		deliverAs(sixth, inbox.Applied)
		require.Equal(t, `{"user":1,"version":6}`, card(t, pool, 1))
		deliverAs(user(2, 1), inbox.Applied) // another entity
		other := sixth
		other.ID, other.EntityType, other.Version = uuid.New(), "account", 1
		deliverAs(other, inbox.Applied) // another type
		require.Equal(t, sixth.ID, value[uuid.UUID](t, pool, "SELECT event_id FROM outbox.entity_versions WHERE entity_type = 'user' AND entity_id = '1' AND version = 6"))

		quarantined := 0
		if policy == inbox.Quarantine {
			quarantined = 4
		}
		require.Equal(t, quarantined, value[int](t, pool, "SELECT count(*) FROM outbox.inbox_quarantined"))
	}
}

// A group may have handled an event with Once before it used versions. Apply does not move the version for such an event.
func TestApplyAfterOnceIsADuplicate(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	in := newInbox(t, inbox.Config{})
	e := user(1, 7)
	_, err := deliver(t.Context(), pool, in, e.ID)
	require.NoError(t, err)
	outcome, err := apply(t.Context(), pool, in, e)
	require.NoError(t, err)
	require.Equal(t, inbox.Duplicate, outcome)
	require.Zero(t, value[int](t, pool, "SELECT count(*) FROM outbox.entity_versions"))
}

func TestEachGroupHasItsOwnVersions(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	_, err := apply(t.Context(), pool, newInbox(t, inbox.Config{}), user(1, 9))
	require.NoError(t, err)
	outcome, err := apply(t.Context(), pool, newInbox(t, inbox.Config{Group: "audit"}), user(1, 3))
	require.NoError(t, err)
	require.Equal(t, inbox.Applied, outcome)
}

// The same type and id at another source or for another tenant mean another entity, with its own versions and quarantined
// events.
func TestVersionsBelongToASourceAndATenant(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	in := newInbox(t, inbox.Config{Stale: inbox.Quarantine})
	tenants := []uuid.NullUUID{{}, {UUID: uuid.New(), Valid: true}, {UUID: uuid.New(), Valid: true}}
	for n, source := range []string{"", "/users", "/crm"} {
		for m, tenant := range tenants {
			deliver := func(version int64, want inbox.Outcome) uuid.UUID {
				e := user(17, version)
				e.Source, e.TenantID = source, tenant
				outcome, err := apply(t.Context(), pool, in, e)
				require.NoError(t, err)
				require.Equal(t, want, outcome, "version %d of %q, tenant %d", version, source, m)
				return e.ID
			}
			// Each entity starts below the last version of those before it.
			last := int64(30 - 3*n - m)
			deliver(last-1, inbox.Applied)
			newest := deliver(last, inbox.Applied)
			late := deliver(last-1, inbox.Quarantined)
			require.Equal(t, fmt.Sprintf("%s %s %d %s", source, tenant.UUID, last, newest), value[string](t, pool,
				"SELECT concat_ws(' ', source, tenant_id, last_version, last_event_id) FROM outbox.inbox_quarantined WHERE event_id = $1", late))
		}
	}
	require.Equal(t, 9, value[int](t, pool, "SELECT count(*) FROM outbox.entity_versions"))
}

func TestErrStaleTellsWhatIsThere(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	in := newInbox(t, inbox.Config{Stale: inbox.Error})
	there, late := user(7, 5), user(7, 4)
	_, err := apply(t.Context(), pool, in, there)
	require.NoError(t, err)
	_, err = apply(t.Context(), pool, in, late)
	require.EqualError(t, err, fmt.Sprintf(`apply event %s: version 4 of user "7": stale event: version 5 was set by event %s`, late.ID, there.ID))
	require.Equal(t, 1, recorded(t, pool), "the stale event was rolled back")
}

func TestQuarantinedEventsKeepWhatCame(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	in := newInbox(t, inbox.Config{Stale: inbox.Quarantine})
	there := user(7, 5)
	_, err := apply(t.Context(), pool, in, there)
	require.NoError(t, err)
	odd, bare := user(7, 4), user(7, 3)
	odd.Payload = []byte("\x00 not JSON \xff") // jsonb or text would abort the consumer's transaction
	bare.Payload = nil
	for _, e := range []inbox.Event{odd, bare} {
		outcome, err := apply(t.Context(), pool, in, e)
		require.NoError(t, err)
		require.Equal(t, inbox.Quarantined, outcome)
		rows, err := pool.Query(t.Context(), `SELECT consumer_group, entity_type, entity_id, version, last_version, last_event_id, payload
			FROM outbox.inbox_quarantined WHERE event_id = $1 AND quarantined_at > statement_timestamp() - interval '1 hour'`, e.ID)
		require.NoError(t, err)
		type row struct {
			Group, Type, ID string
			Version, Last   int64
			LastID          uuid.UUID
			Payload         []byte
		}
		got, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[row])
		require.NoError(t, err)
		require.Equal(t, row{group, "user", "7", e.Version, 5, there.ID, e.Payload}, got)
	}
	// The event comes again after its record is gone. It is quarantined already, which is not an error.
	execute(t, pool, "DELETE FROM outbox.processed_events")
	outcome, err := apply(t.Context(), pool, in, odd)
	require.NoError(t, err)
	require.Equal(t, inbox.Quarantined, outcome)
	require.Equal(t, 2, value[int](t, pool, "SELECT count(*) FROM outbox.inbox_quarantined"))
}

func TestApplyRefusesBeforeSendingAndLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	pool := database(t)
	in := newInbox(t, inbox.Config{})
	tx := begin(t, pool, "")
	long := strings.Repeat("x", 513)
	for want, change := range map[string]func(*inbox.Event){
		"id is the zero UUID":                              func(e *inbox.Event) { e.ID = uuid.Nil },
		"entity type is empty":                             func(e *inbox.Event) { e.EntityType = "" },
		"entity id is empty":                               func(e *inbox.Event) { e.EntityID = "" },
		"source has 513 bytes, at most 512 allowed":        func(e *inbox.Event) { e.Source = strings.Repeat("x", 513) },
		"source has a NUL byte or is not valid UTF-8":      func(e *inbox.Event) { e.Source = "\x00" },
		"entity type has 513 bytes, at most 512 allowed":   func(e *inbox.Event) { e.EntityType = long },
		"entity id has 513 bytes, at most 512 allowed":     func(e *inbox.Event) { e.EntityID = long },
		"entity id has a NUL byte or is not valid UTF-8":   func(e *inbox.Event) { e.EntityID = "a\x00" },
		"entity type has a NUL byte or is not valid UTF-8": func(e *inbox.Event) { e.EntityType = "a\xff" },
		"entity version 0 is below 1":                      func(e *inbox.Event) { e.Version = 0 },
		"entity version -3 is below 1":                     func(e *inbox.Event) { e.Version = -3 },
		"entity version -9223372036854775808 is below 1":   func(e *inbox.Event) { e.Version = -1 << 63 },
	} {
		e := user(1, 1)
		change(&e)
		_, err := in.Apply(t.Context(), tx, e, never(t))
		require.ErrorIs(t, err, inbox.ErrInvalidEvent)
		require.ErrorContains(t, err, "apply event "+e.ID.String()+": "+want)
	}
	longest := user(1, 1<<63-1)
	longest.EntityType, longest.EntityID = strings.Repeat("ä", 256), strings.Repeat("ö", 256)
	outcome, err := in.Apply(t.Context(), tx, longest, nothing)
	require.NoError(t, err)
	require.Equal(t, inbox.Applied, outcome)
	require.NoError(t, tx.Commit(t.Context()))
}

func TestRollbackForgetsTheVersion(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	in := newInbox(t, inbox.Config{})
	_, err := apply(t.Context(), pool, in, user(1, 1))
	require.NoError(t, err)
	third := user(1, 3)
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		outcome, err := in.Apply(t.Context(), tx, third, func(ctx context.Context) error {
			require.NoError(t, setCard(tx, third)(ctx))
			return errEffect
		})
		require.Empty(t, outcome)
		return err
	})
	require.Equal(t, errEffect, err)
	for _, e := range []inbox.Event{user(1, 2), third} {
		outcome, err := apply(t.Context(), pool, in, e)
		require.NoError(t, err)
		require.Equal(t, inbox.Applied, outcome)
	}
	require.Equal(t, `{"user":1,"version":3}`, card(t, pool, 1))
}

// Of two events of one entity the second waits for the first and is compared with what the first has committed. That
// holds in either order of their versions, for a new and for an existing entity.
func TestEventsOfOneEntityWaitForEachOther(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	in := newInbox(t, inbox.Config{})
	n := 0
	for _, there := range []bool{false, true} {
		for _, commits := range []bool{false, true} {
			for _, versions := range [][2]int64{{2, 3}, {3, 2}} {
				n++
				if there {
					_, err := apply(t.Context(), pool, in, user(n, 1))
					require.NoError(t, err)
				}
				first, other := begin(t, pool, ""), begin(t, pool, "")
				e := user(n, versions[0])
				_, err := in.Apply(t.Context(), first, e, setCard(first, e))
				require.NoError(t, err)
				outcomes := make(chan inbox.Outcome, 1)
				go func() {
					e := user(n, versions[1])
					outcome, err := in.Apply(t.Context(), other, e, setCard(other, e))
					check(t, err)
					outcomes <- outcome
				}()
				blocked(t, pool, other, first)
				want, state := inbox.Applied, versions[1]
				if commits {
					require.NoError(t, first.Commit(t.Context()))
					if versions[0] > versions[1] {
						want, state = inbox.Skipped, versions[0]
					}
				} else {
					require.NoError(t, first.Rollback(t.Context()))
				}
				require.Equal(t, want, <-outcomes)
				require.NoError(t, other.Commit(t.Context()))
				require.Equal(t, fmt.Sprintf(`{"user":%d,"version":%d}`, n, state), card(t, pool, n))
			}
		}
	}
}

// At the stricter isolation levels, a version that another transaction has moved since the snapshot is a serialization
// failure, never an outcome from outdated data.
func TestMovedVersionUnderEachIsolationLevel(t *testing.T) {
	t.Parallel()
	pool := cardsDatabase(t)
	for n, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for policy, want := range map[inbox.Stale]inbox.Outcome{inbox.Skip: inbox.Skipped, inbox.Quarantine: inbox.Quarantined} {
			in := newInbox(t, inbox.Config{Group: string(policy), Stale: policy})
			for _, there := range []bool{false, true} {
				id := 2 * n
				if there {
					id++
					_, err := apply(t.Context(), pool, in, user(id, 1))
					require.NoError(t, err)
				}
				tx := begin(t, pool, level)
				usable(t, tx) // takes the snapshot
				_, err := apply(t.Context(), pool, in, user(id, 5))
				require.NoError(t, err)
				outcome, err := in.Apply(t.Context(), tx, user(id, 4), never(t))
				if level == pgx.ReadCommitted {
					require.NoError(t, err)
					require.Equal(t, want, outcome)
					require.NoError(t, tx.Commit(t.Context()))
					continue
				}
				require.ErrorIs(t, err, inbox.ErrSerialization)
				require.Empty(t, outcome)
				require.NoError(t, tx.Rollback(t.Context()))
				tx = begin(t, pool, level)
				outcome, err = in.Apply(t.Context(), tx, user(id, 4), never(t))
				require.NoError(t, err)
				require.Equal(t, want, outcome)
				require.NoError(t, tx.Commit(t.Context()))
			}
		}
	}
}

// Concurrent consumers get all events, each in a different order.
func TestConcurrentConsumersConverge(t *testing.T) {
	t.Parallel()
	const consumers, users, versions = 6, 3, 15
	pool := cardsDatabase(t)
	in := newInbox(t, inbox.Config{})
	var all []inbox.Event
	for n := range users {
		for v := range versions {
			all = append(all, user(n, int64(v+1)))
		}
	}
	var wg sync.WaitGroup
	for range consumers {
		wg.Go(func() {
			for _, i := range rand.Perm(len(all)) {
				_, err := apply(t.Context(), pool, in, all[i])
				check(t, err)
			}
		})
	}
	wg.Wait()
	for n := range users {
		require.Equal(t, fmt.Sprintf(`{"user":%d,"version":%d}`, n, versions), card(t, pool, n))
	}
	require.Equal(t, len(all), recorded(t, pool))
	require.Equal(t, value[int](t, pool, "SELECT count(*) FROM effects"), value[int](t, pool, "SELECT count(DISTINCT event) FROM effects"))
}

func TestLogNeverHoldsAPayload(t *testing.T) {
	t.Parallel()
	e := user(1, 2)
	e.Payload = []byte("secret")
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("seen", "event", e)
	require.Contains(t, out.String(), e.ID.String())
	require.Contains(t, out.String(), `"entity_version":2`)
	require.NotContains(t, out.String(), "secret")
	require.NotContains(t, out.String(), "c2VjcmV0")
}

func TestLogOfWhatAnEventHas(t *testing.T) {
	t.Parallel()
	for _, has := range []bool{false, true} {
		e := user(1, 2)
		e.Source, e.TenantID = "", uuid.NullUUID{}
		if has {
			e.Source, e.TenantID = "billing", uuid.NullUUID{UUID: uuid.New(), Valid: true}
		}
		var out bytes.Buffer
		slog.New(slog.NewJSONHandler(&out, nil)).Info("seen", "event", e)
		require.Equal(t, has, strings.Contains(out.String(), `"source":"billing"`))
		require.Equal(t, has, strings.Contains(out.String(), "tenant_id"))
	}
}
