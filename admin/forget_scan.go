package admin

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// visits are called with what each piece of a table has.
type visits struct {
	events      func(context.Context, []queries.ForgetEventsScanRow) error
	log         func(context.Context, []queries.ForgetLogScanRow) error
	dead        func(context.Context, []queries.ForgetDeadScanRow) error
	parked      func(context.Context, []queries.ForgetParkedScanRow) error
	inbox       func(context.Context, []queries.ForgetInboxScanRow) error
	quarantined func(context.Context, []queries.ForgetQuarantinedScanRow) error
	versions    func(context.Context, []queries.ForgetVersionsScanRow) error
}

// pass goes through all tables once, in pieces, and calls v.
func (f *forgetting) pass(ctx context.Context, v visits) error {
	f.scanned = 0
	for _, scan := range []func(context.Context, visits) error{
		f.scanEvents, f.scanLog, f.scanDead, f.scanParked, f.scanInbox, f.scanQuarantined, f.scanVersions,
	} {
		if err := scan(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// pieces reads a table piece by piece. read returns the rows of a piece; the last of them, which does not match, says how
// many rows the piece had.
func pieces[R any](
	ctx context.Context, f *forgetting, read func(context.Context, *queries.Queries) ([]R, error), scanned func(R) int64,
	visit func(context.Context, []R) error,
) error {
	for {
		rows, err := read(ctx, f.db.Each(f.pool))
		if err != nil {
			return err
		}
		n := scanned(rows[len(rows)-1])
		if rows = rows[:len(rows)-1]; len(rows) > 0 {
			if err := visit(ctx, rows); err != nil {
				return err
			}
		}
		f.scanned += n
		f.progress(f.scanned, max(f.size, f.scanned))
		if err := f.beat(ctx); err != nil || n < forgetPiece {
			return err
		}
	}
}

func (f *forgetting) scanEvents(ctx context.Context, v visits) error {
	p := queries.ForgetEventsScanParams{
		EntityType: f.scope.EntityType, EntityID: f.scope.EntityID, TenantID: pgvalue.NullUUID(f.scope.TenantID),
		AfterID: pgtype.UUID{Valid: true}, Piece: forgetPiece,
		AfterAt: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
	}
	return pieces(ctx, f, func(ctx context.Context, q *queries.Queries) ([]queries.ForgetEventsScanRow, error) {
		rows, err := q.ForgetEventsScan(ctx, p)
		if err == nil {
			p.AfterID, p.AfterAt = rows[len(rows)-1].ID, rows[len(rows)-1].CreatedAt
		}
		return rows, err
	}, func(r queries.ForgetEventsScanRow) int64 { return r.Scanned }, v.events)
}

func (f *forgetting) scanLog(ctx context.Context, v visits) error {
	p := queries.ForgetLogScanParams{
		EntityType: f.scope.EntityType, EntityID: f.scope.EntityID, TenantID: pgvalue.NullUUID(f.scope.TenantID),
		AfterSeq: math.MinInt64, Piece: forgetPiece,
		AfterAt: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
	}
	return pieces(ctx, f, func(ctx context.Context, q *queries.Queries) ([]queries.ForgetLogScanRow, error) {
		rows, err := q.ForgetLogScan(ctx, p)
		if err == nil {
			p.AfterSeq, p.AfterAt = rows[len(rows)-1].Seq, rows[len(rows)-1].CreatedAt
		}
		return rows, err
	}, func(r queries.ForgetLogScanRow) int64 { return r.Scanned }, v.log)
}

func (f *forgetting) scanDead(ctx context.Context, v visits) error {
	p := queries.ForgetDeadScanParams{
		EntityType: f.scope.EntityType, EntityID: f.scope.EntityID, TenantID: pgvalue.NullUUID(f.scope.TenantID),
		Piece: forgetPiece,
	}
	return pieces(ctx, f, func(ctx context.Context, q *queries.Queries) ([]queries.ForgetDeadScanRow, error) {
		rows, err := q.ForgetDeadScan(ctx, p)
		if err == nil {
			p.AfterNo = rows[len(rows)-1].No
		}
		return rows, err
	}, func(r queries.ForgetDeadScanRow) int64 { return r.Scanned }, v.dead)
}

func (f *forgetting) scanParked(ctx context.Context, v visits) error {
	p := queries.ForgetParkedScanParams{
		EntityType: f.scope.EntityType, EntityID: f.scope.EntityID, TenantID: pgvalue.NullUUID(f.scope.TenantID),
		Piece: forgetPiece,
	}
	return pieces(ctx, f, func(ctx context.Context, q *queries.Queries) ([]queries.ForgetParkedScanRow, error) {
		rows, err := q.ForgetParkedScan(ctx, p)
		if err == nil {
			p.AfterNo = rows[len(rows)-1].No
		}
		return rows, err
	}, func(r queries.ForgetParkedScanRow) int64 { return r.Scanned }, v.parked)
}

// inboxPiece is how many messages one statement reads: with their bodies, which may be large.
const inboxPiece = 200

func (f *forgetting) scanInbox(ctx context.Context, v visits) error {
	p := queries.ForgetInboxScanParams{
		TenantID: pgvalue.NullUUID(f.scope.TenantID), Bodies: f.scope.EntityType != "", Piece: inboxPiece,
	}
	return pieces(ctx, f, func(ctx context.Context, q *queries.Queries) ([]queries.ForgetInboxScanRow, error) {
		rows, err := q.ForgetInboxScan(ctx, p)
		if err != nil {
			return nil, err
		}
		last := rows[len(rows)-1]
		p.AfterNo = last.No
		rows = slices.DeleteFunc(rows[:len(rows)-1], func(r queries.ForgetInboxScanRow) bool { return !f.scope.isOf(r) })
		if last.Scanned == inboxPiece {
			last.Scanned = forgetPiece // it was a full piece
		}
		return append(rows, last), nil
	}, func(r queries.ForgetInboxScanRow) int64 { return r.Scanned }, v.inbox)
}

// isOf reports whether a message is about the entity of s: its attributes, its headers or its body say so.
func (s ForgetScope) isOf(r queries.ForgetInboxScanRow) bool {
	if s.EntityType == "" {
		return true
	}
	var kind, id string
	for name, value := range headersOf(r.Envelope) {
		switch strings.ToLower(name) {
		case "ce_entitytype", "outbox-entity-type":
			kind = value
		case "ce_entityid", "outbox-entity-id":
			id = value
		}
	}
	if kind == "" {
		var body struct{ EntityType, EntityID string }
		_ = json.Unmarshal(r.Body, &body) // what is not JSON has none
		kind, id = body.EntityType, body.EntityID
	}
	return kind == s.EntityType && id == s.EntityID
}

func (f *forgetting) scanQuarantined(ctx context.Context, v visits) error {
	p := queries.ForgetQuarantinedScanParams{
		EntityType: f.scope.EntityType, EntityID: f.scope.EntityID, TenantID: pgvalue.NullUUID(f.scope.TenantID),
		AfterID: pgtype.UUID{Valid: true}, Piece: forgetPiece,
	}
	return pieces(ctx, f, func(ctx context.Context, q *queries.Queries) ([]queries.ForgetQuarantinedScanRow, error) {
		rows, err := q.ForgetQuarantinedScan(ctx, p)
		if err == nil {
			p.AfterGroup, p.AfterID = rows[len(rows)-1].ConsumerGroup, rows[len(rows)-1].EventID
		}
		return rows, err
	}, func(r queries.ForgetQuarantinedScanRow) int64 { return r.Scanned }, v.quarantined)
}

func (f *forgetting) scanVersions(ctx context.Context, v visits) error {
	p := queries.ForgetVersionsScanParams{
		EntityType: f.scope.EntityType, EntityID: f.scope.EntityID, TenantID: pgvalue.NullUUID(f.scope.TenantID),
		AfterTenant: pgtype.UUID{Valid: true}, Piece: forgetPiece,
	}
	return pieces(ctx, f, func(ctx context.Context, q *queries.Queries) ([]queries.ForgetVersionsScanRow, error) {
		rows, err := q.ForgetVersionsScan(ctx, p)
		if err == nil {
			last := rows[len(rows)-1]
			p.AfterGroup, p.AfterSource, p.AfterTenant = last.ConsumerGroup, last.Source, last.TenantID
			p.AfterType, p.AfterEntity = last.EntityType, last.EntityID
		}
		return rows, err
	}, func(r queries.ForgetVersionsScanRow) int64 { return r.Scanned }, v.versions)
}
