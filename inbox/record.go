package inbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// RecordError says which event of a batch Record refused.
type RecordError struct {
	Index int   // of the event in the batch
	Err   error // why; it wraps ErrInvalidEvent or ErrStale
}

// Error returns the text of Err.
func (e *RecordError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RecordError) Unwrap() error { return e.Err }

// Record is Once and Apply for a batch whose effects the caller runs. It records events as handled in tx, in at most
// two round trips, and returns the outcome of each. The caller must then write the effects of those that are Applied
// with tx, in the order of the batch, and roll tx back if one of them fails. An event with Version 0 is recorded as by
// Once and needs no entity; the others are recorded as by Apply, those of one entity in the order of the batch. If an
// event comes twice in the batch, the second is a Duplicate.
//
// An event that is not valid is a *RecordError that wraps ErrInvalidEvent; it is found before anything is sent, so tx
// stays usable. With Config.Stale Error, a stale event is a *RecordError that wraps ErrStale. After that one, as after
// an error of PostgreSQL, roll tx back. Batches with events in common wait for each other. They take events in one
// order, and then entities in one order, so they cannot deadlock if their transactions do nothing else.
func (i *Inbox) Record(ctx context.Context, tx pgx.Tx, events []Event) ([]Outcome, error) {
	if isnil.Is(tx) {
		return nil, fmt.Errorf("record %d events: %w", len(events), errNoTx)
	}
	var plain, versioned []int // indexes in events
	for n := range events {
		var err error
		switch e := &events[n]; {
		case e.ID == uuid.Nil:
			err = errZeroID
		case e.Version == 0:
			plain = append(plain, n)
		default:
			err = e.check()
			versioned = append(versioned, n)
		}
		if err != nil {
			return nil, &RecordError{n, fmt.Errorf("record event %s: %w", events[n].ID, err)}
		}
	}
	outcomes := make([]Outcome, len(events))
	if i.cfg.Identity != ByID {
		events = slices.Clone(events)
		for n := range events {
			events[n].ID = i.RecordID(events[n])
		}
	}
	if err := i.recordPlain(ctx, tx, events, plain, outcomes); err != nil {
		return nil, err
	}
	if err := i.recordVersioned(ctx, tx, events, versioned, outcomes); err != nil {
		return nil, err
	}
	return outcomes, nil
}

// recordPlain records events without a version.
func (i *Inbox) recordPlain(ctx context.Context, tx pgx.Tx, events []Event, plain []int, outcomes []Outcome) error {
	if len(plain) == 0 {
		return nil
	}
	first := make(map[uuid.UUID]int, len(plain))
	ids := make([]pgtype.UUID, 0, len(plain))
	for _, n := range plain {
		outcomes[n] = Duplicate
		if _, twice := first[events[n].ID]; !twice {
			first[events[n].ID] = n
			ids = append(ids, pgvalue.UUID(events[n].ID))
		}
	}
	slices.SortFunc(ids, func(a, b pgtype.UUID) int { return bytes.Compare(a.Bytes[:], b.Bytes[:]) })
	recorded, err := i.db.On(tx).ProcessedInsertMany(ctx, queries.ProcessedInsertManyParams{
		ConsumerGroup: i.cfg.Group, EventIds: ids,
	})
	if err != nil {
		return i.db.Wrap(fmt.Sprintf("record %d events", len(ids)), err)
	}
	for _, id := range recorded {
		outcomes[first[id.Bytes]] = Applied
	}
	return nil
}

// recordVersioned records events with a version, one statement each, in one round trip.
func (i *Inbox) recordVersioned(
	ctx context.Context, tx pgx.Tx, events []Event, versioned []int, outcomes []Outcome,
) error {
	if len(versioned) == 0 {
		return nil
	}
	slices.SortStableFunc(versioned, func(x, y int) int {
		a, b := &events[x], &events[y]
		at, bt := a.tenant(), b.tenant()
		return cmp.Or(cmp.Compare(a.Source, b.Source), bytes.Compare(at.Bytes[:], bt.Bytes[:]),
			cmp.Compare(a.EntityType, b.EntityType), cmp.Compare(a.EntityID, b.EntityID))
	})
	var batch pgx.Batch
	for _, n := range versioned {
		e := &events[n]
		i.db.Queue(&batch, func(q *queries.Queries) {
			_, _ = q.VersionAdvance(ctx, queries.VersionAdvanceParams{
				ConsumerGroup: i.cfg.Group, EventID: pgvalue.UUID(e.ID), Source: e.Source, TenantID: e.tenant(),
				EntityType: e.EntityType, EntityID: e.EntityID, Version: e.Version,
			})
		})
	}
	results := tx.SendBatch(ctx, &batch)
	var late []int
	for _, n := range versioned {
		var fresh, moved bool
		if err := results.QueryRow().Scan(&fresh, &moved); err != nil {
			_ = results.Close() // the same error
			return i.db.Wrap(fmt.Sprintf("apply event %s", events[n].ID), err)
		}
		switch {
		case !fresh:
			outcomes[n] = Duplicate
		case !moved:
			late = append(late, n)
		default:
			outcomes[n] = Applied
		}
	}
	if err := results.Close(); err != nil {
		return i.db.Wrap(fmt.Sprintf("apply %d events", len(versioned)), err)
	}
	slices.Sort(late) // the first of the batch is the one that is reported
	for _, n := range late {
		outcome, err := i.stale(ctx, i.db.On(tx), &events[n])
		if err != nil {
			return &RecordError{n, err}
		}
		outcomes[n] = outcome
	}
	return nil
}

// LastVersion returns the version that the group has applied last for the entity of e, which makes e stale if its
// Version is not above it; 0 if there is none. tx may be any transaction.
func (i *Inbox) LastVersion(ctx context.Context, tx pgx.Tx, e Event) (int64, error) {
	if isnil.Is(tx) {
		return 0, fmt.Errorf("read last version: %w", errNoTx)
	}
	last, err := i.db.On(tx).VersionLast(ctx, queries.VersionLastParams{
		ConsumerGroup: i.cfg.Group, Source: e.Source, TenantID: e.tenant(), EntityType: e.EntityType, EntityID: e.EntityID,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return last.Version, i.db.Wrap(fmt.Sprintf("read last version of %s %q", e.EntityType, e.EntityID), err)
}

// Group returns Config.Group.
func (i *Inbox) Group() string { return i.cfg.Group }

// Schema returns the name of the schema of the tables.
func (i *Inbox) Schema() string { return i.db.Name() }
