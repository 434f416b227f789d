package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/retention"
	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// StoreConfig selects the events that a Store works on.
type StoreConfig struct {
	// Schema of the tables; "" means "outbox".
	Schema string
	// Namespace whose events are claimed. Required.
	Namespace string
	// WorkerID marks the claims of this store; the zero UUID means a new one. If two processes share one by accident,
	// claim numbers still tell their claims apart.
	WorkerID uuid.UUID
	// Retention says, per topic, how long Prune keeps final events. If a topic has DeleteOnAck, Ack deletes its events. A
	// zero Retention means the defaults. Prune does not touch topics that are not named here, and Ack keeps their events.
	Retention map[string]outbox.Retention
}

// ClaimConfig says what to claim. The zero value claims up to 100 events of any topic for 30 s.
type ClaimConfig struct {
	// BatchSize is the maximum number of events that a claim returns; 0 means 100.
	BatchSize int
	// LeaseDuration is how long they are leased; 0 means 30 s.
	LeaseDuration time.Duration
	// MaxAttempts, if positive, replaces the limit of each event and is recorded with it.
	MaxAttempts int
	// Topics, if any, are the only ones claimed. Then only their lanes are walked; without them each call finds first, in
	// a round trip of its own, which lanes have events.
	Topics []string
	// Versions are, by topic, the newest payload versions that are claimed. Events with a newer one stay as they are, for
	// a process that knows it. A topic that is not named here has no bound; nil claims all versions.
	Versions map[string]int
	// TenantIDs, if any, are the only tenants whose events are claimed.
	TenantIDs []uuid.UUID
	// Cursor, if not nil, is where the claim begins, and is set to where it stopped. Such a claim takes a bounded time,
	// whatever stands between the events: it may return none although some are due. A loop that drains continues until
	// Cursor.Done; one that polls goes on with the same Cursor.
	//
	// A claim without a Cursor ends when the batch is full, or when it has come to what is not due. If it passes more than
	// 1,000 events that it does not select, or may not take, the Store remembers its place, and later claims that select
	// the same begin there. One of them begins at the head again after 32 times what the walk from the head took. It
	// finds what was committed late, or was released by another process, before that place; what this Store has
	// released is found at once.
	Cursor *Cursor
}

// Claimed is an event held under a lease.
type Claimed struct {
	outbox.Event
	Payload json.RawMessage
	// ClaimNo is the fence: it identifies this claim of the event.
	ClaimNo int64
	// Reclaimed is set when the lease of an earlier claim ran out. The event may have killed the process that had it.
	Reclaimed bool

	due      time.Time // by the database's clock
	deadline time.Time // on this process's monotonic clock, counted from before the claim was sent
	lane     int32
	turn     string // "" means none
	// startWithin is until when the rate of its topic allows it to begin, as deadline; zero means at any time.
	startWithin time.Time
}

// Failure is a failed attempt, for Nack.
type Failure struct {
	Claimed
	// Err is why it failed. Its text is kept, cut to 2 KiB. Permanent and RetryAfter have their effect.
	Err error
	// RetryAt, if not zero, is when the next attempt is due. Otherwise a backoff decides: that of the topic in a
	// dispatcher, and the default of Retry in a Store, which does not know the topics.
	RetryAt time.Time
}

// why returns the result of classifying Err.
func (f *Failure) why() *errclass.Result {
	r := errclass.Result{Class: errclass.ClassFailed, Text: "no error given"}
	if f.Err != nil {
		r = errclass.Of(f.Err)
	}
	return &r
}

// Outcome is what a finalisation did to one event.
type Outcome int

// The outcomes. The zero value is not an outcome.
const (
	// Applied: the event was changed as requested: delivered, failed, released or leased for longer.
	Applied Outcome = iota + 1
	// Already: the same claim had changed the event so before. This is a repeat after a lost answer.
	Already
	// Lost: the claim is over and nothing was changed. Another worker holds or has finished the event, or the same
	// claim has ended in another way.
	Lost
	// Locked: the claim is still valid and nothing was changed, because another transaction has the row locked. Only
	// Extend returns it.
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

// Store claims and finalises the events of one namespace. It has no state except its configuration, what was paused when it
// last claimed, and where its claims without a Cursor have come. It may be used from any number of goroutines. A call is
// one transaction and one round trip, except that Claim without a Cursor, SweepDead and Prune work in pieces, each a
// transaction, that Claim without Topics and SweepDead read first which lanes have events, and that Claim reads the
// pauses first when it is the first one, or when everything was paused.
type Store struct {
	pool      *pgxpool.Pool
	db        *schemadb.Schema
	namespace string
	worker    uuid.UUID
	policies  map[string]policy           // by topic, for those whose retention is known
	paused    atomic.Pointer[core.Pauses] // as the latest Claim has read them; nil before
	limitMet  atomic.Int64                // when a claim has met a limit that it did not expect, in Unix nanoseconds
	places    places                      // of claims without a Cursor
}

// NewStore checks cfg and returns a Store on pool. The caller closes pool.
func NewStore(pool *pgxpool.Pool, cfg StoreConfig) (*Store, error) {
	if pool == nil {
		return nil, errors.New("new store: no pool")
	}
	db, err := schemadb.Open(cfg.Schema)
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
	s := &Store{
		pool: pool, db: db, namespace: cfg.Namespace, worker: cfg.WorkerID,
		policies: make(map[string]policy, len(cfg.Retention)),
	}
	for topic, keep := range cfg.Retention {
		switch {
		case !pgname.IsName(topic):
			return nil, fmt.Errorf(
				"new store: field Retention: %q is not a valid topic name: use one like turn_finalized, without the namespace",
				topic)
		case keep.Delivered < 0 || keep.Dead < 0:
			return nil, fmt.Errorf("new store: field Retention: topic %s has a negative duration", topic)
		}
		s.policies[topic] = policy{
			retry: config.RetryWithDefaults(outbox.Retry{}), retention: config.RetentionWithDefaults(keep),
		}
	}
	return s, nil
}

// policyOf returns the policy of a topic. For an unknown topic this is a policy that keeps its events.
func (s *Store) policyOf(topic string) policy {
	if p, ok := s.policies[topic]; ok {
		return p
	}
	return policy{
		retry: config.RetryWithDefaults(outbox.Retry{}), retention: config.RetentionWithDefaults(outbox.Retention{}),
	}
}

// Claim leases events that are due and returns them in the order in which they are due. It takes as many of each topic
// as of the others, and of a topic that takes turns as many of each turn, as far as they have any, and the oldest of
// each. Topics that take turns come after the others. It leaves what the limits of the topics do not allow. If none is
// due, the slice is empty. The lease is committed and on disk before Claim returns. If ctx ends during the call, the
// events may have been claimed nevertheless; they are claimable again when their lease has run out.
//
// A claim without a Cursor visits all turns that have something due; with a Cursor, each visits some. An event of a topic
// with a rate must be begun soon, in a 32nd of the rate's period after Claim was called.
//
// What an operator has paused is not claimed. A row of the queue whose event was deleted by hand is not returned: Claim
// makes it a dead letter.
func (s *Store) Claim(ctx context.Context, cfg ClaimConfig) ([]Claimed, error) {
	c, err := cfg.claim()
	if err != nil {
		return nil, err
	}
	w, found := cfg.Cursor, []*Claimed{}
	var v *visit
	if w == nil {
		w, v = s.places.take(&cfg)
		defer func() { s.places.leave(v, w) }()
	}
	lanes, turnLanes, err := s.lanesOf(ctx, c.Topics)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	w.begun = true
	w.walk.Cover(lanes)
	w.turns.Cover(turnLanes)
	if c.Paused = s.paused.Load(); c.Paused == nil || c.Paused.Every(c.Topics) {
		if c.Paused, err = s.readPauses(ctx); err != nil {
			return nil, fmt.Errorf("claim: %w", err)
		}
		s.paused.Store(c.Paused)
	}
	if w.paused != nil && c.Paused.Ended(w.paused) {
		w.restart()
	}
	for {
		w.paused = c.Paused
		if c.Paused.Every(c.Topics) {
			w.end()
			return claimedOf(found), nil
		}
		part := *c
		part.Size -= len(found)
		x := roundTrip{claim: w.next(&part), readPauses: true}
		if err := s.roundTrip(ctx, &x); err != nil {
			w.failed(&part)
			if len(found) == 0 {
				return nil, err
			}
			return claimedOf(found), nil // the rest is still there
		}
		w.advance(&part, &x.found)
		if v != nil {
			v.passes = v.passes || len(x.found.Ends) > 0 && len(x.found.Rows) == 0
		}
		if !x.paused.Equal(c.Paused) { // the claim was sent with what was paused before
			x.claimed = s.releasePaused(ctx, &x)
			if x.paused.Ended(c.Paused) {
				w.restart()
			}
			c.Paused = x.paused
			s.paused.Store(c.Paused)
		}
		found = append(found, x.claimed...)
		reclaimed := slices.ContainsFunc(x.claimed, func(c *Claimed) bool { return c.Reclaimed }) // few at a time
		if cfg.Cursor != nil || reclaimed || len(found) == c.Size || !w.more() {
			return claimedOf(found), nil
		}
	}
}

// lanesOf returns the lanes of the events of topics that have no turns, and those of the others, sorted. No topics are
// all: then it asks the database which lanes have events.
func (s *Store) lanesOf(ctx context.Context, topics []string) (lanes, turns []int32, err error) {
	if len(topics) > 0 {
		return core.LanesOf(topics), core.TurnLanesOf(topics), nil
	}
	all, err := s.db.Each(s.pool).EventLanes(ctx, s.namespace)
	if err != nil {
		return nil, nil, s.db.Wrap("find lanes", err)
	}
	for _, lane := range slices.Backward(all) {
		if topiclane.HasTurns(lane) {
			turns = append(turns, lane)
		} else {
			lanes = append(lanes, lane)
		}
	}
	return lanes, turns, nil
}

// releasePaused releases what x has claimed although it is paused, and returns the rest. If that fails, the leases run
// out.
func (s *Store) releasePaused(ctx context.Context, x *roundTrip) (rest []*Claimed) {
	var back roundTrip
	for _, c := range x.claimed {
		if x.paused.Event(c.Topic, c.TenantID) {
			back.settlements = append(back.settlements, settlement{kind: releasing, claimed: c})
		} else {
			rest = append(rest, c)
		}
	}
	_ = s.roundTrip(ctx, &back)
	s.places.reset()
	return rest
}

// claimedOf returns events in the order in which they are due.
func claimedOf(found []*Claimed) []Claimed {
	slices.SortFunc(found, func(a, b *Claimed) int { return placeOf(a).Compare(placeOf(b)) })
	claimed := make([]Claimed, len(found))
	for i, c := range found {
		claimed[i] = *c
	}
	return claimed
}

func placeOf(c *Claimed) core.Place { return core.Place{Due: c.due, ID: c.ID} }

// claim is a checked ClaimConfig, with fields that only a walk and a dispatcher set.
type claim struct {
	core.Claim
	maxAttempts int
	lease       time.Duration
	versions    *versions // nil means all
	tenants     []uuid.UUID
}

func (cfg ClaimConfig) claim() (*claim, error) {
	c := &claim{
		Claim:       core.Claim{Size: cfg.BatchSize, Reclaims: core.ReclaimsPerClaim, Topics: cfg.Topics},
		maxAttempts: cfg.MaxAttempts, lease: cfg.LeaseDuration, versions: versionsOf(cfg.Versions), tenants: cfg.TenantIDs,
	}
	if c.Size == 0 {
		c.Size = config.DefaultBatchSize
	}
	if c.lease == 0 {
		c.lease = config.DefaultLease
	}
	switch {
	case c.Size < 0 || c.Size > config.MaxBatchSize:
		return nil, fmt.Errorf("claim: BatchSize %d is not between 1 and %d", c.Size, config.MaxBatchSize)
	case c.lease < config.MinLease:
		return nil, fmt.Errorf("claim: LeaseDuration %s is shorter than %s", c.lease, config.MinLease)
	case c.maxAttempts < 0 || c.maxAttempts > 1<<31-1:
		return nil, fmt.Errorf("claim: MaxAttempts %d is not between 0 and 2147483647", c.maxAttempts)
	}
	return c, nil
}

// claimFrom calls the query for c.
func (s *Store) claimFrom(ctx context.Context, q *queries.Queries, c *claim) {
	if c.Turns != nil {
		if p := s.turnsParams(c); s.unlimited(c) {
			_, _ = q.EventClaimKnown(ctx, queries.EventClaimKnownParams{
				Namespace: p.Namespace, WorkerID: p.WorkerID, Lease: p.Lease, BatchSize: p.BatchSize, MaxAttempts: p.MaxAttempts,
				Topics: p.Topics, EveryVersion: p.EveryVersion, VersionTopics: p.VersionTopics, Versions: p.Versions,
				TenantIds: p.TenantIds, Paused: p.Paused, KnownLanes: p.KnownLanes, KnownTurns: p.KnownTurns,
				KnownDues: p.KnownDues, KnownIds: p.KnownIds, Each: int32(max(c.Size/len(p.KnownIds), 1)),
			})
		} else {
			_, _ = q.EventClaimTurns(ctx, p)
		}
		return
	}
	p := s.claimParams(c)
	if c.Reclaims > 0 || c.InPieces() {
		_, _ = q.EventClaim(ctx, p)
		return
	}
	_, _ = q.EventClaimFresh(ctx, queries.EventClaimFreshParams{
		Lanes: p.Lanes, AfterDues: p.AfterDues, AfterIds: p.AfterIds, Quotas: columnsOf(c.Starts).quotas,
		Namespace: p.Namespace, MaxAttempts: p.MaxAttempts, Topics: p.Topics, EveryVersion: p.EveryVersion,
		Versions: p.Versions, VersionTopics: p.VersionTopics, TenantIds: p.TenantIds, Paused: p.Paused,
		BatchSize: p.BatchSize, WorkerID: p.WorkerID, Lease: p.Lease,
	})
}

// limitsEvery is how long a store that has met a limit takes it that there are some.
const limitsEvery = 10 * time.Second

// unlimited reports whether EventClaimKnown can do what c asks for, unless it meets a limit that this store does not know
// of.
func (s *Store) unlimited(c *claim) bool {
	t := c.Turns
	return len(t.Known) > 0 && len(t.Front) == 0 && len(t.Hops) == 0 && c.Reclaims == 0 &&
		time.Since(time.Unix(0, s.limitMet.Load())) > limitsEvery
}

// turnsParams are the parameters of EventClaimTurns.
func (s *Store) turnsParams(c *claim) queries.EventClaimTurnsParams {
	at, known := turnColumnsOf(c.Turns), c.versions.params()
	return queries.EventClaimTurnsParams{
		Namespace: s.namespace, WorkerID: pgvalue.UUID(s.worker), Lease: pgvalue.Interval(c.lease), BatchSize: int32(c.Size),
		MaxAttempts: pgvalue.Limit(c.maxAttempts), Topics: topicsParam(c.Topics), EveryVersion: known.every,
		VersionTopics: known.topics, Versions: known.newest, TenantIds: pgvalue.UUIDs(c.tenants), Paused: c.Paused.Texts(),
		KnownLanes: at.known.lanes, KnownTurns: at.turns, KnownDues: at.known.dues, KnownIds: at.known.ids,
		FrontLanes: at.front.lanes, FrontDues: at.front.dues, FrontIds: at.front.ids, FrontPiece: int32(c.Turns.Piece),
		HopLanes: at.hopLanes, HopTurns: at.hopTurns, HopCount: int32(c.Turns.Count), Piece: core.TurnPiece,
		Starts: core.FreshTurns, Reclaims: int32(c.Reclaims), InFlight: pgvalue.UUIDs(c.InFlight),
		Rated: int32(c.Turns.Idle), Ahead: int32(c.Turns.Ahead), Slack: pgvalue.Interval(c.Turns.Slack),
	}
}

// claimParams are the parameters of EventClaim, which shares the batch among the lanes.
func (s *Store) claimParams(c *claim) queries.EventClaimParams {
	from, known := columnsOf(c.Starts), c.versions.params()
	return queries.EventClaimParams{
		Lanes: from.lanes, AfterDues: from.dues, AfterIds: from.ids, Pieces: from.pieces,
		Namespace: s.namespace, MaxAttempts: pgvalue.Limit(c.maxAttempts), Topics: topicsParam(c.Topics),
		EveryVersion: known.every, Versions: known.newest, VersionTopics: known.topics, TenantIds: pgvalue.UUIDs(c.tenants),
		Paused: c.Paused.Texts(), BatchSize: int32(c.Size), Reclaims: int32(c.Reclaims), InFlight: pgvalue.UUIDs(c.InFlight),
		WorkerID: pgvalue.UUID(s.worker), Lease: pgvalue.Interval(c.lease),
	}
}

func topicsParam(topics []string) []string {
	if topics == nil {
		return []string{}
	}
	return topics
}

// claimedSlab is how many claimed events share an allocation, which lives until the last of them is released.
const claimedSlab = 16

// scanClaimed reads into x the rows of EventClaim and EventClaimFresh, in the order of its columns. The claim is
// already committed, so no value that a row can have may be an error here: an error would discard all events of the
// claim. The variables therefore have types for every value of PostgreSQL, such as the infinity of a timestamptz.
func (s *Store) scanClaimed(rows pgx.Rows, x *roundTrip, deadline time.Time) error {
	defer rows.Close()
	var slab []Claimed
	for rows.Next() {
		if len(slab) == 0 {
			slab = make([]Claimed, claimedSlab)
		}
		c := &slab[0]
		c.Namespace, c.deadline = s.namespace, deadline
		var id, tenant pgtype.UUID
		var createdAt, due pgtype.Timestamptz
		var headers, payload []byte
		if err := rows.Scan(
			&id, &c.Topic, &c.Version, &tenant, &c.DedupeKey, &c.PartitionKey, &c.Entity.Type, &c.Entity.ID,
			&c.Entity.Version, &headers, &payload, &c.Attempt, &c.MaxAttempts, &c.ClaimNo, &createdAt, &due, &c.lane,
			&c.Reclaimed,
		); err != nil {
			return err
		}
		c.ID, c.Payload, c.CreatedAt, c.due = id.Bytes, payload, createdAt.Time, due.Time
		switch {
		case c.lane < 0:
			x.found.At, x.found.Took = due.Time, createdAt.Time.Sub(due.Time)
			continue
		case c.ClaimNo == 0:
			if x.found.Ends == nil {
				x.found.Ends = make(map[int32]core.Place)
			}
			x.found.Ends[c.lane] = placeOf(c)
			continue
		}
		slab = slab[1:]
		x.found.Rows = append(x.found.Rows, core.Seen{
			Lane: c.lane, At: placeOf(c), Reclaimed: c.Reclaimed, Last: c.Attempt >= c.MaxAttempts,
		})
		c.TenantID = uuid.NullUUID{UUID: tenant.Bytes, Valid: tenant.Valid}
		c.Headers = pgvalue.Headers(headers)
		if payload == nil {
			x.orphans = append(x.orphans, c)
		} else {
			x.claimed = append(x.claimed, c)
		}
	}
	return rows.Err()
}

// The kinds of rows of EventClaimTurns and EventClaimKnown. From turnMore on they are TurnStates.
const (
	turnEvent int32 = 0
	turnHop   int32 = 10
	turnFront int32 = 11
	turnClock int32 = 12
	turnLimit int32 = 13
)

// scanTurns is scanClaimed for the rows of EventClaimTurns and EventClaimKnown. sent is before the claim was sent.
func (s *Store) scanTurns(rows pgx.Rows, x *roundTrip, sent, deadline time.Time) error {
	defer rows.Close()
	var slab []Claimed
	for rows.Next() {
		if len(slab) == 0 {
			slab = make([]Claimed, claimedSlab)
		}
		c := &slab[0]
		c.Namespace, c.deadline = s.namespace, deadline
		var kind int32
		var id, tenant pgtype.UUID
		var createdAt, due pgtype.Timestamptz
		var headers, payload []byte
		var until pgtype.Int8
		if err := rows.Scan(
			&kind, &c.lane, &c.turn, &id, &c.Topic, &c.Version, &tenant, &c.DedupeKey, &c.PartitionKey, &c.Entity.Type,
			&c.Entity.ID, &c.Entity.Version, &headers, &payload, &c.Attempt, &c.MaxAttempts, &c.ClaimNo, &createdAt, &due,
			&c.Reclaimed, &until,
		); err != nil {
			return err
		}
		c.ID, c.Payload, c.CreatedAt, c.due = id.Bytes, payload, createdAt.Time, due.Time
		switch kind {
		case turnEvent:
			slab = slab[1:]
			c.TenantID = uuid.NullUUID{UUID: tenant.Bytes, Valid: tenant.Valid}
			c.Headers = pgvalue.Headers(headers)
			if until.Valid {
				c.startWithin = sent.Add(time.Duration(until.Int64) * time.Microsecond)
			}
			x.found.Rows = append(x.found.Rows, core.Seen{
				Lane: c.lane, Turn: c.turn, At: placeOf(c), Reclaimed: c.Reclaimed, Last: c.Attempt >= c.MaxAttempts,
			})
			if payload == nil {
				x.orphans = append(x.orphans, c)
			} else {
				x.claimed = append(x.claimed, c)
			}
		case turnClock, turnLimit:
			if x.found.At, x.found.Took = due.Time, createdAt.Time.Sub(due.Time); kind == turnClock {
				continue
			}
			s.limitMet.Store(sent.UnixNano()) // the next claim goes by the limits
			for _, known := range x.claim.Turns.Known {
				x.found.Turns = append(x.found.Turns, core.TurnEnd{TurnStart: known, State: core.TurnSeen})
			}
		case turnHop:
			if x.found.Hops == nil {
				x.found.Hops = make(map[int32]string)
			}
			x.found.Hops[c.lane] = c.turn
		case turnFront:
			if x.found.Ends == nil {
				x.found.Ends = make(map[int32]core.Place)
			}
			x.found.Ends[c.lane] = placeOf(c)
		default:
			end := core.TurnEnd{State: core.TurnState(kind)}
			if end.Turn, end.After = (core.Turn{Lane: c.lane, Key: c.turn}), placeOf(c); end.State == core.TurnFull {
				end.After = core.Place{Due: createdAt.Time}
			}
			x.found.Turns = append(x.found.Turns, end)
		}
	}
	return rows.Err()
}

// SweepDead makes dead letters of the events that no claim takes again, and returns how many. These are events whose
// lease has run out on their last attempt, or whose attempts exceed a limit that was lowered. It gives no grace: a
// holder that is alive but could not reach the database for the length of a lease cannot settle them any more.
// Dispatchers give such a holder some time.
func (s *Store) SweepDead(ctx context.Context) (int, error) {
	n, _, err := s.sweep(ctx, &claim{}, 0, nil)
	return n, err
}

// sweepChunk is how many events of one lane become dead in one transaction of a sweep at most.
const sweepChunk = 250

// sweep makes dead letters of the events that c could never claim, in pieces like a claim. An event whose lease has run
// out is only noted when a sweep first finds it. It becomes a dead letter if nothing has changed after grace. tell, if
// not nil, gets the dead letters of each transaction, without keys, entity and headers.
func (s *Store) sweep(
	ctx context.Context, c *claim, grace time.Duration, tell func([]report.End),
) (died, noted int, err error) {
	if c.Paused.Every(c.Topics) {
		return 0, 0, nil
	}
	lanes, turns, err := s.lanesOf(ctx, c.Topics)
	if err != nil {
		return 0, 0, err
	}
	w := core.SweepOf(append(lanes, turns...)) // a lane of turns comes after every other
	for starts := w.Pieces(0, false); len(starts) > 0; {
		var rows []queries.EventSweepDeadRow
		var dead []report.End
		from, known := columnsOf(starts), c.versions.params()
		if err := s.guarded(ctx, "sweep dead", func(q *queries.Queries) (err error) {
			rows, err = q.EventSweepDead(ctx, queries.EventSweepDeadParams{
				Lanes: from.lanes, AfterDues: from.dues, AfterIds: from.ids, Pieces: from.pieces,
				Namespace: s.namespace, MaxAttempts: pgvalue.Limit(c.maxAttempts), Topics: topicsParam(c.Topics),
				EveryVersion: known.every, Versions: known.newest, VersionTopics: known.topics,
				TenantIds: pgvalue.UUIDs(c.tenants), Paused: c.Paused.Texts(), InFlight: pgvalue.UUIDs(c.InFlight),
				Grace: pgvalue.Interval(grace), BatchSize: sweepChunk,
			})
			return err
		}); err != nil {
			return died, noted, err
		}
		starts = starts[:0]
		for _, row := range rows {
			switch row.Lane {
			case -1:
				died, noted = died+int(row.Died), noted+int(row.Noted)
				continue
			case -2:
				dead = append(dead, report.End{As: outbox.SettledDead, Reason: row.Error, Swept: true, Event: outbox.Event{
					ID: row.ToID.Bytes, Namespace: s.namespace, Topic: row.Topic, Version: int(row.Version),
					TenantID: uuid.NullUUID{UUID: row.TenantID.Bytes, Valid: row.TenantID.Valid}, CreatedAt: row.ToDue.Time,
					Attempt: int(row.Died), MaxAttempts: int(row.Noted),
				}})
				continue
			}
			starts = append(starts, core.Start{
				Lane: row.Lane, After: core.Place{Due: row.ToDue.Time, ID: row.ToID.Bytes}, Piece: w.Piece(),
			})
		}
		if tell != nil && len(dead) > 0 {
			tell(dead)
		}
	}
	return died, noted, nil
}

// Prune deletes events that were delivered or died longer ago than the retention of their topic, in chunks of one
// transaction each, and returns how many. It prunes only topics that StoreConfig.Retention names, because it deletes
// the dedupe window and the dead letters of a topic. If no topic is named, it returns an error. `outboxgen prune` does
// the same for all topics of an outbox.yaml.
func (s *Store) Prune(ctx context.Context) (int, error) {
	if len(s.policies) == 0 {
		return 0, errors.New(
			"prune: no topic has a known retention: name the topics in StoreConfig.Retention, or run `outboxgen prune`")
	}
	total := 0
	for topic, known := range s.policies {
		n, err := retention.Queue(ctx, s.db, s.pool, s.namespace, topic, known.retention)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// guarded runs call in a READ COMMITTED transaction.
func (s *Store) guarded(ctx context.Context, what string, call func(*queries.Queries) error) error {
	return s.db.Wrap(what, s.db.InTx(ctx, s.pool, call))
}
