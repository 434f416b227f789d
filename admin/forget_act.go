package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
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
	own.Undelivered, own.Processed, own.AnyTenant = false, false, false
	identity, err := json.Marshal(own)
	if err != nil {
		return err
	}
	var begun queries.ForgetStartRow
	for begun.No == 0 {
		begun, err = f.db.Each(f.pool).ForgetStart(ctx, queries.ForgetStartParams{
			Identity: identity, Scope: scope, Who: f.act.Who, Why: f.act.Why, Busy: pgvalue.Interval(forgetBusy),
		})
		if err != nil {
			return err
		}
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
			rows = own(f, rows, func(r queries.ForgetEventsScanRow) pgtype.UUID { return r.TenantID })
			recorded := make(map[pgtype.UUID][]pgtype.UUID, len(rows))
			for _, r := range rows {
				recorded[r.ID] = recordIDs(r.ID, r.Namespace, r.Topic, r.DedupeKey)
			}
			return f.deleteEvents(ctx, recorded)
		},
		log:    f.deleteLog,
		dead:   f.deleteDead,
		parked: f.deleteParked,
		inbox:  f.deleteInbox,
		quarantined: func(ctx context.Context, rows []queries.ForgetQuarantinedScanRow) error {
			rows = own(f, rows, func(r queries.ForgetQuarantinedScanRow) pgtype.UUID { return r.TenantID })
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
			rows = own(f, rows, func(r queries.ForgetVersionsScanRow) pgtype.UUID { return r.TenantID })
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

// deleteRecorded deletes what consumer groups have recorded of the events gone, if that is asked for. recorded has the ids
// of each.
func (f *forgetting) deleteRecorded(
	ctx context.Context, q *queries.Queries, gone []pgtype.UUID, recorded map[pgtype.UUID][]pgtype.UUID,
) (int64, error) {
	if !f.scope.Processed || len(gone) == 0 {
		return 0, nil
	}
	p := queries.ForgetRecordedParams{Groups: f.groups}
	for _, id := range gone {
		p.Ids = append(p.Ids, recorded[id]...)
	}
	return q.ForgetRecorded(ctx, p)
}

// holdTries is how often ForgetHold is repeated in one transaction. Each time some event has changed its state in between.
const holdTries = 20

// deleteEvents deletes events of queue topics, whose state it locks first. recorded has for each the ids under which
// consumers have recorded it.
func (f *forgetting) deleteEvents(ctx context.Context, recorded map[pgtype.UUID][]pgtype.UUID) error {
	all := slices.SortedFunc(maps.Keys(recorded), func(a, b pgtype.UUID) int { return bytes.Compare(a.Bytes[:], b.Bytes[:]) })
	for ids := range slices.Chunk(all, forgetChunk) {
		err := f.transaction(ctx, f.inTx, func(ctx context.Context, q *queries.Queries) (deletion, int64, error) {
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
			r, err := q.ForgetEvents(ctx, queries.ForgetEventsParams{Ids: ids, Undelivered: f.scope.Undelivered})
			if err != nil {
				return nil, 0, err
			}
			processed, err := f.deleteRecorded(ctx, q, r.Gone, recorded)
			return deletion{
				"events": int64(len(r.Gone)), "queue": r.Queued, "delivered": r.Delivered, "dead_letters": r.DeadLetters,
				"processed_events": processed,
			}, r.Kept, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteLog deletes events of the log. Prune, and whatever else moves cursors other than forward, waits for the lock.
func (f *forgetting) deleteLog(ctx context.Context, rows []queries.ForgetLogScanRow) error {
	rows = own(f, rows, func(r queries.ForgetLogScanRow) pgtype.UUID { return r.TenantID })
	for chunk := range slices.Chunk(rows, forgetChunk) {
		seqs, recorded := make([]int64, len(chunk)), make(map[pgtype.UUID][]pgtype.UUID, len(chunk))
		for i, r := range chunk {
			seqs[i], recorded[r.ID] = r.Seq, recordIDs(r.ID, r.Namespace, r.Topic, r.DedupeKey)
		}
		var hit int64
		err := f.transaction(ctx, f.locked, func(ctx context.Context, q *queries.Queries) (_ deletion, _ int64, err error) {
			if f.scope.Undelivered {
				if hit, err = q.ForgetCursors(ctx, queries.ForgetCursorsParams{Seqs: seqs, BatchSize: oneByOneAfterAdmin}); err != nil {
					return nil, 0, err
				}
			}
			r, err := q.ForgetLog(ctx, queries.ForgetLogParams{Seqs: seqs, Undelivered: f.scope.Undelivered})
			if err != nil {
				return nil, 0, err
			}
			processed, err := f.deleteRecorded(ctx, q, r.Gone, recorded)
			return deletion{
				"log": int64(len(r.Gone)), "dead_letters": r.DeadLetters, "listener_failures": r.Failures, "processed_events": processed,
			}, r.Kept, err
		})
		if hit > 0 {
			f.wakeListeners(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deleteDead deletes dead letters that are left. Those of listeners are copies of events of the log that were pruned: those
// of events that are still there go with them. An event of a queue topic has died since the pass looked at it, and goes
// with its dead letter.
func (f *forgetting) deleteDead(ctx context.Context, rows []queries.ForgetDeadScanRow) error {
	rows = own(f, rows, func(r queries.ForgetDeadScanRow) pgtype.UUID { return r.TenantID })
	var nos []int64
	died := make(map[pgtype.UUID][]pgtype.UUID)
	for _, r := range rows {
		if r.Heard {
			nos = append(nos, r.No)
		} else {
			died[r.ID] = recordIDs(r.ID, r.Namespace, r.Topic, r.DedupeKey)
		}
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
	return f.deleteEvents(ctx, died)
}

// deleteParked deletes what listeners have parked, listener by listener. The shards are taken from their holders, which
// settle parked events by their numbers.
func (f *forgetting) deleteParked(ctx context.Context, rows []queries.ForgetParkedScanRow) error {
	rows = own(f, rows, func(r queries.ForgetParkedScanRow) pgtype.UUID { return r.TenantID })
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
	rows = own(f, rows, func(r queries.ForgetInboxScanRow) pgtype.UUID { return r.TenantID })
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
		p.AfterNo = r.LastNo
		if err := cmp.Or(f.beat(ctx), ctx.Err()); err != nil {
			return n, err
		}
	}
}
