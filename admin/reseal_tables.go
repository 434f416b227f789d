package admin

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// resealedTable is a table that keeps payloads.
type resealedTable struct {
	name   string
	page   func(ctx context.Context, q *queries.Queries, after rowKey) ([]stored, error)
	update func(ctx context.Context, q *queries.Queries, at rowKey, was, now []byte) (int64, error)
}

// resealed are the tables that keep payloads.
var resealed = []resealedTable{
	{
		name: "events",
		page: func(ctx context.Context, q *queries.Queries, after rowKey) ([]stored, error) {
			rows, err := q.SealEventPage(ctx, queries.SealEventPageParams{After: pgvalue.UUID(after.id), PageSize: resealPage})
			return storedOf(rows, func(r *queries.SealEventPageRow) stored {
				return stored{rowKey: rowKey{id: r.ID.Bytes}, event: boundTo(r.ID, r.TenantID), payload: r.Payload}
			}), err
		},
		update: func(ctx context.Context, q *queries.Queries, at rowKey, was, now []byte) (int64, error) {
			return q.SealEventUpdate(ctx, queries.SealEventUpdateParams{ID: pgvalue.UUID(at.id), Was: was, Payload: now})
		},
	},
	{
		name: "log",
		page: func(ctx context.Context, q *queries.Queries, after rowKey) ([]stored, error) {
			rows, err := q.SealLogPage(ctx, queries.SealLogPageParams{After: after.no, PageSize: resealPage})
			return storedOf(rows, func(r *queries.SealLogPageRow) stored {
				return stored{rowKey: rowKey{no: r.Seq}, event: boundTo(r.ID, r.TenantID), payload: r.Payload}
			}), err
		},
		update: func(ctx context.Context, q *queries.Queries, at rowKey, was, now []byte) (int64, error) {
			return q.SealLogUpdate(ctx, queries.SealLogUpdateParams{Seq: at.no, Was: was, Payload: now})
		},
	},
	{
		name: "dead_letters",
		page: func(ctx context.Context, q *queries.Queries, after rowKey) ([]stored, error) {
			rows, err := q.SealDeadPage(ctx, queries.SealDeadPageParams{After: after.no, PageSize: resealPage})
			return storedOf(rows, func(r *queries.SealDeadPageRow) stored {
				return stored{rowKey: rowKey{no: r.No}, event: boundTo(r.ID, r.TenantID), payload: r.Payload}
			}), err
		},
		update: func(ctx context.Context, q *queries.Queries, at rowKey, was, now []byte) (int64, error) {
			return q.SealDeadUpdate(ctx, queries.SealDeadUpdateParams{No: at.no, Was: was, Payload: now})
		},
	},
	{
		name: "parked",
		page: func(ctx context.Context, q *queries.Queries, after rowKey) ([]stored, error) {
			rows, err := q.SealParkedPage(ctx, queries.SealParkedPageParams{After: after.no, PageSize: resealPage})
			return storedOf(rows, func(r *queries.SealParkedPageRow) stored {
				return stored{rowKey: rowKey{no: r.No}, event: boundTo(r.ID, r.TenantID), payload: r.Payload}
			}), err
		},
		update: func(ctx context.Context, q *queries.Queries, at rowKey, was, now []byte) (int64, error) {
			return q.SealParkedUpdate(ctx, queries.SealParkedUpdateParams{No: at.no, Was: was, Payload: now})
		},
	},
	{
		name: "inbox_messages",
		page: func(ctx context.Context, q *queries.Queries, after rowKey) ([]stored, error) {
			rows, err := q.SealMessagePage(ctx, queries.SealMessagePageParams{After: after.no, PageSize: resealPage})
			return storedOf(rows, func(r *queries.SealMessagePageRow) stored {
				it := stored{rowKey: rowKey{no: r.No}, event: boundTo(r.EventID, r.TenantID)}
				if r.Body != nil {
					it.payload, it.whole = dataOf(r.Envelope, r.Body), r.Body
				}
				return it
			}), err
		},
		update: func(ctx context.Context, q *queries.Queries, at rowKey, was, now []byte) (int64, error) {
			return q.SealMessageUpdate(ctx, queries.SealMessageUpdateParams{No: at.no, Was: was, Body: now})
		},
	},
	{
		name: "inbox_quarantined",
		page: func(ctx context.Context, q *queries.Queries, after rowKey) ([]stored, error) {
			rows, err := q.SealQuarantinedPage(ctx, queries.SealQuarantinedPageParams{
				AfterGroup: after.group, AfterID: pgvalue.UUID(after.id), PageSize: resealPage,
			})
			return storedOf(rows, func(r *queries.SealQuarantinedPageRow) stored {
				r.TenantID.Valid = r.TenantID.Bytes != uuid.Nil // what the table has for none
				return stored{
					rowKey: rowKey{group: r.ConsumerGroup, id: r.EventID.Bytes}, event: boundTo(r.EventID, r.TenantID), payload: r.Payload,
				}
			}), err
		},
		update: func(ctx context.Context, q *queries.Queries, at rowKey, was, now []byte) (int64, error) {
			return q.SealQuarantinedUpdate(ctx, queries.SealQuarantinedUpdateParams{
				ConsumerGroup: at.group, EventID: pgvalue.UUID(at.id), Was: was, Payload: now,
			})
		},
	},
}

func storedOf[R any](rows []R, of func(*R) stored) []stored {
	items := make([]stored, len(rows))
	for i := range rows {
		items[i] = of(&rows[i])
	}
	return items
}

// boundTo returns what the sealed values of a row are bound to.
func boundTo(id, tenant pgtype.UUID) sealing.Event {
	return sealing.Event{ID: id.Bytes, Tenant: uuid.NullUUID{UUID: tenant.Bytes, Valid: tenant.Valid}}
}
