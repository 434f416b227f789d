package admin

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/inbox"
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
		events: func(ctx context.Context, rows []queries.ForgetEventsScanRow) error {
			var recorded []pgtype.UUID
			for _, r := range rows {
				recorded = append(recorded, recordIDs(r.ID, r.Namespace, r.Topic, r.DedupeKey)...)
				t := f.topic(r.Namespace, r.Topic, false)
				t.Events++
				f.found["events"]++
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
			return f.countRecorded(ctx, recorded)
		},
		log: func(ctx context.Context, rows []queries.ForgetLogScanRow) error {
			var recorded []pgtype.UUID
			for _, r := range rows {
				recorded = append(recorded, recordIDs(r.ID, r.Namespace, r.Topic, r.DedupeKey)...)
				t := f.topic(r.Namespace, r.Topic, true)
				t.Events++
				f.found["log"]++
				f.found["listener_failures"] += r.Heard
				f.tenant(r.TenantID)
				if r.Passed {
					t.Delivered++
					continue
				}
				t.Undelivered++
				f.waits(r.ID.Bytes, t.Topic, "log, before a listener")
			}
			return f.countRecorded(ctx, recorded)
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
				f.tenant(r.TenantID)
			}
			return nil
		},
		versions: func(_ context.Context, rows []queries.ForgetVersionsScanRow) error {
			f.found["entity_versions"] += int64(len(rows))
			for _, r := range rows {
				f.tenant(r.TenantID)
			}
			return nil
		},
	}
}

// recordIDs are the ids under which consumer groups may have recorded an event: its own, and that of its dedupe key.
func recordIDs(id pgtype.UUID, namespace, topic, key string) []pgtype.UUID {
	if key == "" {
		return []pgtype.UUID{id}
	}
	return []pgtype.UUID{id, pgvalue.UUID(inbox.KeyID(namespace+"."+topic, key))}
}

func (f *forgetting) countRecorded(ctx context.Context, ids []pgtype.UUID) error {
	if len(f.groups) == 0 {
		return nil
	}
	n, err := f.db.Each(f.pool).ForgetRecordedCount(ctx, queries.ForgetRecordedCountParams{Groups: f.groups, Ids: ids})
	f.found["processed_events"] += n
	return err
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

// tenant notes whose something is, and returns it. In tables of the inbox, the zero UUID means no tenant.
func (f *forgetting) tenant(id pgtype.UUID) uuid.NullUUID {
	t := uuid.NullUUID{UUID: id.Bytes, Valid: id.Bytes != uuid.Nil}
	if f.scope.EntityType != "" && len(f.tenants) < maxForgetTenants && !slices.Contains(f.tenants, t) {
		f.tenants = append(f.tenants, t)
	}
	return t
}

// own returns those of rows that the forget is about. An entity whose tenant was not named has one tenant, that of the plan:
// what another one enqueues meanwhile, of the same name, is not deleted.
func own[R any](f *forgetting, rows []R, tenant func(R) pgtype.UUID) []R {
	if f.scope.EntityType == "" || f.scope.TenantID.Valid || f.scope.AnyTenant {
		return rows
	}
	return slices.DeleteFunc(rows, func(r R) bool { return f.tenant(tenant(r)) != f.tenants[0] })
}
