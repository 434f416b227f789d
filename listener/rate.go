package listener

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
)

// rate is how many attempts may start now, of a listener with Spec.Rate. PostgreSQL counts those of all processes by
// its clock, before they start. What it has counted must start within the slack: half of that is for asking, and half
// for the way to the handler. Attempts count for a period after the slack, so no window of that length ever has more of
// them. Of the rate, period/(period+slack+grain) can be reached. The shards of a process share a rate.
type rate struct {
	l *Listener

	mu       sync.Mutex
	left     int                // attempts that may start before deadline
	deadline time.Time          // by the clock of this process
	until    pgtype.Timestamptz // of the entry in which they were counted
	allowed  int                // how many they were
	want     int                // how many to ask for: few if they start slowly, so that others get the rest
	slack    time.Duration
}

const (
	leastSlack = 25 * time.Millisecond
	slackPart  = 32 // of the period
	grainPart  = 64
)

// newRate returns the rate of l, nil if it has none.
func newRate(l *Listener) *rate {
	if l.spec.Rate == (outbox.Rate{}) {
		return nil
	}
	return &rate{l: l, want: 1, slack: max(l.spec.Rate.Period/slackPart, leastSlack)}
}

// take returns how many of n attempts may start now. If it is none, resumes says when to ask again. It is asked when
// nothing is left to do before they start. All may start if r is nil.
func (r *rate) take(ctx context.Context, n int) (k int, resumes time.Time) {
	if r == nil {
		return n, time.Time{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left < n || !time.Now().Before(r.deadline) {
		if wait := r.ask(ctx, n); wait > 0 {
			return 0, time.Now().Add(wait)
		}
	}
	if now := time.Now(); !now.Before(r.deadline) { // the answer took too long
		return 0, now
	}
	k = min(n, r.left)
	r.left -= k
	return k, time.Time{}
}

// release gives back what is left, because the process stops.
func (r *rate) release(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	returned := r.left
	if r.left = 0; returned == 0 {
		return nil
	}
	_, err := r.send(ctx, returned, 0)
	return err
}

// ask asks for n attempts or more, and gives back what is left of those before. If none is allowed, it returns how long
// to wait.
func (r *rate) ask(ctx context.Context, n int) (wait time.Duration) {
	switch {
	case r.left > 0:
		r.want = max(r.allowed-r.left, 1)
	case r.allowed > 0:
		r.want *= 2
	}
	r.want = min(max(r.want, n), r.l.spec.Rate.Events)
	returned := r.left
	r.left, r.allowed = 0, 0
	sent := time.Now()
	row, err := r.send(ctx, returned, r.want)
	took := time.Since(sent)
	r.until = row.Until
	if err != nil {
		r.l.rep.Statement("ask the rate", sent, err)
		r.until = pgtype.Timestamptz{}
		return r.l.pauseLimit
	}
	if r.left, r.allowed = int(row.N), int(row.N); row.N == 0 {
		return max(time.Duration(row.WaitUs)*time.Microsecond, time.Millisecond)
	}
	r.deadline = sent.Add(r.slack / 2)
	r.slack = max(r.l.spec.Rate.Period/slackPart, leastSlack, 8*took)
	return 0
}

// send gives back attempts, and asks PostgreSQL for others.
func (r *rate) send(ctx context.Context, returned, want int) (row queries.ListenerRateTakeRow, err error) {
	l := r.l
	ctx, cancel := l.limited(ctx)
	defer cancel()
	until := r.until
	if !until.Valid {
		until = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	b := &pgx.Batch{}
	l.db.Begin(b)
	l.db.Queue(b, func(q *queries.Queries) { _ = q.ListenerRateLock(ctx, l.spec.Name) })
	l.db.Queue(b, func(q *queries.Queries) {
		_, _ = q.ListenerRateTake(ctx, queries.ListenerRateTakeParams{
			Listener: l.spec.Name, Events: int32(l.spec.Rate.Events), Want: int32(want),
			Slack:  pgvalue.Interval(r.slack),
			Period: pgvalue.Interval(l.spec.Rate.Period), Grain: pgvalue.Interval(l.spec.Rate.Period / grainPart),
			Returned: int32(returned), ReturnedUntil: until,
		})
	}).QueryRow(func(answer pgx.Row) error { return answer.Scan(&row.N, &row.Until, &row.WaitUs) })
	l.db.Commit(b)
	return row, l.db.Wrap("ask the rate of listener "+l.spec.Name, l.pool.SendBatch(ctx, b).Close())
}

// mayStart reports whether the rate allows the attempt at e. If not, the batch ends.
func (b *batch) mayStart(e *core.Entry) bool {
	k, resumes := b.s.l.rate.take(b.s.run.DBCtx, 1)
	if k > 0 {
		return true
	}
	b.lock()
	defer b.mu.Unlock()
	b.core.Limit(e, resumes)
	return false
}

// mayCall returns how many events of a call the rate allows. The call loses the others.
func (b *batch) mayCall(c *core.Call) (k int) {
	n := len(c.Entries())
	k, resumes := b.s.l.rate.take(b.s.run.DBCtx, n)
	if k == n {
		return k
	}
	b.lock()
	defer b.mu.Unlock()
	if k == 0 {
		c.Limit(resumes)
	} else {
		c.Cut(k)
	}
	return k
}

// maySend returns the first of entries, which is what the rate allows of a call. The others are left to later calls.
func (s *sending) maySend(entries []*core.Entry) []*core.Entry {
	k, resumes := s.b.s.l.rate.take(s.b.s.run.DBCtx, len(entries))
	now := time.Now()
	s.b.lock()
	defer s.b.mu.Unlock()
	if k == 0 {
		s.b.core.StopUntil(resumes)
	}
	s.core.Begin(now, entries, k)
	return entries[:k]
}

// validateRate checks what a Spec says of its rate.
func validateRate(r outbox.Rate) error {
	switch {
	case r == outbox.Rate{}:
		return nil
	case r.Events < 1 || r.Events > 1<<31-1:
		return fmt.Errorf("field Rate: Events %d is not between 1 and 2147483647", r.Events)
	case r.Period < time.Millisecond:
		return fmt.Errorf("field Rate: Period %s is shorter than 1ms", r.Period)
	case r.Period > 366*24*time.Hour:
		return errors.New("field Rate: Period is longer than a year")
	}
	return nil
}
