package receive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

func microseconds(n int64) time.Duration   { return time.Duration(n) * time.Microsecond }
func stopped(err error) (*stopError, bool) { return as[*stopError](err) }

const (
	dueBatch      = 100 // messages that are read as due
	sweepInterval = 30 * time.Second
	sweepBatch    = 1000 // keys
)

// Run tries parked messages again until ctx ends, and prunes the inbox. It then finishes the transactions that are
// under way, within Config.ShutdownTimeout, and returns nil. Run it in each process that calls Receive: they share the
// work. The error is one of Stop, or says that the database is not migrated.
func (r *Receiver) Run(ctx context.Context) error {
	if err := r.Ready(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	work, over := r.work(ctx)
	defer over()
	w := wait{r: r}
	defer w.ends()
	var pruning sync.WaitGroup
	defer pruning.Wait()
	defer stop(nil)
	if r.cfg.PruneInterval > 0 {
		pruning.Go(func() { r.prune(ctx) })
	}
	swept := time.Time{}
	for ctx.Err() == nil {
		progress, err := r.retryDue(ctx, work)
		if err == nil && time.Since(swept) > sweepInterval {
			if err = r.sweep(ctx); err == nil {
				swept = time.Now()
			}
		}
		switch is, ok := stopped(err); {
		case ok:
			return is
		case ctx.Err() != nil:
		case err != nil:
			w.begins(err)
			backoff.Sleep(ctx, w.pauses.Next())
		case progress:
			w.ends()
		default:
			w.ends()
			timer := time.NewTimer(backoff.Around(r.cfg.PollInterval))
			select {
			case <-ctx.Done():
			case <-timer.C:
			case <-r.wake:
			}
			timer.Stop()
		}
	}
	return nil
}

// Ready returns an error that wraps inbox.ErrNotMigrated if the tables of the inbox do not exist. A database that does
// not answer within some seconds is no error. Run calls Ready at its start; call it before the first Receive.
func (r *Receiver) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if _, err := r.Status(ctx); errors.Is(err, inbox.ErrNotMigrated) {
		return fmt.Errorf("database %s: %w", schemadb.DatabaseName(r.pool.Config().ConnConfig), err)
	}
	return nil
}

// readyTimeout bounds Ready.
const readyTimeout = 5 * time.Second

// retryDue tries what is due, the keys concurrently. It reports whether something was settled or charged.
func (r *Receiver) retryDue(ctx, work context.Context) (progress bool, err error) {
	due, err := r.db.Each(r.pool).InboxMessageDue(ctx, queries.InboxMessageDueParams{
		ConsumerGroup: r.group, BatchSize: dueBatch,
	})
	if err != nil {
		return false, r.db.Wrap("look for due messages", err)
	}
	first := make(map[string]int64) // by key
	var nos []int64
	for _, d := range due {
		if no, there := first[d.Key]; d.Key != "" && (!there || d.No < no) {
			first[d.Key] = d.No
		}
	}
	for _, d := range due {
		if d.Key == "" || first[d.Key] == d.No {
			nos = append(nos, d.No)
		}
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	for _, no := range nos {
		if !r.acquire(ctx) {
			break
		}
		running.Go(func() {
			defer r.free()
			did := false
			usercode.Run("receiver", func() (err error) {
				did, err = r.retry(work, no)
				return err
			}, func(e error) {
				mu.Lock()
				defer mu.Unlock()
				progress, err = progress || did, cmp.Or(err, e)
			})
		})
	}
	running.Wait()
	return progress, err
}

// retry tries a parked message, and those that wait behind it. It reports whether it has settled or charged one.
func (r *Receiver) retry(ctx context.Context, no int64) (bool, error) {
	for many := r.cfg.BatchSize; ; {
		items, at, err := r.again(ctx, no, many)
		switch {
		case err == nil:
			for _, it := range items {
				r.settled(it)
			}
			r.continues(items)
			if len(items) > 0 && items[0].key != "" {
				r.promote(ctx, []string{items[0].key})
			}
			return len(items) > 0, nil
		case len(items) == 0:
			return false, err
		}
		if _, is := stopped(err); is || ctx.Err() != nil {
			return false, err
		}
		t := troubleOf(err)
		switch {
		case len(items) > 1 && at > 0:
			many = at
		case len(items) > 1:
			many = 1
		case t.class == troubleAway && !t.effect:
			return false, err
		default:
			// A lost connection and a collision are charged here: there is a delay, and nothing else waits.
			return true, r.charge(ctx, no, items[0], t)
		}
	}
}

// again applies a parked message and up to many-1 that wait behind it, in one transaction that also deletes them. It
// returns what it has taken, nothing if another process has it.
func (r *Receiver) again(ctx context.Context, no int64, many int) (items []*item, at int, err error) {
	tx, err := r.begin(ctx)
	if err != nil {
		return nil, -1, err
	}
	defer rollback(tx)
	q := r.db.On(tx)
	rows, err := q.InboxMessageTake(ctx, queries.InboxMessageTakeParams{
		No: no, ConsumerGroup: r.group, Followers: int32(many - 1),
	})
	if err != nil || len(rows) == 0 {
		return nil, -1, lost(tx, r.db.Wrap("take parked messages", err))
	}
	var prepared []*consume.Prepared
	nos := make([]int64, 0, len(rows))
	for _, row := range rows {
		m, err := messageOf(row.Envelope, row.Body)
		it := r.prepare(ctx, Message{Message: m, Place: row.Place, Key: row.Key})
		it.attempts = int(row.Attempts)
		if err != nil {
			it.fault = consume.Permanent(err)
		}
		if fault := it.fault; fault != nil || it.unready != nil {
			switch {
			case len(items) > 0: // it is tried alone
			case fault != nil:
				return []*item{it}, 0, &effectError{consume.Permanent(fault)}
			default:
				return []*item{it}, 0, it.unready
			}
			break
		}
		items, prepared, nos = append(items, it), append(prepared, it.prepared), append(nos, row.No)
	}
	outcomes, at, err := r.effects(ctx, tx, prepared)
	if err != nil {
		return items, at, err
	}
	for i, it := range items {
		if outcomes[i] == inbox.Skipped || outcomes[i] == inbox.Quarantined {
			if it.newest, err = r.consumer.LastVersion(ctx, tx, prepared[i]); err != nil {
				return items, -1, lost(tx, err)
			}
		}
	}
	if err := q.InboxMessageDelete(ctx, nos); err != nil {
		return items, -1, lost(tx, r.db.Wrap("delete parked messages", err))
	}
	if err := r.commit(ctx, tx); err != nil {
		return items, -1, err
	}
	for i, it := range items {
		it.outcome = Outcome(outcomes[i])
	}
	return items, 0, nil
}

// charge records a failed attempt of a parked message.
func (r *Receiver) charge(ctx context.Context, no int64, it *item, t trouble) error {
	before := it.attempts
	it.attempts++
	it.last = t.err
	r.failedOnce(it, t.err)
	dead := t.class == troublePermanent || it.attempts >= r.cfg.MaxAttempts
	delay := r.delay(t, it.attempts-r.cfg.Attempts+1)
	charged, err := r.recordFailure(ctx, queries.InboxMessageFailParams{
		No: no, Attempts: int32(before), Dead: dead, Delay: pgvalue.Interval(delay), MaxAttempts: int32(r.cfg.MaxAttempts),
		Error: errclass.Of(t.err).Text,
	})
	switch {
	case err != nil:
		return r.db.Wrap(fmt.Sprintf("record failure of message %d", no), err)
	case charged > 0 && !dead && before == 0: // it has waited behind another one, or was replayed
		r.parked(it, delay)
	}
	if charged == 0 || !dead {
		return nil
	}
	it.outcome = Dead
	r.settled(it)
	if it.key != "" {
		r.promote(ctx, []string{it.key})
	}
	return nil
}

func (r *Receiver) recordFailure(ctx context.Context, p queries.InboxMessageFailParams) (int64, error) {
	tx, err := r.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer rollback(tx)
	p.Error = clean(p.Error, encodingOf(tx))
	n, err := r.db.On(tx).InboxMessageFail(ctx, p)
	if err != nil {
		return 0, err
	}
	return n, tx.Commit(ctx)
}

// sweep makes due what nobody has: a process can die between a transaction and its promote.
func (r *Receiver) sweep(ctx context.Context) error {
	q := r.db.Each(r.pool)
	for after := ""; ; {
		keys, err := q.InboxMessageKeys(ctx, queries.InboxMessageKeysParams{
			ConsumerGroup: r.group, After: after, BatchSize: sweepBatch,
		})
		if err != nil {
			return r.db.Wrap("look for parked keys", err)
		}
		if len(keys) > 0 {
			if err := q.InboxMessagePromote(ctx, queries.InboxMessagePromoteParams{
				ConsumerGroup: r.group, Keys: keys,
			}); err != nil {
				return r.db.Wrap("make parked messages due", err)
			}
			after = keys[len(keys)-1]
		}
		if len(keys) < sweepBatch {
			return nil
		}
	}
}

// prune deletes old records of the inbox from time to time.
func (r *Receiver) prune(ctx context.Context) {
	for {
		backoff.Sleep(ctx, backoff.Around(r.cfg.PruneInterval))
		if ctx.Err() != nil {
			return
		}
		if _, err := r.consumer.Inbox().Prune(ctx, r.pool); err != nil && ctx.Err() == nil {
			r.say.log.Warn("inbox is not pruned", "error", err)
		}
	}
}
