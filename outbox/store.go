package outbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/pgname"
)

// StoreConfig says whose events a Store works on.
type StoreConfig struct {
	// Schema of the tables; "" means "outbox".
	Schema string
	// Namespace whose events are claimed. Required.
	Namespace string
	// WorkerID marks the claims of this store; the zero UUID means a new one. Two processes may share one
	// by accident: claim numbers keep them apart.
	WorkerID uuid.UUID
}

// ClaimConfig says what to claim. The zero value claims up to 100 events of any topic for 30 s.
type ClaimConfig struct {
	// BatchSize is the most events a claim returns; 0 means 100.
	BatchSize int
	// LeaseDuration is how long they are held; 0 means 30 s.
	LeaseDuration time.Duration
	// MaxAttempts, if positive, stands in for the limit of each event and is recorded with it.
	MaxAttempts int
	// Topics, if any, are the only ones claimed.
	Topics []string
	// TenantID, if valid, is the only tenant whose events are claimed.
	TenantID uuid.NullUUID
}

// Claimed is an event held under a lease.
type Claimed struct {
	Event
	Payload json.RawMessage
	// ClaimNo is the fence: it names this claim of the event and no other.
	ClaimNo int64
	// Suspect is set when the lease of an earlier claim ran out, so that its holder may have died of it.
	Suspect bool

	due      time.Time // by the database's clock
	deadline time.Time // on this process's monotonic clock, counted from before the claim was sent
}

// Failure is a failed attempt, for Nack.
type Failure struct {
	Claimed
	// Err is why; its text is kept, cut to 2 KiB. Permanent and RetryAfter are honoured.
	Err error
	// RetryAt, if not zero, is when the next attempt is due; else a back-off decides: that of the topic
	// in a dispatcher, the default of Retry in a Store, which knows no topics.
	RetryAt time.Time
}

// Outcome is what a finalisation did to one event.
type Outcome int

// The outcomes. The zero value is none of them.
const (
	// Acked: the event is now what was asked for: delivered, failed, handed back or held for longer.
	Acked Outcome = iota + 1
	// Already: it was so before, by the same claim: a repeat after an answer that was lost.
	Already
	// Lost: the claim is over, nothing was changed. Somebody else holds or has finished the event.
	Lost
)

// String returns "acked", "already" or "lost".
func (o Outcome) String() string {
	switch o {
	case Acked:
		return "acked"
	case Already:
		return "already"
	case Lost:
		return "lost"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// Store claims and finalises the events of one namespace. It holds no state but its configuration and may
// be used from any number of goroutines. Each call is one transaction and one round trip.
type Store struct {
	pool      *pgxpool.Pool
	db        *database
	namespace string
	worker    uuid.UUID
	policies  map[string]policy // by topic; others have the default
}

// NewStore checks cfg and returns a Store on pool, which stays the caller's.
func NewStore(pool *pgxpool.Pool, cfg StoreConfig) (*Store, error) {
	if pool == nil {
		return nil, errors.New("new store: no pool")
	}
	db, err := openDatabase(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("new store: %w", err)
	}
	if !pgname.IsName(cfg.Namespace) {
		return nil, fmt.Errorf("new store: namespace %q is not a name like mini_chat", cfg.Namespace)
	}
	if cfg.WorkerID == uuid.Nil {
		if cfg.WorkerID, err = uuid.NewV7(); err != nil {
			return nil, fmt.Errorf("new store: %w", err)
		}
	}
	return &Store{pool: pool, db: db, namespace: cfg.Namespace, worker: cfg.WorkerID}, nil
}

// policyOf returns what is known of a topic.
func (s *Store) policyOf(topic string) policy {
	if p, ok := s.policies[topic]; ok {
		return p
	}
	return policy{retry: Retry{}.withDefaults(), retention: Retention{}.withDefaults()}
}

// suspectsPerClaim is how many events with an expired lease a claim takes: few, since one of them may be
// what killed their holder.
const suspectsPerClaim = 5

// Claim leases events that are due, oldest first, and returns them in that order; none is an empty slice.
// The lease is committed and on disk before Claim returns. If ctx ends while it is under way the events may
// have been claimed all the same, and come back when their lease has run out.
func (s *Store) Claim(ctx context.Context, cfg ClaimConfig) ([]Claimed, error) {
	c, err := cfg.claim()
	if err != nil {
		return nil, err
	}
	x := exchange{claim: c}
	if err := s.exchange(ctx, &x); err != nil {
		return nil, err
	}
	claimed := make([]Claimed, len(x.claimed))
	for i, c := range x.claimed {
		claimed[i] = *c
	}
	return claimed, nil
}

// claim is a checked ClaimConfig, with what only a dispatcher sets.
type claim struct {
	size, suspects, maxAttempts int
	lease                       time.Duration
	topics                      []string
	tenants                     []uuid.UUID
	after                       place // without suspects: where to begin
}

// place is one in the order in which events are claimed. The zero value is before all.
type place struct {
	due time.Time
	id  uuid.UUID
}

func placeOf(c *Claimed) place { return place{c.due, c.ID} }

func (p place) compare(o place) int {
	return cmp.Or(p.due.Compare(o.due), bytes.Compare(p.id[:], o.id[:]))
}

const (
	defaultBatchSize = 100
	defaultLease     = 30 * time.Second
	maxBatchSize     = 10_000
	minLease         = 10 * time.Millisecond
)

func (cfg ClaimConfig) claim() (*claim, error) {
	c := &claim{
		size: cfg.BatchSize, suspects: suspectsPerClaim, maxAttempts: cfg.MaxAttempts,
		lease: cfg.LeaseDuration, topics: cfg.Topics,
	}
	if c.size == 0 {
		c.size = defaultBatchSize
	}
	if c.lease == 0 {
		c.lease = defaultLease
	}
	if cfg.TenantID.Valid {
		c.tenants = []uuid.UUID{cfg.TenantID.UUID}
	}
	switch {
	case c.size < 0 || c.size > maxBatchSize:
		return nil, fmt.Errorf("claim: BatchSize %d is not between 1 and %d", c.size, maxBatchSize)
	case c.lease < minLease:
		return nil, fmt.Errorf("claim: LeaseDuration %s is shorter than %s", c.lease, minLease)
	case c.maxAttempts < 0 || c.maxAttempts > 1<<31-1:
		return nil, fmt.Errorf("claim: MaxAttempts %d is not between 0 and 2147483647", c.maxAttempts)
	}
	return c, nil
}

// claimFrom runs the statement for c.
func (s *Store) claimFrom(ctx context.Context, q *dbsqlc.Queries, c *claim) {
	p := s.claimParams(c)
	if c.suspects > 0 {
		_, _ = q.EventClaim(ctx, p)
		return
	}
	after := pgTime(c.after.due)
	if !after.Valid {
		after = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	_, _ = q.EventClaimFresh(ctx, dbsqlc.EventClaimFreshParams{
		Namespace: p.Namespace, AfterDue: after, AfterID: pgUUID(c.after.id), MaxAttempts: p.MaxAttempts, Topics: p.Topics,
		TenantIds: p.TenantIds, BatchSize: p.BatchSize, WorkerID: p.WorkerID, Lease: p.Lease,
	})
}

func (s *Store) claimParams(c *claim) dbsqlc.EventClaimParams {
	topics := c.topics
	if topics == nil {
		topics = []string{}
	}
	return dbsqlc.EventClaimParams{
		Namespace: s.namespace, MaxAttempts: pgLimit(c.maxAttempts), Topics: topics, TenantIds: pgUUIDs(c.tenants),
		BatchSize: int32(c.size), Suspects: int32(c.suspects), WorkerID: pgUUID(s.worker), Lease: pgInterval(c.lease),
	}
}

// claimedSlab is how many claimed events share an allocation, which lives as long as one of them.
const claimedSlab = 16

// scanClaimed reads the rows of EventClaim and EventClaimFresh, in the order of its columns.
func (s *Store) scanClaimed(rows pgx.Rows, deadline time.Time) ([]*Claimed, error) {
	defer rows.Close()
	var claimed []*Claimed
	var slab []Claimed
	for rows.Next() {
		if len(slab) == 0 {
			slab = make([]Claimed, claimedSlab)
		}
		c := &slab[0]
		slab = slab[1:]
		c.Namespace, c.deadline = s.namespace, deadline
		var id, tenant pgtype.UUID
		var headers, payload []byte
		if err := rows.Scan(
			&id, &c.Topic, &c.Version, &tenant, &c.DedupeKey, &c.PartitionKey, &c.Entity.Type, &c.Entity.ID,
			&c.Entity.Version, &headers, &payload, &c.Attempt, &c.MaxAttempts, &c.ClaimNo, &c.CreatedAt, &c.due, &c.Suspect,
		); err != nil {
			return nil, err
		}
		c.ID, c.Payload = id.Bytes, payload
		c.TenantID = uuid.NullUUID{UUID: tenant.Bytes, Valid: tenant.Valid}
		if headers != nil {
			if err := json.Unmarshal(headers, &c.Headers); err != nil {
				c.Headers = nil // written by hand, not by Enqueue: an event is worth more than its headers
			}
		}
		claimed = append(claimed, c)
	}
	return claimed, rows.Err()
}

// SweepDead makes dead letters of the events that no claim takes again, because their holder died on their
// last attempt or because the limit was lowered, and returns how many. It waits for nobody.
func (s *Store) SweepDead(ctx context.Context) (int, error) {
	return s.sweep(ctx, &claim{})
}

const sweepChunk = 500

func (s *Store) sweep(ctx context.Context, c *claim) (int, error) {
	topics := c.topics
	if topics == nil {
		topics = []string{}
	}
	total := 0
	for {
		var n int64
		err := s.guarded(ctx, "sweep dead", func(q *dbsqlc.Queries) (err error) {
			n, err = q.EventSweepDead(ctx, dbsqlc.EventSweepDeadParams{
				Namespace: s.namespace, MaxAttempts: pgLimit(c.maxAttempts), Topics: topics,
				TenantIds: pgUUIDs(c.tenants), BatchSize: sweepChunk,
			})
			return err
		})
		total += int(n)
		if err != nil || n < sweepChunk {
			return total, err
		}
	}
}

const pruneChunk = 1000

// Prune deletes events that were delivered or died longer ago than their topic's retention (168 h and
// 720 h for topics the store knows nothing of), in chunks of a transaction each, and returns how many.
func (s *Store) Prune(ctx context.Context) (int, error) {
	topics, err := s.db.each(s.pool).EventFinalTopics(ctx, s.namespace)
	if err != nil {
		return 0, wrap("prune", err)
	}
	total := 0
	for _, topic := range topics {
		keep := s.policyOf(topic).retention
		for _, rule := range [...]struct {
			status string
			keep   time.Duration
		}{{"delivered", keep.Delivered}, {"dead", keep.Dead}} {
			n, err := s.pruneTopic(ctx, topic, rule.status, rule.keep)
			total += n
			if err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

func (s *Store) pruneTopic(ctx context.Context, topic, status string, keep time.Duration) (int, error) {
	total := 0
	for {
		var n int64
		err := s.guarded(ctx, "prune", func(q *dbsqlc.Queries) (err error) {
			n, err = q.EventPrune(ctx, dbsqlc.EventPruneParams{
				Namespace: s.namespace, Topic: topic, Status: status, Retention: pgInterval(keep), BatchSize: pruneChunk,
			})
			return err
		})
		total += int(n)
		if err != nil || n < pruneChunk {
			return total, err
		}
	}
}

// guarded runs call in a READ COMMITTED transaction.
func (s *Store) guarded(ctx context.Context, what string, call func(*dbsqlc.Queries) error) error {
	return s.db.tx(ctx, s.pool, what, call)
}
