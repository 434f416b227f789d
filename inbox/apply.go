package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/absent"
	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
)

// maxEntityBytes is what producers allow of an entity's type and id, each, and what a source may have.
const maxEntityBytes = 512

// Event is what Apply must know of an event.
type Event struct {
	ID uuid.UUID
	// Source names who emits the events of the entity, up to 512 bytes: the service that gives entities their ids and
	// versions. The entities of different sources are different, whatever their types and ids. "" is a source like any
	// other, for a consumer that has one only.
	Source string
	// TenantID is the tenant of the entity; the zero value means that it has none. The entities of different tenants are
	// different, too.
	TenantID uuid.NullUUID
	// EntityType and EntityID name what the event is about. Neither is empty, nor longer than 512 bytes.
	EntityType, EntityID string
	// Version of the entity after the change that the event tells of. It counts from 1 and grows with each event of
	// the entity; 0 is what an event without a version has, and refused.
	Version int64
	// Payload is kept with the event if it is parked, and not looked at; nil keeps none.
	Payload []byte
}

// LogValue logs an event by what identifies it: never its payload.
func (e Event) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("event_id", e.ID.String())}
	if e.Source != "" {
		attrs = append(attrs, slog.String("source", e.Source))
	}
	if e.TenantID.Valid {
		attrs = append(attrs, slog.String("tenant_id", e.TenantID.UUID.String()))
	}
	return slog.GroupValue(append(attrs, slog.String("entity_type", e.EntityType),
		slog.String("entity_id", e.EntityID), slog.Int64("entity_version", e.Version))...)
}

// tenant is what the key of the entity has for the tenant: the zero UUID for none.
func (e *Event) tenant() pgtype.UUID {
	if !e.TenantID.Valid {
		return pgvalue.UUID(uuid.Nil)
	}
	return pgvalue.UUID(e.TenantID.UUID)
}

// check finds what is wrong with e before anything is sent that would abort the caller's transaction.
func (e *Event) check() error {
	if e.ID == uuid.Nil {
		return errZeroID
	}
	for _, part := range [...]struct{ name, text string }{{"entity type", e.EntityType}, {"entity id", e.EntityID}, {"source", e.Source}} {
		var wrong string
		switch {
		case part.text == "" && part.name != "source":
			wrong = "is empty"
		case len(part.text) > maxEntityBytes:
			wrong = fmt.Sprintf("has %d bytes of at most %d", len(part.text), maxEntityBytes)
		case !utf8.ValidString(part.text) || strings.IndexByte(part.text, 0) >= 0:
			wrong = "holds a NUL or is not UTF-8"
		default:
			continue
		}
		return fmt.Errorf("%s %s: %w", part.name, wrong, ErrInvalidEvent)
	}
	if e.Version < 1 {
		return fmt.Errorf("entity version %d: versions count from 1: %w", e.Version, ErrInvalidEvent)
	}
	return nil
}

// Verdict tells what became of an event.
type Verdict string

// The verdicts of Apply. Only Applied ran the effect; each of them is final once the transaction commits.
const (
	Applied   Verdict = "applied"
	Duplicate Verdict = "duplicate" // recorded before
	Skipped   Verdict = "skipped"   // stale, with Skip
	Parked    Verdict = "parked"    // stale, with Park
)

// Apply is Once with a look at the entity's version: it records the event as handled and its version as the entity's
// last one, then runs fn, all in tx. An entity is known by its source, tenant, type and id. An event whose version is not
// above the last one that the group has applied is stale: fn is not run, and Config.Stale decides. A gap is none of its business: version 7 is applied after version 4,
// and 5 and 6 are stale when they come. So fn must set the state that the event tells, whole; an event that only tells
// a difference (add 5) would be lost with the gap, and wants Once.
//
// Waiting, errors of fn and isolation levels are as with Once. Events of one entity wait for each other until the
// transaction ends: a transaction that applies events of several entities takes them in one order, that of their sources,
// tenants, types and ids for example, or may deadlock with another. With ErrStale, as with an error of fn, the transaction must be rolled back. The
// Verdict is empty beside an error.
func (i *Inbox) Apply(ctx context.Context, tx pgx.Tx, e Event, fn func(ctx context.Context) error) (Verdict, error) {
	if fn == nil {
		return "", fmt.Errorf("apply event %s: %w", e.ID, errNoFunc)
	}
	if absent.Is(tx) {
		return "", fmt.Errorf("apply event %s: %w", e.ID, errNoTx)
	}
	if err := e.check(); err != nil {
		return "", fmt.Errorf("apply event %s: %w", e.ID, err)
	}
	q := i.db.On(tx)
	row, err := q.VersionAdvance(ctx, dbsqlc.VersionAdvanceParams{
		ConsumerGroup: i.cfg.Group, EventID: pgvalue.UUID(e.ID), Source: e.Source, TenantID: e.tenant(),
		EntityType: e.EntityType, EntityID: e.EntityID, Version: e.Version,
	})
	switch {
	case err != nil:
		return "", wrap(fmt.Sprintf("apply event %s", e.ID), err)
	case !row.Fresh:
		return Duplicate, nil
	case !row.Moved:
		return i.stale(ctx, q, &e)
	}
	if err := fn(ctx); err != nil {
		return "", err
	}
	return Applied, nil
}

// stale deals with an event whose version the entity has already, or is past.
func (i *Inbox) stale(ctx context.Context, q *dbsqlc.Queries, e *Event) (Verdict, error) {
	switch i.cfg.Stale {
	case Error:
		last, err := q.VersionLast(ctx, dbsqlc.VersionLastParams{
			ConsumerGroup: i.cfg.Group, Source: e.Source, TenantID: e.tenant(), EntityType: e.EntityType, EntityID: e.EntityID,
		})
		if err != nil {
			return "", wrap(fmt.Sprintf("read last version of %s %q", e.EntityType, e.EntityID), err)
		}
		return "", fmt.Errorf("apply event %s: version %d of %s %q: %w: version %d came with event %s",
			e.ID, e.Version, e.EntityType, e.EntityID, ErrStale, last.Version, uuid.UUID(last.EventID.Bytes))
	case Park:
		err := q.InboxPark(ctx, dbsqlc.InboxParkParams{
			ConsumerGroup: i.cfg.Group, EventID: pgvalue.UUID(e.ID), Source: e.Source, TenantID: e.tenant(),
			EntityType: e.EntityType, EntityID: e.EntityID, Version: e.Version, Payload: e.Payload,
		})
		if err != nil {
			return "", wrap(fmt.Sprintf("park event %s", e.ID), err)
		}
		return Parked, nil
	}
	return Skipped, nil
}
