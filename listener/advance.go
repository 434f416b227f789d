package listener

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// queueEnd puts the statements that end a lease into b. Its texts are escaped, so that a database with that encoding
// can store them.
func (s *shard) queueEnd(b *pgx.Batch, a *core.End, encoding string, moved *bool) {
	ctx := context.Background() // recorded, not run
	if a.Settle != nil {
		s.queue(b, func(q *queries.Queries) { _ = q.ParkedSettle(ctx, s.settleParams(a, encoding)) })
	}
	if len(a.Failures.IDs) > 0 {
		s.queue(b, func(q *queries.Queries) { _ = q.ListenerFail(ctx, s.failParams(a, encoding)) })
	}
	s.queue(b, func(q *queries.Queries) {
		_, _ = q.ListenerAdvance(ctx, s.advanceParams(a, encoding))
	}).QueryRow(func(row pgx.Row) error {
		return row.Scan(moved)
	})
	if a.Tried {
		s.queue(b, func(q *queries.Queries) {
			_ = q.ListenerTried(ctx, queries.ListenerTriedParams{
				Trying: a.Trying, Listener: s.l.spec.Name, Shard: int32(s.number), LeaseNo: a.Lease.No,
			})
		})
	}
	if a.Cuts {
		s.queue(b, func(q *queries.Queries) {
			_ = q.ListenerCut(ctx, queries.ListenerCutParams{
				Listener: s.l.spec.Name, Shard: int32(s.number), LeaseNo: a.Lease.No,
			})
		})
	}
	if len(a.Returned) > 0 {
		s.queue(b, func(q *queries.Queries) {
			_ = q.ParkedWake(ctx, queries.ParkedWakeParams{Listener: s.l.spec.Name, Topics: topicsOf(a.Returned)})
		})
	}
	if len(a.Promote) > 0 {
		s.queue(b, func(q *queries.Queries) {
			_ = q.ParkedPromote(ctx, queries.ParkedPromoteParams{
				Keys: a.Promote, Taken: a.Taken, Heads: a.Heads, Listener: s.l.spec.Name,
			})
		})
	}
}

func (s *shard) advanceParams(a *core.End, encoding string) queries.ListenerAdvanceParams {
	return queries.ListenerAdvanceParams{
		Listener: s.l.spec.Name, Shard: int32(s.number), WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), LeaseNo: a.Lease.No,
		Closes: a.Closes, LastSeq: a.LastSeq, RetryCount: a.RetryCount,
		AheadSeqs: a.AheadSeqs, AheadAttempts: a.AheadAttempts, Handled: a.Handled,
		Delay: delayOf(a), LastError: storableText(a.LastError, encoding),
		LetLeaseExpire: a.LetLeaseExpire, Release: a.Release,
		HandTo:   pgtype.UUID{Bytes: a.HandTo.UUID, Valid: a.HandTo.Valid},
		DeadSeqs: a.Dead.Seqs, DeadKeys: a.Dead.Keys, DeadAttempts: a.Dead.Attempts,
		DeadErrors: storable(a.Dead.Errors, encoding),
		ParkedKeys: a.Parking.Keys, ParkedSeqs: a.Parking.Seqs, ParkedAttempts: a.Parking.Attempts,
		ParkedDelaysUs: a.Parking.DelaysUs, ParkedErrors: storable(a.Parking.Errors, encoding),
	}
}

func (s *shard) settleParams(a *core.End, encoding string) queries.ParkedSettleParams {
	p := a.Settle
	return queries.ParkedSettleParams{
		Listener: s.l.spec.Name, Shard: int32(s.number), WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), LeaseNo: a.Lease.No,
		Done: p.Done, Dead: p.Dead, DeadAttempts: p.DeadAttempts, DeadErrors: storable(p.DeadErrors, encoding),
		Failed: p.Failed, FailedAttempts: p.FailedAttempts, FailedTaken: p.FailedTaken, FailedDelaysUs: p.FailedDelaysUs,
		FailedErrors: storable(p.FailedErrors, encoding),
	}
}

func (s *shard) failParams(a *core.End, encoding string) queries.ListenerFailParams {
	return queries.ListenerFailParams{
		Listener: s.l.spec.Name, Shard: int32(s.number), WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), LeaseNo: a.Lease.No,
		Ids: pgvalue.UUIDs(a.Failures.IDs), Attempts: a.Failures.Attempts, Errors: storable(a.Failures.Errors, encoding),
	}
}

func delayOf(a *core.End) pgtype.Interval {
	if !a.Delayed {
		return pgtype.Interval{}
	}
	return pgvalue.Interval(a.Delay)
}

// topicsOf returns the topics that go to any of targets.
func topicsOf(targets []core.Target) (topics []string) {
	for _, t := range targets {
		topics = append(topics, t.(*target.Target).Rest.Topics...)
	}
	return topics
}

// storable returns texts in the form that a database with that encoding stores.
func storable(texts []string, encoding string) []string {
	for i, text := range texts {
		texts[i] = errclass.Storable(text, encoding)
	}
	return texts
}

func storableText(text *string, encoding string) *string {
	if text == nil {
		return nil
	}
	kept := errclass.Storable(*text, encoding)
	return &kept
}
