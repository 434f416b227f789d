package admin

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// forgetPiece is how many rows of a table one statement of a forget reads, and forgetChunk how many one transaction
// deletes.
const forgetPiece, forgetChunk = 5000, 500

// forgetting is one call of Forget.
type forgetting struct {
	*Admin
	scope  ForgetScope
	act    Act
	groups []string // consumer groups that have recorded something

	report         ForgetReport
	topics         map[string]*ForgetTopic
	found, deleted map[string]int64 // by table
	tenants        []uuid.NullUUID
	severalTenants error
	replay         error

	size, scanned int64 // about how many rows there are, and how many were read
	no            int64 // of the entry of the audit; 0 before
	said          time.Time
	left          int64 // undelivered events that the latest pass has left
}

// plan looks for everything, and counts.
func (f *forgetting) plan(ctx context.Context) error {
	q := f.db.EachPlanned(f.pool)
	var err error
	if f.groups, err = f.db.Each(f.pool).InboxGroups(ctx); err != nil {
		return err
	}
	if f.size, err = f.estimate(ctx); err != nil {
		return err
	}
	cursors, err := f.Listeners(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(cursors, func(s ListenerStatus) bool { return s.State == ListenerRestored }) {
		return outbox.ErrRestored
	}
	f.topics = make(map[string]*ForgetTopic)
	if err := f.pass(ctx, f.count()); err != nil {
		return err
	}
	if f.scope.TenantID.Valid && f.scope.EntityType == "" {
		rest, err := q.ForgetRest(ctx, pgvalue.UUID(f.scope.TenantID.UUID))
		if err != nil {
			return err
		}
		f.found["pauses"], f.found["limit_usage"] = rest.Pauses, rest.LimitKeys
	}
	if f.found["audit"], err = f.auditTexts(ctx, false); err != nil {
		return err
	}
	return f.check(ctx)
}

// estimate is about how many rows a pass reads, by the statistics of the planner.
func (f *forgetting) estimate(ctx context.Context) (n int64, err error) {
	tables := []string{"dead_letters", "parked", "inbox_messages", "inbox_quarantined", "entity_versions"}
	if f.scope.EntityType == "" {
		tables = append(tables, "events", "log")
	}
	err = f.pool.QueryRow(ctx, `SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint FROM pg_catalog.pg_class AS c
		JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = ANY ($2::text[])`,
		f.db.Name(), tables).Scan(&n)
	return n, err
}

// check finds out why a forget of what was found must not begin.
func (f *forgetting) check(ctx context.Context) error {
	if f.scope.EntityType != "" && !f.foundAny() {
		types, err := f.EntityTypes(ctx)
		if err != nil {
			return err
		}
		open, err := f.open(ctx)
		if err != nil {
			return err
		}
		if !open && !slices.Contains(types, f.scope.EntityType) {
			return &UnknownEntityError{Type: f.scope.EntityType, Known: types}
		}
	}
	if len(f.tenants) > 1 && !f.scope.AnyTenant && !f.scope.TenantID.Valid {
		f.severalTenants = &SeveralTenantsError{
			Entity: f.scope.EntityType + "/" + f.scope.EntityID, Tenants: f.tenants,
		}
	}
	replays, err := f.db.Each(f.pool).ForgetReplays(ctx)
	for _, r := range replays {
		if !f.scope.TenantID.Valid || r.TenantID == "" || r.TenantID == f.scope.TenantID.UUID.String() {
			f.replay = &ReplayRunsError{Who: r.Who, Since: r.At.Time}
			break
		}
	}
	return err
}

// foundAny reports whether anything was found, apart from texts of the audit.
func (f *forgetting) foundAny() bool {
	for table, n := range f.found {
		if n > 0 && table != "audit" {
			return true
		}
	}
	return false
}

// open reports whether a forget of the same scope was begun and has not ended.
func (f *forgetting) open(ctx context.Context) (bool, error) {
	own := f.scope.auditScope()
	rows, err := f.db.Each(f.pool).ForgetBroken(ctx)
	for _, r := range rows {
		var s auditScope
		if json.Unmarshal(r.Scope, &s) == nil && s.sameForget(own) {
			return true, nil
		}
	}
	return false, err
}

// count returns visits that count what they see.
func (f *forgetting) count() visits {
	return visits{
		events: func(_ context.Context, rows []queries.ForgetEventsScanRow) error {
			for _, r := range rows {
				t := f.topic(r.Namespace, r.Topic, false)
				t.Events++
				f.found["events"]++
				f.found["processed_events"] += r.Processed
				f.tenant(r.TenantID)
				switch r.Status {
				case "pending", "processing":
					where := "queue"
					if r.Status == "processing" {
						where = "queue, in flight"
						f.report.InFlight++
					}
					t.Undelivered++
					f.found["queue"]++
					f.waits(r.ID.Bytes, t.Topic, where)
				case "delivered":
					t.Delivered++
					f.found["delivered"]++
				case "dead":
					t.Dead++
				}
			}
			return nil
		},
		log: func(_ context.Context, rows []queries.ForgetLogScanRow) error {
			for _, r := range rows {
				t := f.topic(r.Namespace, r.Topic, true)
				t.Events++
				f.found["log"]++
				f.found["listener_failures"] += r.Heard
				f.found["processed_events"] += r.Processed
				f.tenant(r.TenantID)
				if r.Passed {
					t.Delivered++
					continue
				}
				t.Undelivered++
				f.waits(r.ID.Bytes, t.Topic, "log, before a listener")
			}
			return nil
		},
		dead: func(_ context.Context, rows []queries.ForgetDeadScanRow) error {
			for _, r := range rows {
				f.found["dead_letters"]++
				f.tenant(r.TenantID)
			}
			return nil
		},
		parked: func(_ context.Context, rows []queries.ForgetParkedScanRow) error {
			for _, r := range rows {
				f.found["parked"]++
				f.tenant(r.TenantID)
				f.waits(r.ID.Bytes, fullName(r.Namespace, r.Topic), "parked by listener "+r.Listener)
			}
			return nil
		},
		inbox: func(_ context.Context, rows []queries.ForgetInboxScanRow) error {
			for _, r := range rows {
				f.found["inbox_messages"]++
				f.tenant(r.TenantID)
				if r.Status != "dead" {
					f.waits(r.EventID.Bytes, fullName(r.Namespace, r.Topic), "parked by consumer "+r.ConsumerGroup)
				}
			}
			return nil
		},
		quarantined: func(_ context.Context, rows []queries.ForgetQuarantinedScanRow) error {
			f.found["inbox_quarantined"] += int64(len(rows))
			for _, r := range rows {
				f.tenantOrNone(r.TenantID)
			}
			return nil
		},
		versions: func(_ context.Context, rows []queries.ForgetVersionsScanRow) error {
			f.found["entity_versions"] += int64(len(rows))
			for _, r := range rows {
				f.tenantOrNone(r.TenantID)
			}
			return nil
		},
	}
}

func (f *forgetting) topic(namespace, topic string, log bool) *ForgetTopic {
	key := fullName(namespace, topic)
	if log {
		key += " log"
	}
	if f.topics[key] == nil {
		f.topics[key] = &ForgetTopic{Topic: fullName(namespace, topic), Log: log}
	}
	return f.topics[key]
}

// waits notes something that is not delivered yet.
func (f *forgetting) waits(id uuid.UUID, topic, where string) {
	f.report.Undelivered++
	if len(f.report.Listed) < maxForgetListed {
		f.report.Listed = append(f.report.Listed, ForgetUndelivered{ID: id, Topic: topic, Where: where})
	}
}

// maxForgetTenants is how many tenants of an entity are told apart.
const maxForgetTenants = 5

// tenant notes whose something is.
func (f *forgetting) tenant(id pgtype.UUID) {
	t := uuid.NullUUID{UUID: id.Bytes, Valid: id.Valid}
	if f.scope.EntityType != "" && len(f.tenants) < maxForgetTenants && !slices.Contains(f.tenants, t) {
		f.tenants = append(f.tenants, t)
	}
}

// tenantOrNone is tenant for the tables of the inbox, where the zero UUID means no tenant.
func (f *forgetting) tenantOrNone(id pgtype.UUID) {
	id.Valid = id.Bytes != uuid.Nil
	if !id.Valid {
		id.Bytes = uuid.Nil
	}
	f.tenant(id)
}

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
		Groups: f.groups, AfterID: pgtype.UUID{Valid: true}, Piece: forgetPiece,
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
		Groups: f.groups, AfterSeq: math.MinInt64, Piece: forgetPiece,
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
