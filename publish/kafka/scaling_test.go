package kafka_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// TestTenantsMoveBetweenServers is the procedure of docs/operate/scaling.md: three PostgreSQL servers have the tenants of a service,
// each with a relay to the same Kafka topic, and tenants move between them while all of them write. Kafka has each event of
// each account once, in the order of its commits.
func TestTenantsMoveBetweenServers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const (
		tenants  = 6
		accounts = 3  // per tenant
		entries  = 60 // per account
		moves    = 12
	)
	c := newCluster(t)
	s := &shards{t: t, homes: make(map[uuid.UUID]*shard)}
	for range 3 {
		s.all = append(s.all, newShard(t, c))
	}
	var ids []uuid.UUID
	for i := range tenants {
		tenant := uuid.New()
		ids = append(ids, tenant)
		s.homes[tenant] = s.all[i%len(s.all)]
		s.homes[tenant].create(t, tenant, accounts)
	}

	var written atomic.Int64
	writers, ctx := errgroup.WithContext(t.Context())
	for _, tenant := range ids {
		for account := range accounts {
			writers.Go(func() error {
				for range entries {
					if err := s.book(ctx, tenant, account); err != nil {
						return err
					}
					written.Add(1)
				}
				return nil
			})
		}
	}
	for n := range moves {
		require.Eventually(t, func() bool { return written.Load() >= int64(n*tenants*accounts*entries/moves) }, patience, time.Millisecond)
		s.move(ids[n%tenants], s.all[(n+n/tenants+1)%len(s.all)])
	}
	require.NoError(t, writers.Wait())
	for _, one := range s.all {
		one.caughtUp(t)
	}

	last := make(map[string]int)
	for _, r := range c.received(topic) {
		var e entry
		require.NoError(t, json.Unmarshal(r.Value, &e))
		key := e.account()
		require.Equal(t, key, string(r.Key))
		require.Equal(t, last[key]+1, e.Number, "account %s", key)
		last[key] = e.Number
	}
	require.Len(t, last, tenants*accounts)
	for key, number := range last {
		require.Equal(t, entries, number, "account %s", key)
	}
	for _, tenant := range ids {
		require.True(t, s.moved[tenant] >= moves/tenants, "tenant %s has moved %d times", tenant, s.moved[tenant])
	}
}

// entry is the payload: the Nth change of an account.
type entry struct {
	Tenant  uuid.UUID `json:"tenant"`
	Account int       `json:"account"`
	Number  int       `json:"number"`
}

func (e entry) account() string { return fmt.Sprintf("%s/%d", e.Tenant, e.Account) }

func (e entry) key() eventkey.Key {
	return eventkey.NewKey(eventkey.UUIDPart("tenant", e.Tenant), eventkey.IntPart("account", int64(e.Account)))
}

var entryBooked = outbox.NewTopic[entry](outbox.TopicSpec{
	Namespace: "ledger", Name: "entry_booked", Version: 1, Log: true,
	Keys: func(payload any) outbox.Keys {
		return outbox.Keys{Partition: payload.(*entry).key()}
	},
})

// shard is one PostgreSQL server with the outbox, the tables of the service, and a relay.
type shard struct {
	pool     *pgxpool.Pool
	operator *admin.Admin
}

func newShard(t *testing.T, c *cluster) *shard {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Server(t, pgserver.Options{}).URL())
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	pgtest.Execute(t, pool, `
		CREATE TABLE tenants (id uuid PRIMARY KEY, here boolean NOT NULL);
		CREATE TABLE accounts (tenant uuid, account int, number int NOT NULL, PRIMARY KEY (tenant, account))`)
	s := &shard{pool: pool}
	s.operator, err = admin.New(pool, "outbox")
	require.NoError(t, err)
	relay, err := listener.New(pool, listener.Spec{Name: "relay", Shards: 2},
		listener.Config{Logger: slog.New(slog.DiscardHandler), Publishers: map[string]publish.Publisher{"kafka": c.publisher(t)}},
		listener.Publish(entryBooked, publish.Publication{Broker: "kafka", Destination: topic}))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return s
}

func (s *shard) create(t *testing.T, tenant uuid.UUID, accounts int) {
	t.Helper()
	pgtest.Execute(t, s.pool, "INSERT INTO tenants VALUES ($1, true)", tenant)
	pgtest.Execute(t, s.pool, "INSERT INTO accounts SELECT $1, n - 1, 0 FROM generate_series(1, $2::int) AS n", tenant, accounts)
}

// errMoved says that a tenant lives on another server.
var errMoved = errors.New("the tenant lives on another server")

// book changes an account and enqueues its event. The shared lock on the row of the tenant lasts until the commit, so that a
// move begins after all transactions of the tenant that have begun here.
func (s *shard) book(ctx context.Context, tenant uuid.UUID, account int) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var here bool
		err := tx.QueryRow(ctx, "SELECT here FROM tenants WHERE id = $1 FOR SHARE", tenant).Scan(&here)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && !here {
			return errMoved
		}
		if err != nil {
			return err
		}
		e := entry{Tenant: tenant, Account: account}
		err = tx.QueryRow(ctx, "UPDATE accounts SET number = number + 1 WHERE tenant = $1 AND account = $2 RETURNING number",
			tenant, account).Scan(&e.Number)
		if err != nil {
			return err
		}
		_, err = entryBooked.Enqueue(ctx, tx, e)
		return err
	})
}

// caughtUp waits until the relay has sent every event that was committed before the call. An event that is not sent yet is
// as old as the wait, or older, and the lag of its shard is the age of the oldest such event.
func (s *shard) caughtUp(t *testing.T) {
	t.Helper()
	began := time.Now()
	require.Eventually(t, func() bool {
		waited := time.Since(began)
		shards, err := s.operator.Listeners(t.Context())
		require.NoError(t, err)
		for _, shard := range shards {
			require.Zero(t, shard.DeadLetters)
			if shard.Lag >= waited {
				return false
			}
		}
		return true
	}, patience, 5*time.Millisecond)
}

// shards are the servers, and the directory that says where a tenant lives.
type shards struct {
	t     *testing.T
	all   []*shard
	moved map[uuid.UUID]int

	mu    sync.RWMutex
	homes map[uuid.UUID]*shard
}

func (s *shards) home(tenant uuid.UUID) *shard {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.homes[tenant]
}

// book changes an account where its tenant lives. During a move it tries again until the directory has the new server.
func (s *shards) book(ctx context.Context, tenant uuid.UUID, account int) error {
	for {
		err := s.home(tenant).book(ctx, tenant, account)
		if !errors.Is(err, errMoved) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// move moves a tenant in the steps of docs/operate/scaling.md.
func (s *shards) move(tenant uuid.UUID, to *shard) {
	t, from := s.t, s.home(tenant)
	if from == to {
		return
	}
	pgtest.Execute(t, from.pool, "UPDATE tenants SET here = false WHERE id = $1", tenant) // waits for its transactions
	from.caughtUp(t)
	rows, err := from.pool.Query(t.Context(), "SELECT tenant, account, number FROM accounts WHERE tenant = $1", tenant)
	require.NoError(t, err)
	accounts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[entry])
	require.NoError(t, err)
	pgtest.InTx(t, to.pool, func(tx pgx.Tx) {
		for _, a := range accounts {
			_, err := tx.Exec(t.Context(), `INSERT INTO accounts VALUES ($1, $2, $3)
				ON CONFLICT (tenant, account) DO UPDATE SET number = EXCLUDED.number`, a.Tenant, a.Account, a.Number)
			require.NoError(t, err)
		}
		_, err := tx.Exec(t.Context(), "INSERT INTO tenants VALUES ($1, true) ON CONFLICT (id) DO UPDATE SET here = true", tenant)
		require.NoError(t, err)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.homes[tenant] = to
	if s.moved == nil {
		s.moved = make(map[uuid.UUID]int)
	}
	s.moved[tenant]++
}
