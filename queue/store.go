package queue

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

	"github.com/outboxgen/outboxgen/internal/dbschema"
	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/mark"
	"github.com/outboxgen/outboxgen/internal/pgname"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
	"github.com/outboxgen/outboxgen/internal/retention"
	"github.com/outboxgen/outboxgen/internal/settings"
	"github.com/outboxgen/outboxgen/outbox"
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
	// Retention says, by topic, how long Prune keeps final events, and that Ack deletes the events of a topic whose
	// Delivered is zero next to a positive Dead. A zero Retention means the defaults. Prune leaves topics that are not
	// named here alone, and Ack keeps their events. Only Prune needs it.
	Retention map[string]outbox.Retention
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
	outbox.Event
	Payload json.RawMessage
	// ClaimNo is the fence: it names this claim of the event and no other.
	ClaimNo int64
	// Reclaimed is set when the lease of an earlier claim ran out. The event may have killed the process that had it.
	Reclaimed bool

	due      time.Time     // by the database's clock
	deadline time.Time     // on this process's monotonic clock, counted from before the claim was sent
	after    time.Duration // how much later than now a release makes it due; 0 leaves the time it was due
}

// Failure is a failed attempt, for Nack.
type Failure struct {
	Claimed
	// Err is why; its text is kept, cut to 2 KiB. Permanent and RetryAfter are honoured.
	Err error
	// RetryAt, if not zero, is when the next attempt is due; else a back-off decides: that of the topic
	// in a dispatcher, the default of Retry in a Store, which knows no topics.
	RetryAt time.Time

	result *mark.Result // of Err, if it is known
}

// why returns what Err says, which is asked once.
func (f *Failure) why() mark.Result {
	switch {
	case f.result != nil:
	case f.Err == nil:
		f.result = &mark.Result{Class: mark.ClassFailed, Text: "no error given"}
	default:
		r := mark.Of(f.Err)
		f.result = &r
	}
	return *f.result
}

// Outcome is what a finalisation did to one event.
type Outcome int

// The outcomes. The zero value is none of them.
const (
	// Applied: the event is now what was asked for: delivered, failed, handed back or leased for longer.
	Applied Outcome = iota + 1
	// Already: it was so before, by the same claim: a repeat after an answer that was lost.
	Already
	// Lost: the claim is over, nothing was changed. Somebody else holds or has finished the event, or the same claim has
	// ended in another way.
	Lost
	// Locked: the claim stands and nothing was changed, because another transaction has the row locked. Only Extend
	// answers it.
	Locked
)

// String returns "applied", "already", "lost" or "locked".
func (o Outcome) String() string {
	switch o {
	case Applied:
		return "applied"
	case Already:
		return "already"
	case Lost:
		return "lost"
	case Locked:
		return "locked"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// Store claims and finalises the events of one namespace. It holds no state but its configuration and may
// be used from any number of goroutines. Each call is one transaction and one round trip.
type Store struct {
	pool      *pgxpool.Pool
	db        *dbschema.Schema
	namespace string
	worker    uuid.UUID
	policies  map[string]policy // by topic: those whose retention is known
}

// NewStore checks cfg and returns a Store on pool, which stays the caller's.
func NewStore(pool *pgxpool.Pool, cfg StoreConfig) (*Store, error) {
	if pool == nil {
		return nil, errors.New("new store: no pool")
	}
	db, err := dbschema.Open(cfg.Schema)
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
	s := &Store{pool: pool, db: db, namespace: cfg.Namespace, worker: cfg.WorkerID, policies: make(map[string]policy, len(cfg.Retention))}
	for topic, keep := range cfg.Retention {
		switch {
		case !pgname.IsName(topic):
			return nil, fmt.Errorf("new store: field Retention: %q is not a valid topic name: use one like turn_finalized, without the namespace", topic)
		case keep.Delivered < 0 || keep.Dead < 0:
			return nil, fmt.Errorf("new store: field Retention: topic %s has a negative duration", topic)
		}
		s.policies[topic] = policy{retry: settings.RetryWithDefaults(outbox.Retry{}), retention: settings.RetentionWithDefaults(keep)}
	}
	return s, nil
}

// policyOf returns what is known of a topic, or for a topic of which nothing is known what keeps its events.
func (s *Store) policyOf(topic string) policy {
	if p, ok := s.policies[topic]; ok {
		return p
	}
	return policy{retry: settings.RetryWithDefaults(outbox.Retry{}), retention: settings.RetentionWithDefaults(outbox.Retention{})}
}

// reclaimsPerClaim is how many events with an expired lease a claim takes: few, since one of them may be
// what killed their holder.
const reclaimsPerClaim = 5

// Claim leases events that are due, oldest first, and returns them in that order; none is an empty slice.
// The lease is committed and on disk before Claim returns. If ctx ends while it is under way the events may
// have been claimed all the same, and come back when their lease has run out.
func (s *Store) Claim(ctx context.Context, cfg ClaimConfig) ([]Claimed, error) {
	c, err := cfg.claim()
	if err != nil {
		return nil, err
	}
	x := roundTrip{claim: c}
	if err := s.roundTrip(ctx, &x); err != nil {
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
	size, reclaims, maxAttempts int
	lease                       time.Duration
	topics                      []string
	tenants                     []uuid.UUID
	after                       place       // where to begin, if nothing is reclaimed
	inFlight                    []uuid.UUID // of the claimer: not taken although their lease has run out
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

func (cfg ClaimConfig) claim() (*claim, error) {
	c := &claim{
		size: cfg.BatchSize, reclaims: reclaimsPerClaim, maxAttempts: cfg.MaxAttempts,
		lease: cfg.LeaseDuration, topics: cfg.Topics,
	}
	if c.size == 0 {
		c.size = settings.DefaultBatchSize
	}
	if c.lease == 0 {
		c.lease = settings.DefaultLease
	}
	if cfg.TenantID.Valid {
		c.tenants = []uuid.UUID{cfg.TenantID.UUID}
	}
	switch {
	case c.size < 0 || c.size > settings.MaxBatchSize:
		return nil, fmt.Errorf("claim: BatchSize %d is not between 1 and %d", c.size, settings.MaxBatchSize)
	case c.lease < settings.MinLease:
		return nil, fmt.Errorf("claim: LeaseDuration %s is shorter than %s", c.lease, settings.MinLease)
	case c.maxAttempts < 0 || c.maxAttempts > 1<<31-1:
		return nil, fmt.Errorf("claim: MaxAttempts %d is not between 0 and 2147483647", c.maxAttempts)
	}
	return c, nil
}

// claimFrom runs the statement for c.
func (s *Store) claimFrom(ctx context.Context, q *dbsqlc.Queries, c *claim) {
	p := s.claimParams(c)
	if c.reclaims > 0 {
		_, _ = q.EventClaim(ctx, p)
		return
	}
	after := pgvalue.Time(c.after.due)
	if !after.Valid {
		after = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	_, _ = q.EventClaimFresh(ctx, dbsqlc.EventClaimFreshParams{
		Namespace: p.Namespace, AfterDue: after, AfterID: pgvalue.UUID(c.after.id), MaxAttempts: p.MaxAttempts, Topics: p.Topics,
		TenantIds: p.TenantIds, BatchSize: p.BatchSize, WorkerID: p.WorkerID, Lease: p.Lease,
	})
}

func (s *Store) claimParams(c *claim) dbsqlc.EventClaimParams {
	topics := c.topics
	if topics == nil {
		topics = []string{}
	}
	return dbsqlc.EventClaimParams{
		Namespace: s.namespace, MaxAttempts: pgvalue.Limit(c.maxAttempts), Topics: topics, TenantIds: pgvalue.UUIDs(c.tenants),
		BatchSize: int32(c.size), Reclaims: int32(c.reclaims), InFlight: pgvalue.UUIDs(c.inFlight), WorkerID: pgvalue.UUID(s.worker), Lease: pgvalue.Interval(c.lease),
	}
}

// claimedSlab is how many claimed events share an allocation, which lives as long as one of them.
const claimedSlab = 16

// scanClaimed reads the rows of EventClaim and EventClaimFresh, in the order of its columns. The claim is committed by
// then, so no value that a row can have may be an error here: it would throw all events of the claim away. Hence types
// that hold whatever PostgreSQL does, such as the infinity of a timestamptz.
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
		var createdAt, due pgtype.Timestamptz
		var headers, payload []byte
		if err := rows.Scan(
			&id, &c.Topic, &c.Version, &tenant, &c.DedupeKey, &c.PartitionKey, &c.Entity.Type, &c.Entity.ID,
			&c.Entity.Version, &headers, &payload, &c.Attempt, &c.MaxAttempts, &c.ClaimNo, &createdAt, &due, &c.Reclaimed,
		); err != nil {
			return nil, err
		}
		c.ID, c.Payload, c.CreatedAt, c.due = id.Bytes, payload, createdAt.Time, due.Time
		c.TenantID = uuid.NullUUID{UUID: tenant.Bytes, Valid: tenant.Valid}
		c.Headers = pgvalue.Headers(headers)
		claimed = append(claimed, c)
	}
	return claimed, rows.Err()
}

// SweepDead makes dead letters of the events that no claim takes again, because their lease has run out on their
// last attempt or because the limit was lowered, and returns how many. It waits for nobody: a holder that lives, but could
// not reach the database for a lease, cannot settle them any more. Dispatchers give such a holder some time.
func (s *Store) SweepDead(ctx context.Context) (int, error) {
	n, _, err := s.sweep(ctx, &claim{}, 0)
	return n, err
}

const sweepChunk = 500

// sweep buries what c could never claim. What a lease has run out of is only noted the first time that a sweep finds it,
// and buried when grace has passed since and it is still so.
func (s *Store) sweep(ctx context.Context, c *claim, grace time.Duration) (died, noted int, err error) {
	topics := c.topics
	if topics == nil {
		topics = []string{}
	}
	for {
		var row dbsqlc.EventSweepDeadRow
		err := s.guarded(ctx, "sweep dead", func(q *dbsqlc.Queries) (err error) {
			row, err = q.EventSweepDead(ctx, dbsqlc.EventSweepDeadParams{
				Namespace: s.namespace, MaxAttempts: pgvalue.Limit(c.maxAttempts), Topics: topics,
				TenantIds: pgvalue.UUIDs(c.tenants), InFlight: pgvalue.UUIDs(c.inFlight), Grace: pgvalue.Interval(grace), BatchSize: sweepChunk,
			})
			return err
		})
		died, noted = died+int(row.Died), noted+int(row.Noted)
		if err != nil || row.Died+row.Noted < sweepChunk {
			return died, noted, err
		}
	}
}

// Prune deletes events that were delivered or died longer ago than the retention of their topic, in chunks of one
// transaction each, and returns how many. It prunes only topics whose retention StoreConfig.Retention names, because what
// it deletes is the dedupe window and the dead letters of its topic; without any it is an error. `outboxgen prune` does
// the same for all topics of an outbox.yaml.
func (s *Store) Prune(ctx context.Context) (int, error) {
	if len(s.policies) == 0 {
		return 0, errors.New("prune: no topic has a known retention: name the topics in StoreConfig.Retention, or run `outboxgen prune`")
	}
	topics, err := s.db.Each(s.pool).EventFinalTopics(ctx, s.namespace)
	if err != nil {
		return 0, dbschema.Wrap("prune", err)
	}
	total := 0
	for _, topic := range topics {
		known, ok := s.policies[topic]
		if !ok {
			continue // somebody else's, or nobody's
		}
		for _, rule := range [...]struct {
			status string
			keep   time.Duration
		}{{"delivered", known.retention.Delivered}, {"dead", known.retention.Dead}} {
			n, err := retention.Queue(ctx, s.db, s.pool, s.namespace, topic, rule.status, rule.keep)
			total += n
			if err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// guarded runs call in a READ COMMITTED transaction.
func (s *Store) guarded(ctx context.Context, what string, call func(*dbsqlc.Queries) error) error {
	return dbschema.Wrap(what, s.db.InTx(ctx, s.pool, call))
}
