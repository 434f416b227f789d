package admin

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

const (
	// forgetBusy is after what time a forget that has said nothing counts as broken off.
	forgetBusy = time.Minute
	// forgetSays is how often it says something while it finds nothing.
	forgetSays = 10 * time.Second
	// forgetPasses is how often it goes through all tables: what is enqueued meanwhile, or commits late, is behind it.
	forgetPasses = 3
)

// run deletes what pass finds, until a pass finds nothing.
func (f *forgetting) run(ctx context.Context) error {
	open, err := f.open(ctx)
	if err != nil {
		return err
	}
	if !open && !f.foundAny() && f.found["audit"] == 0 {
		return nil
	}
	own := f.scope.auditScope()
	scope, err := json.Marshal(own)
	if err != nil {
		return err
	}
	own.Undelivered = false
	identity, err := json.Marshal(own)
	if err != nil {
		return err
	}
	begun, err := f.db.Each(f.pool).ForgetStart(ctx, queries.ForgetStartParams{
		Identity: identity, Scope: scope, Who: f.act.Who, Why: f.act.Why, Busy: pgvalue.Interval(forgetBusy),
	})
	if err != nil {
		return err
	}
	f.no, f.report.Resumed, f.said = begun.No, begun.Resumed > 0, time.Now()
	if err := f.deleteAll(ctx); err != nil {
		f.stop(ctx)
		return err
	}
	return f.db.Each(f.pool).ForgetEnd(ctx, f.no)
}

// stop says that the forget was broken off. If that cannot be said, it is known after forgetBusy.
func (f *forgetting) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadGrace)
	defer cancel()
	_ = f.db.Each(f.pool).ForgetStop(ctx, f.no)
}

func (f *forgetting) deleteAll(ctx context.Context) error {
	for range forgetPasses {
		before := f.report.Rows
		f.left = 0
		if err := f.pass(ctx, f.delete()); err != nil {
			return err
		}
		if f.report.Rows == before {
			break
		}
	}
	if f.left > 0 {
		return &UndeliveredError{Count: f.left, Deleted: true}
	}
	if f.scope.TenantID.Valid && f.scope.EntityType == "" {
		if err := f.deleteTenantRest(ctx); err != nil {
			return err
		}
	}
	n, err := f.auditTexts(ctx, true)
	f.deleted["audit"] += n
	return err
}

// deletion is what one transaction has deleted, by table.
type deletion map[string]int64

// record adds d to the entry of the audit, in the transaction of q.
func (f *forgetting) record(ctx context.Context, q *queries.Queries, d deletion) error {
	var rows int64
	for _, n := range d {
		rows += n
	}
	if rows == 0 {
		return nil
	}
	return q.ForgetCount(ctx, queries.ForgetCountParams{
		No: f.no, Events: d["events"] + d["log"], Rows: rows, Busy: pgvalue.Interval(forgetBusy),
	})
}

// committed adds d to the report.
func (f *forgetting) committed(d deletion) {
	for table, n := range d {
		f.deleted[table] += n
		f.report.Rows += n
	}
	f.report.Events += d["events"] + d["log"]
	f.said = time.Now()
}

// beat says that the forget runs, if it has not said anything for a while.
func (f *forgetting) beat(ctx context.Context) error {
	if f.no == 0 || time.Since(f.said) < forgetSays {
		return nil
	}
	f.said = time.Now()
	return f.db.Each(f.pool).ForgetCount(ctx, queries.ForgetCountParams{No: f.no, Busy: pgvalue.Interval(forgetBusy)})
}

// transaction runs call, which deletes something, by run: inTx or locked. It is finished when ctx ends, so that the report
// is exact.
func (f *forgetting) transaction(
	ctx context.Context, run func(context.Context, string, func(*queries.Queries) error) error,
	call func(context.Context, *queries.Queries) (deletion, int64, error),
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return finished(ctx, func(ctx context.Context) error {
		var d deletion
		var left int64
		err := run(ctx, "forget", func(q *queries.Queries) (err error) {
			if d, left, err = call(ctx, q); err != nil {
				return err
			}
			return f.record(ctx, q, d)
		})
		if err == nil {
			f.committed(d)
			f.left += left
		}
		return err
	})
}

// delete returns visits that delete what they see.
func (f *forgetting) delete() visits {
	return visits{
		events: func(ctx context.Context, rows []queries.ForgetEventsScanRow) error {
			ids := make([]pgtype.UUID, len(rows))
			for i, r := range rows {
				ids[i] = r.ID
			}
			for chunk := range slices.Chunk(ids, forgetChunk) {
				if err := f.deleteEvents(ctx, chunk); err != nil {
					return err
				}
			}
			return nil
		},
		log: func(ctx context.Context, rows []queries.ForgetLogScanRow) error {
			seqs := make([]int64, len(rows))
			for i, r := range rows {
				seqs[i] = r.Seq
			}
			for chunk := range slices.Chunk(seqs, forgetChunk) {
				if err := f.deleteLog(ctx, chunk); err != nil {
					return err
				}
			}
			return nil
		},
		dead:   f.deleteDead,
		parked: f.deleteParked,
		inbox:  f.deleteInbox,
		quarantined: func(ctx context.Context, rows []queries.ForgetQuarantinedScanRow) error {
			for chunk := range slices.Chunk(rows, forgetChunk) {
				var p queries.ForgetQuarantinedParams
				for _, r := range chunk {
					p.Groups, p.Ids = append(p.Groups, r.ConsumerGroup), append(p.Ids, r.EventID)
				}
				err := f.transaction(ctx, f.inTx, func(ctx context.Context, q *queries.Queries) (deletion, int64, error) {
					n, err := q.ForgetQuarantined(ctx, p)
					return deletion{"inbox_quarantined": n}, 0, err
				})
				if err != nil {
					return err
				}
			}
			return nil
		},
		versions: func(ctx context.Context, rows []queries.ForgetVersionsScanRow) error {
			for chunk := range slices.Chunk(rows, forgetChunk) {
				var p queries.ForgetVersionsParams
				for _, r := range chunk {
					p.Groups, p.Sources = append(p.Groups, r.ConsumerGroup), append(p.Sources, r.Source)
					p.TenantIds = append(p.TenantIds, r.TenantID)
					p.EntityTypes, p.EntityIds = append(p.EntityTypes, r.EntityType), append(p.EntityIds, r.EntityID)
				}
				err := f.transaction(ctx, f.inTx, func(ctx context.Context, q *queries.Queries) (deletion, int64, error) {
					n, err := q.ForgetVersions(ctx, p)
					return deletion{"entity_versions": n}, 0, err
				})
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// recorded are the consumer groups whose records of events are deleted.
func (f *forgetting) recorded() []string {
	if f.scope.Processed {
		return f.groups
	}
	return []string{}
}

// holdTries is how often ForgetHold is repeated in one transaction. Each time some event has changed its state in between.
const holdTries = 20

// deleteEvents deletes events of queue topics, whose state it locks first.
func (f *forgetting) deleteEvents(ctx context.Context, ids []pgtype.UUID) error {
	return f.transaction(ctx, f.inTx, func(ctx context.Context, q *queries.Queries) (deletion, int64, error) {
		var held []queries.ForgetHoldRow
		for try := range holdTries {
			now, err := q.ForgetHold(ctx, ids)
			if err != nil {
				return nil, 0, err
			}
			if try > 0 && slices.Equal(now, held) {
				break
			}
			held = now
		}
		r, err := q.ForgetEvents(ctx, queries.ForgetEventsParams{
			Ids: ids, Undelivered: f.scope.Undelivered, Groups: f.recorded(),
		})
		return deletion{
			"events": r.Events, "queue": r.Queued, "delivered": r.Delivered, "dead_letters": r.DeadLetters,
			"processed_events": r.Processed,
		}, r.Kept, err
	})
}

// deleteLog deletes events of the log. Prune, and whatever else moves cursors other than forward, waits for the lock.
func (f *forgetting) deleteLog(ctx context.Context, seqs []int64) error {
	var hit int64
	err := f.transaction(ctx, f.locked, func(ctx context.Context, q *queries.Queries) (deletion, int64, error) {
		if f.scope.Undelivered {
			var err error
			if hit, err = q.ForgetCursors(ctx, queries.ForgetCursorsParams{Seqs: seqs, BatchSize: oneByOneAfterAdmin}); err != nil {
				return nil, 0, err
			}
		}
		r, err := q.ForgetLog(ctx, queries.ForgetLogParams{
			Seqs: seqs, Undelivered: f.scope.Undelivered, Groups: f.recorded(),
		})
		return deletion{
			"log": r.Log, "dead_letters": r.DeadLetters, "listener_failures": r.Failures, "processed_events": r.Processed,
		}, r.Kept, err
	})
	if hit > 0 {
		f.wakeListeners(ctx)
	}
	return err
}

// deleteDead deletes dead letters that are left: copies of events of the log that were pruned. Those of events that are
// still there go with them, unless the event is undelivered and stays.
func (f *forgetting) deleteDead(ctx context.Context, rows []queries.ForgetDeadScanRow) error {
	var nos []int64
	for _, r := range rows {
		nos = append(nos, r.No)
	}
	for chunk := range slices.Chunk(nos, forgetChunk) {
		err := f.transaction(ctx, f.inTx, func(ctx context.Context, q *queries.Queries) (deletion, int64, error) {
			r, err := q.ForgetDead(ctx, chunk)
			return deletion{"dead_letters": r.DeadLetters, "listener_failures": r.Failures}, 0, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteParked deletes what listeners have parked, listener by listener. The shards are taken from their holders, which
// settle parked events by their numbers.
func (f *forgetting) deleteParked(ctx context.Context, rows []queries.ForgetParkedScanRow) error {
	if !f.scope.Undelivered {
		f.left += int64(len(rows))
		return nil
	}
	byListener := make(map[string][]int64)
	var names []string
	for _, r := range rows {
		if byListener[r.Listener] == nil {
			names = append(names, r.Listener)
		}
		byListener[r.Listener] = append(byListener[r.Listener], r.No)
	}
	for _, name := range names {
		for chunk := range slices.Chunk(byListener[name], forgetChunk) {
			err := f.transaction(ctx, f.locked, func(ctx context.Context, q *queries.Queries) (deletion, int64, error) {
				worker := uuid.New()
				if _, err := f.takeOver(ctx, q, name, worker, nil); err != nil {
					return nil, 0, err
				}
				r, err := q.ForgetParked(ctx, queries.ForgetParkedParams{Nos: chunk, Listener: name})
				if err != nil {
					return nil, 0, err
				}
				if err := q.ParkedPromote(ctx, queries.ParkedPromoteParams{Keys: r.Keys, Listener: name}); err != nil {
					return nil, 0, err
				}
				err = q.ListenerHandBack(ctx, queries.ListenerHandBackParams{Listener: name, WorkerID: pgvalue.UUID(worker)})
				return deletion{"parked": r.Parked, "listener_failures": r.Failures}, 0, err
			})
			if err != nil {
				return err
			}
		}
		f.wakeListeners(ctx)
	}
	return nil
}

// deleteInbox deletes messages that consumer groups keep. Those behind a parked one become due after the transaction: see
// InboxMessagePromote.
func (f *forgetting) deleteInbox(ctx context.Context, rows []queries.ForgetInboxScanRow) error {
	byGroup := make(map[string][]int64)
	for _, r := range rows {
		if r.Status != "dead" && !f.scope.Undelivered {
			f.left++
			continue
		}
		byGroup[r.ConsumerGroup] = append(byGroup[r.ConsumerGroup], r.No)
	}
	for group, nos := range byGroup {
		var keys []string
		err := f.transaction(ctx, f.inTx, func(ctx context.Context, q *queries.Queries) (deletion, int64, error) {
			r, err := q.ForgetInbox(ctx, queries.ForgetInboxParams{Nos: nos, Undelivered: f.scope.Undelivered})
			keys = r.Keys
			return deletion{"inbox_messages": r.Messages}, 0, err
		})
		if err == nil && len(keys) > 0 {
			err = f.db.Each(f.pool).InboxMessagePromote(ctx, queries.InboxMessagePromoteParams{Keys: keys, ConsumerGroup: group})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *forgetting) deleteTenantRest(ctx context.Context) error {
	planned := func(ctx context.Context, what string, call func(*queries.Queries) error) error {
		return f.acting(ctx, what, Act{}, call)
	}
	return f.transaction(ctx, planned, func(ctx context.Context, q *queries.Queries) (deletion, int64, error) {
		r, err := q.ForgetTenantRest(ctx, pgvalue.UUID(f.scope.TenantID.UUID))
		return deletion{"pauses": r.Pauses, "limit_usage": r.LimitKeys}, 0, err
	})
}

// auditTexts counts the entries of the audit that name the scope. With act it removes from them what does.
func (f *forgetting) auditTexts(ctx context.Context, act bool) (n int64, err error) {
	p := queries.ForgetAuditParams{Piece: forgetPiece, Pattern: f.scope.pattern(), Act: act}
	for {
		r, err := f.db.Each(f.pool).ForgetAudit(ctx, p)
		if n += r.Named; err != nil || r.Scanned < forgetPiece {
			return n, err
		}
		if p.AfterNo = r.LastNo; f.beat(ctx) != nil || ctx.Err() != nil {
			return n, ctx.Err()
		}
	}
}
