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

	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// maxEntityBytes is the longest entity type, entity id and source. Producers have the same limit for the first two.
const maxEntityBytes = 512

// Event is the metadata that Apply needs of an event.
type Event struct {
	ID uuid.UUID
	// Type and DedupeKey are the type of the message, such as billing.invoice_paid, and the dedupe key of its producer.
	// Only an inbox with ByDedupeKey reads them; either may be empty.
	Type, DedupeKey string
	// Source names the service that gives the entity its id and versions, in up to 512 bytes. Entities of different
	// sources are different entities, even with the same type and id. "" is a source like any other; use it if there is
	// only one.
	Source string
	// TenantID is the tenant of the entity; the zero value means no tenant. Entities of different tenants are different
	// entities, too.
	TenantID uuid.NullUUID
	// EntityType and EntityID name the entity that the event is about. Each has 1 to 512 bytes.
	EntityType, EntityID string
	// Version is the version of the entity after the change that the event reports. It counts from 1 and grows with each
	// event of the entity. 0, an event without a version, is ErrInvalidEvent.
	Version int64
	// Payload is stored with the event if Apply quarantines it. Apply does not read it; nil stores none.
	Payload []byte
}

// LogValue logs the identifying fields of an event. It never logs the payload.
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

// tenant is the tenant in the key of the entity: the zero UUID means no tenant.
func (e *Event) tenant() pgtype.UUID {
	if !e.TenantID.Valid {
		return pgvalue.UUID(uuid.Nil)
	}
	return pgvalue.UUID(e.TenantID.UUID)
}

// check finds the faults of e. Sent to PostgreSQL they would abort the caller's transaction.
func (e *Event) check() error {
	if e.ID == uuid.Nil {
		return errZeroID
	}
	for _, part := range [...]struct{ name, text string }{
		{"entity type", e.EntityType}, {"entity id", e.EntityID}, {"source", e.Source},
	} {
		var wrong string
		switch {
		case part.text == "" && part.name != "source":
			wrong = "is empty"
		case len(part.text) > maxEntityBytes:
			wrong = fmt.Sprintf("has %d bytes, at most %d allowed", len(part.text), maxEntityBytes)
		case !utf8.ValidString(part.text) || strings.IndexByte(part.text, 0) >= 0:
			wrong = "has a NUL byte or is not valid UTF-8"
		default:
			continue
		}
		return fmt.Errorf("%s %s: %w", part.name, wrong, ErrInvalidEvent)
	}
	if e.Version < 1 {
		return fmt.Errorf("entity version %d is below 1: %w", e.Version, ErrInvalidEvent)
	}
	return nil
}

// Outcome says what Apply did with an event.
type Outcome string

// The outcomes of Apply. Only Applied means that the effect ran. An outcome is final once the transaction has
// committed.
const (
	Applied     Outcome = "applied"
	Duplicate   Outcome = "duplicate"   // was recorded before
	Skipped     Outcome = "skipped"     // is stale, with Skip
	Quarantined Outcome = "quarantined" // is stale; a copy is kept, with Quarantine
)

// Apply is Once for an event that carries the version of an entity. It records the event as handled and the version as
// the entity's last one, then runs fn, all in tx. Source, tenant, type and id together identify an entity. An event
// whose version is not above the last one that the group has applied is stale: fn does not run, and Config.Stale
// decides what happens.
//
// Apply does not wait for missing versions. Version 7 is applied after version 4; 5 and 6 are stale when they arrive.
// So fn must set the whole state that the event reports. For an event that only reports a difference (add 5), use Once:
// Apply would lose the differences in the gap.
//
// Waiting, errors of fn and isolation levels are as with Once. Events of one entity wait for each other until the
// transaction ends. So a transaction that applies events of several entities must take the entities in one order, for
// example by source, tenant, type and id, or it may deadlock with another one. After ErrStale, as after an error of fn,
// roll the transaction back. With an error the Outcome is empty.
func (i *Inbox) Apply(ctx context.Context, tx pgx.Tx, e Event, fn func(ctx context.Context) error) (Outcome, error) {
	if fn == nil {
		return "", fmt.Errorf("apply event %s: %w", e.ID, errNoFunc)
	}
	if isnil.Is(tx) {
		return "", fmt.Errorf("apply event %s: %w", e.ID, errNoTx)
	}
	if err := e.check(); err != nil {
		return "", fmt.Errorf("apply event %s: %w", e.ID, err)
	}
	e.ID = i.RecordID(e)
	q := i.db.On(tx)
	row, err := q.VersionAdvance(ctx, queries.VersionAdvanceParams{
		ConsumerGroup: i.cfg.Group, EventID: pgvalue.UUID(e.ID), Source: e.Source, TenantID: e.tenant(),
		EntityType: e.EntityType, EntityID: e.EntityID, Version: e.Version,
	})
	switch {
	case err != nil:
		return "", i.db.Wrap(fmt.Sprintf("apply event %s", e.ID), err)
	case !row.Fresh:
		return Duplicate, nil
	case !row.Moved:
		return i.stale(ctx, q, &e)
	}
	if err := call(ctx, fn); err != nil {
		return "", err
	}
	return Applied, nil
}

// stale handles an event whose version is not above the last one of its entity.
func (i *Inbox) stale(ctx context.Context, q *queries.Queries, e *Event) (Outcome, error) {
	switch i.cfg.Stale {
	case Error:
		last, err := q.VersionLast(ctx, queries.VersionLastParams{
			ConsumerGroup: i.cfg.Group, Source: e.Source, TenantID: e.tenant(), EntityType: e.EntityType, EntityID: e.EntityID,
		})
		if err != nil {
			return "", i.db.Wrap(fmt.Sprintf("read last version of %s %q", e.EntityType, e.EntityID), err)
		}
		return "", fmt.Errorf("apply event %s: version %d of %s %q: %w: version %d was set by event %s",
			e.ID, e.Version, e.EntityType, e.EntityID, ErrStale, last.Version, uuid.UUID(last.EventID.Bytes))
	case Quarantine:
		err := q.InboxQuarantine(ctx, queries.InboxQuarantineParams{
			ConsumerGroup: i.cfg.Group, EventID: pgvalue.UUID(e.ID), Source: e.Source, TenantID: e.tenant(),
			EntityType: e.EntityType, EntityID: e.EntityID, Version: e.Version, Payload: e.Payload,
		})
		if err != nil {
			return "", i.db.Wrap(fmt.Sprintf("quarantine event %s", e.ID), err)
		}
		return Quarantined, nil
	}
	return Skipped, nil
}
