package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// DeadGroup is a number of dead letters of one topic, and of one listener if it is a log topic, that have failed with
// the same error except for what differs from event to event: numbers, ids, hex strings, times, addresses and quoted
// values.
type DeadGroup struct {
	// ID is short and stays the same. Filter.Group selects by it.
	ID               string `json:"group"`
	Namespace, Topic string `json:"-"`
	Listener         string `json:"listener,omitempty"` // "" for a queue topic
	Consumer         string `json:"consumer,omitempty"` // the consumer group of a message
	Count            int64  `json:"count"`
	// Error is that of the dead letter that died last.
	Error       string    `json:"error"`
	FirstDiedAt time.Time `json:"first_died_at"`
	LastDiedAt  time.Time `json:"last_died_at"`
	// Tenants is how many tenants have such dead letters, up to MaxGroupTenants.
	Tenants int `json:"tenants"`
}

// Name returns "namespace/topic", or the type of a message that belongs to no topic.
func (g DeadGroup) Name() string { return fullName(g.Namespace, g.Topic) }

// MaxGroupTenants is the number up to which the tenants of a DeadGroup are counted.
const MaxGroupTenants = 1000

// DeadLetter is an event that was given up, by the dispatchers of a queue topic or by a listener.
type DeadLetter struct {
	// No numbers the dead letters. It grows in about the order in which they died.
	No int64
	// Listener gave the event up; "" for a queue topic.
	Listener string
	// Consumer is the consumer group that could not apply a message, and Place is where its broker had it. Such a letter
	// has no Failures. Its Body is that of the message, and also the Payload if it is JSON. The event has what could be
	// read, with the attributes as headers that begin with ce_. ReceivedAt is when the message arrived; the event's
	// CreatedAt is the same if the message does not say when it was enqueued. Since and Until of a Filter select by
	// ReceivedAt.
	Consumer, Place string
	Body            []byte
	ReceivedAt      time.Time
	// Event has in Attempt how often it was tried, and in MaxAttempts the attempts that it had; 0 if that is not known.
	outbox.Event
	Payload json.RawMessage
	// Failures are the latest failed attempts, at most five, oldest first.
	Failures []Failure
	Error    string
	DiedAt   time.Time
}

// Name returns "namespace/topic", or the type of a message that belongs to no topic.
func (d DeadLetter) Name() string { return fullName(d.Namespace, d.Topic) }

// deadRef names a dead letter that a filter selects.
type deadRef struct {
	no, seq             int64
	listener, namespace string
}

// deadPiece is how many dead letters one statement walks.
const deadPiece = 5000

// validateDead checks a filter of dead letters.
func (f Filter) validateDead() error {
	plain := f
	plain.Consumer = ""
	if err := plain.validate(); err != nil {
		return err
	}
	if f.Consumer != "" && f.Listener != "" {
		return argumentError("Filter", "Consumer and Listener cannot both be set")
	}
	if f.Entity != (outbox.Entity{}) || f.Correlation != "" || f.Causation != uuid.Nil {
		return argumentError("Filter", "Entity, Correlation and Causation select events and not dead letters: pass the IDs of the events")
	}
	if f.Status != "" && f.Status != StatusDead {
		return argumentError("Filter", "status %s does not fit dead letters: leave it out", f.Status)
	}
	if slices.Contains(f.IDs, uuid.Nil) {
		return argumentError("Filter", "an id is the zero UUID")
	}
	return nil
}

// deadScan says how dead letters are read: in pieces by no, oldest first, or newest first and below before, if that is
// positive.
type deadScan struct {
	newest bool
	before int64
	texts  bool // visit gets the errors
	most   int  // how many are read, selected or not; 0 means all
}

// scanDead calls visit with the dead letters that f selects. It ends when visit returns false. more says that there are
// others than the most that were read. Each piece is read in a separate transaction.
func (a *Admin) scanDead(
	ctx context.Context, f Filter, s deadScan, visit func(queries.DeadLetterScanRow) bool,
) (more bool, err error) {
	p := queries.DeadLetterScanParams{
		Ids: pgvalue.UUIDs(slices.Compact(slices.SortedFunc(slices.Values(f.IDs), func(a, b uuid.UUID) int {
			return bytes.Compare(a[:], b[:])
		}))),
		Newest: s.newest, Texts: s.texts || f.Group != "", Namespace: f.Namespace, Topic: f.Topic, Listener: f.Listener,
		TenantID: pgvalue.NullUUID(f.TenantID), Key: f.Key, Since: pgvalue.Time(pgvalue.Clamp(f.Since)),
		Until: pgvalue.Time(pgvalue.Clamp(f.Until)), Error: f.Error,
	}
	if s.newest {
		p.AfterNo = cmp.Or(s.before, math.MaxInt64)
	}
	q := a.db.Each(a.pool)
	for read := 0; ; read += int(p.Piece) {
		p.Piece = deadPiece
		if s.most > 0 {
			p.Piece = int32(min(max(s.most-read, 1), deadPiece))
		}
		rows, err := scanPiece(ctx, q, f.Consumer, p)
		if err != nil {
			return false, err
		}
		if s.most > 0 && read == s.most {
			return slices.ContainsFunc(rows, func(r queries.DeadLetterScanRow) bool { return r.Scanned > 0 }), nil
		}
		for _, r := range rows {
			switch {
			case !r.Matches:
				if len(p.Ids) > 0 || r.Scanned < int64(p.Piece) {
					return false, nil
				}
				p.AfterNo = r.No
			case f.Group != "" && groupID(r.Namespace, r.Topic, ownerOf(r.Listener, f.Consumer), r.Error) != f.Group:
			case s.newest && len(p.Ids) > 0 && s.before > 0 && r.No >= s.before:
			case !visit(r):
				return false, nil
			}
		}
	}
}

// DeadGroups groups the dead letters that f selects by topic, listener and error, the largest group first. It reads all
// of them, in pieces: a million takes some seconds.
func (a *Admin) DeadGroups(ctx context.Context, f Filter) ([]DeadGroup, error) {
	groups, _, err := a.deadGroups(ctx, f, deadScan{texts: true})
	return groups, err
}

// LatestDeadGroups is DeadGroups of the latest most dead letters, as far as f selects them. more reports that there are
// older ones, which were not read, so that the groups may have more dead letters than Count. Reading 20,000 takes about
// a tenth of a second. If f has IDs, all of these events are read.
func (a *Admin) LatestDeadGroups(ctx context.Context, f Filter, most int) (groups []DeadGroup, more bool, err error) {
	if most < 1 {
		return nil, false, fmt.Errorf("group dead letters: %d is not a positive number of dead letters", most)
	}
	return a.deadGroups(ctx, f, deadScan{newest: true, texts: true, most: most})
}

func (a *Admin) deadGroups(ctx context.Context, f Filter, s deadScan) ([]DeadGroup, bool, error) {
	const what = "group dead letters"
	if err := f.validateDead(); err != nil {
		return nil, false, fmt.Errorf("%s: %w", what, err)
	}
	type group struct {
		DeadGroup
		lastNo  int64 // of several that died at LastDiedAt
		tenants map[uuid.UUID]struct{}
	}
	groups := make(map[string]*group)
	more, err := a.scanDead(ctx, f, s, func(r queries.DeadLetterScanRow) bool {
		key := groupKey(r.Namespace, r.Topic, ownerOf(r.Listener, f.Consumer), r.Error)
		g := groups[key]
		if g == nil {
			g = &group{
				DeadGroup{
					ID: groupIDOf(key), Namespace: r.Namespace, Topic: r.Topic, Listener: r.Listener, Consumer: f.Consumer,
					FirstDiedAt: r.DiedAt.Time.UTC(),
				}, 0, make(map[uuid.UUID]struct{}),
			}
			groups[key] = g
		}
		g.Count++
		if r.DiedAt.Time.Before(g.FirstDiedAt) {
			g.FirstDiedAt = r.DiedAt.Time.UTC()
		}
		if c := r.DiedAt.Time.Compare(g.LastDiedAt); c > 0 || c == 0 && r.No > g.lastNo {
			g.LastDiedAt, g.lastNo, g.Error = r.DiedAt.Time.UTC(), r.No, r.Error
		}
		if r.TenantID.Valid && len(g.tenants) < MaxGroupTenants {
			g.tenants[r.TenantID.Bytes] = struct{}{}
		}
		return true
	})
	if err != nil {
		return nil, false, a.db.Wrap(what, err)
	}
	list := make([]DeadGroup, 0, len(groups))
	for _, g := range groups {
		g.Tenants = len(g.tenants)
		list = append(list, g.DeadGroup)
	}
	slices.SortFunc(list, func(x, y DeadGroup) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Topic, y.Topic),
			cmp.Compare(x.Listener, y.Listener), cmp.Compare(x.ID, y.ID))
	})
	return list, more, nil
}

// DeadLetters returns up to limit dead letters that f selects, newest first: those that died last, or for a consumer
// group, those that arrived last. before is the No of the last one of the previous page; 0 means the first page.
func (a *Admin) DeadLetters(ctx context.Context, f Filter, before int64, limit int) ([]DeadLetter, error) {
	const what = "list dead letters"
	err := f.validateDead()
	if err == nil && (limit < 1 || before < 0) {
		err = argumentError("Page", "limit %d and before %d must be positive", limit, before)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	var nos []int64
	_, err = a.scanDead(ctx, f, deadScan{newest: true, before: before}, func(r queries.DeadLetterScanRow) bool {
		nos = append(nos, r.No)
		return len(nos) < limit || len(f.IDs) > 0 // those of ids come in no order
	})
	if err != nil {
		return nil, a.db.Wrap(what, err)
	}
	slices.SortFunc(nos, func(x, y int64) int { return cmp.Compare(y, x) })
	nos = nos[:min(len(nos), limit)]
	if len(nos) == 0 {
		return nil, nil
	}
	if f.Consumer != "" {
		letters, err := a.readConsumed(ctx, nos)
		return letters, a.db.Wrap(what, err)
	}
	rows, err := a.db.Each(a.pool).DeadLetterRead(ctx, nos)
	if err != nil {
		return nil, a.db.Wrap(what, err)
	}
	var ids []pgtype.UUID
	for _, r := range rows {
		if r.Listener != "" {
			ids = append(ids, r.ID)
		}
	}
	failures, err := listenerFailures(ctx, a.db.Each(a.pool), ids)
	if err != nil {
		return nil, a.db.Wrap(what, err)
	}
	letters := make([]DeadLetter, len(rows))
	for i, r := range rows {
		failed := failuresOf(r.Failures)
		if r.Listener != "" {
			failed = failures[atListener{r.ID.Bytes, r.Listener}]
		}
		letters[i] = DeadLetter{
			No: r.No, Listener: r.Listener, Payload: r.Payload, Failures: failed, Error: r.Error, DiedAt: r.DiedAt.Time.UTC(),
			Event: eventOf(outbox.Event{
				Namespace: r.Namespace, Topic: r.Topic, Version: int(r.Version), DedupeKey: r.DedupeKey,
				PartitionKey: r.PartitionKey, Entity: outbox.Entity{Type: r.EntityType, ID: r.EntityID, Version: r.EntityVersion},
				Attempt: int(r.Attempts), MaxAttempts: int(r.MaxAttempts), CreatedAt: r.CreatedAt.Time.UTC(),
			}, r.ID, r.TenantID, r.Headers),
		}
	}
	return letters, nil
}

// ownerOf names in a group who gave its dead letters up.
func ownerOf(listener, consumer string) string {
	if consumer != "" {
		return "consumer " + consumer // a space cannot be in the name of a listener
	}
	return listener
}

// selectDead returns the dead letters that f selects, up to limit if that is positive, oldest first.
func (a *Admin) selectDead(ctx context.Context, f Filter, limit int) (refs []deadRef, err error) {
	names := make(map[string]string) // so that equal names share memory
	name := func(s string) string {
		if known, ok := names[s]; ok {
			return known
		}
		names[s] = s
		return s
	}
	_, err = a.scanDead(ctx, f, deadScan{}, func(r queries.DeadLetterScanRow) bool {
		refs = append(refs, deadRef{no: r.No, seq: r.Seq, listener: name(r.Listener), namespace: name(r.Namespace)})
		return limit <= 0 || len(refs) < limit || len(f.IDs) > 0 // those of ids come in no order
	})
	slices.SortFunc(refs, func(x, y deadRef) int { return cmp.Compare(x.no, y.no) })
	if limit > 0 {
		refs = refs[:min(len(refs), limit)]
	}
	return refs, err
}
