package receive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/postgres/methodtx"
)

// Receive settles messages, and returns when each has an outcome. Messages with one key must come in their order, also
// over several calls: do not call Receive concurrently for messages of one key. Messages of different keys are applied
// concurrently. Outcomes are in the order of ms.
//
// While the database does not answer Receive waits. When ctx ends it finishes the transactions that are under way,
// within Config.ShutdownTimeout, and returns the cause. Messages that are not settled then have the outcome "": do not
// acknowledge them, nor any that the broker acknowledges together with them. Any other error is one of Stop. If a
// message has no outcome, there is an error.
func (r *Receiver) Receive(ctx context.Context, ms []Message) ([]Outcome, error) {
	items := make([]*item, len(ms))
	for i, m := range ms {
		items[i] = r.prepare(ctx, m)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	work, over := r.work(ctx)
	defer over()
	var running sync.WaitGroup
	strands := r.strands(items)
	for _, l := range strands {
		running.Go(func() { l.run(ctx, work, stop) })
	}
	running.Wait()

	outcomes := make([]Outcome, len(ms))
	var err error // of the strands
	for i, it := range items {
		outcomes[i] = it.outcome
		if it.outcome == "" {
			err = cmp.Or(context.Cause(ctx), errUnsettled)
		}
	}
	return outcomes, err
}

// errUnsettled is never expected: a strand that ends early says why.
var errUnsettled = errors.New(
	"receive messages: some are not settled, and nothing says why: this is a bug, please report it")

// work returns the context of transactions, which ends a ShutdownTimeout after ctx.
func (r *Receiver) work(ctx context.Context) (context.Context, func()) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var mu sync.Mutex
	var timer *time.Timer
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(r.cfg.ShutdownTimeout, func() {
			cancel(fmt.Errorf("it did not end within the ShutdownTimeout %s: %w", r.cfg.ShutdownTimeout, context.Cause(ctx)))
		})
	})
	return work, func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		cancel(nil)
	}
}

// strand applies messages one after the other, in their order.
type strand struct {
	r     *Receiver
	items []*item
	wait  wait
}

// strands distributes items so that those of one key stay together. There is at least one strand.
func (r *Receiver) strands(items []*item) []*strand {
	n := max(min(r.cfg.Concurrency, len(items)), 1)
	all := make([]*strand, n)
	for i := range all {
		all[i] = &strand{r: r, wait: wait{r: r}}
	}
	next := 0
	for _, it := range items {
		at := next % n
		if it.key == "" {
			next++
		} else {
			h := fnv.New32a()
			_, _ = h.Write([]byte(it.key))
			at = int(h.Sum32() % uint32(n))
		}
		all[at].items = append(all[at].items, it)
	}
	return all
}

// run settles the items of l, unless ctx ends first. Whatever else ends it ends the call of Receive too.
func (l *strand) run(ctx, work context.Context, stop context.CancelCauseFunc) {
	defer l.wait.ends()
	usercode.Run("receiver", func() error { return l.settleAll(ctx, work) }, func(err error) {
		if err != nil {
			stop(err)
		}
	})
}

// settleAll settles the items of l, a batch at a time.
func (l *strand) settleAll(ctx, work context.Context) error {
	for rest := l.items; len(rest) > 0; {
		n := min(len(rest), l.r.cfg.BatchSize)
		if err := l.settle(ctx, work, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// maxDoubts is how often a message may fail in a way that is probably not its own fault, such as a lost connection or a
// deadlock, before that counts as a failed attempt.
const maxDoubts = 10

// settle settles a batch. If a message fails, those before it are applied without it, then it alone, then those after
// it.
func (l *strand) settle(ctx, work context.Context, batch []*item) error {
	single := false // it is not known which message fails
	for start, end := 0, len(batch); start < len(batch); {
		if err := l.r.goesOn(ctx); err != nil {
			return err
		}
		at, err := l.r.attempt(ctx, work, batch[start:end])
		if err == nil {
			l.wait.ends()
			start, end = end, nextEnd(batch, end, single)
			continue
		}
		if _, is := as[*stopError](err); is || ctx.Err() != nil && work.Err() != nil {
			return err
		}
		t := troubleOf(err)
		one := end-start == 1
		switch {
		case !one && at > 0:
			batch[start+at].last = t.err
			end = start + at
		case !one && at == 0 && (t.effect || t.class != troubleAway):
			end = start + 1
		case t.class == troubleAway && !(one && t.effect && l.r.doubted(batch[start])):
			l.wait.begins(t.err)
			backoff.Sleep(ctx, l.wait.pauses.Next())
		case !one:
			single, end = true, start+1
		case t.class == troubleCollided && !l.r.doubted(batch[start]):
			backoff.Sleep(ctx, backoff.UpTo(50*time.Millisecond))
		default:
			backoff.Sleep(ctx, l.r.failed(batch[start], t))
		}
	}
	return nil
}

// goesOn returns why no other batch is begun.
func (r *Receiver) goesOn(ctx context.Context) error {
	if most := r.cfg.MaxDeadInARow; most > 0 && r.deadInARow.Load() >= int64(most) && ctx.Err() == nil {
		return &stopError{fmt.Errorf("%d in a row: %w", most, ErrOnlyDead)}
	}
	return context.Cause(ctx)
}

// nextEnd returns where the part of batch ends that begins at start. A message that has failed in a batch is tried
// alone.
func nextEnd(batch []*item, start int, single bool) int {
	if start < len(batch) && (single || batch[start].last != nil && batch[start].fate == fateApply) {
		return start + 1
	}
	return len(batch)
}

// doubted notes that a message has failed in a way that is probably not its own fault. It reports whether that has
// happened too often.
func (r *Receiver) doubted(it *item) bool {
	it.doubts++
	return it.doubts > maxDoubts
}

// failed decides about a message that has failed alone, and returns the pause before the next attempt.
func (r *Receiver) failed(it *item, t trouble) time.Duration {
	it.attempts++
	it.last = t.err
	r.failedOnce(it, t.err)
	switch {
	case t.class == troublePermanent, it.attempts >= r.cfg.MaxAttempts:
		it.fate = fateDie
	case it.attempts >= r.cfg.Attempts, t.after != nil && *t.after > longestPause:
		it.fate = fatePark
		delay := r.delay(t, it.attempts-r.cfg.Attempts+1).Microseconds()
		it.after = &delay
	case t.after != nil:
		return *t.after
	default:
		return backoff.Delay(firstPause, longestPause, it.attempts)
	}
	return 0
}

// The pauses between attempts in a row.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = time.Second
)

// delay returns the delay of the next attempt of a parked message. attempt counts from 1.
func (r *Receiver) delay(t trouble, attempt int) time.Duration {
	if t.after != nil {
		return min(*t.after, maxDelay)
	}
	return backoff.Delay(r.cfg.BaseDelay, r.cfg.MaxDelay, attempt)
}

// maxDelay is the longest delay that a method may ask for.
const maxDelay = 10 * 365 * 24 * time.Hour

// attempt settles a batch in one transaction. With an error nothing was written, unless the answer to the commit got
// lost. at is the index of the message that failed, or -1 if that is not known.
func (r *Receiver) attempt(ctx, work context.Context, batch []*item) (at int, err error) {
	if !r.acquire(ctx) {
		return -1, context.Cause(ctx)
	}
	behind, at, err := func() ([]string, int, error) {
		defer r.free()
		return r.transact(work, batch)
	}()
	if err != nil {
		return at, err
	}
	if len(behind) > 0 {
		r.promote(work, behind) // Run does it later if this fails
	}
	for _, it := range batch {
		r.settled(it)
	}
	return 0, nil
}

// acquire waits for a free slot. It reports false if ctx ends first.
func (r *Receiver) acquire(ctx context.Context) bool {
	select {
	case r.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// free gives a slot back.
func (r *Receiver) free() { <-r.slots }

// transact is the transaction of attempt. behind are the keys of messages that now wait behind another one.
func (r *Receiver) transact(ctx context.Context, batch []*item) (behind []string, at int, err error) {
	tx, err := r.begin(ctx)
	if err != nil {
		return nil, -1, err
	}
	defer rollback(tx)
	encoding := encodingOf(tx)
	outcomes := make([]Outcome, len(batch))
	known, err := r.known(ctx, tx, batch, encoding)
	if err != nil {
		return nil, -1, lost(tx, err)
	}
	var keep keeping
	var prepared []*consume.Prepared
	var places []int // of prepared in batch
	for i, it := range batch {
		key := clean(it.key, encoding)
		switch {
		case known.kept[clean(it.id, encoding)] != "":
			outcomes[i] = known.kept[clean(it.id, encoding)]
		case it.fate == fateIgnore:
			outcomes[i] = Ignored
		case it.fate == fateDie:
			outcomes[i], err = Dead, keep.add(it, encoding, Dead, 0)
		case it.key != "" && known.parked[key]:
			behind = append(behind, key)
			outcomes[i], err = Parked, keep.add(it, encoding, Parked, -1)
		case it.fate == fatePark:
			outcomes[i], err = Parked, keep.add(it, encoding, Parked, *it.after)
		default:
			if it.unready != nil { // what it needs to be read may be there now
				if err := r.read(ctx, it); err != nil {
					return nil, i, err
				}
			}
			prepared, places = append(prepared, it.prepared), append(places, i)
		}
		if err != nil {
			return nil, i, err
		}
	}
	if len(prepared) > 0 {
		done, at, err := r.effects(ctx, tx, prepared)
		if err != nil {
			if at >= 0 {
				at = places[at]
			}
			return nil, at, err
		}
		for n, i := range places {
			outcomes[i] = Outcome(done[n])
		}
	}
	if len(keep.p.MessageIds) > 0 {
		keep.p.ConsumerGroup, keep.p.MaxAttempts = r.group, int32(r.cfg.MaxAttempts)
		if err := r.db.On(tx).InboxMessagePut(ctx, keep.p); err != nil {
			return nil, -1, lost(tx, fmt.Errorf("keep %d messages: %w", len(keep.p.MessageIds), err))
		}
	}
	if err := r.commit(ctx, tx); err != nil {
		return nil, -1, err
	}
	for i, it := range batch {
		it.outcome = outcomes[i]
	}
	return behind, 0, nil
}

// effects records messages in the inbox and applies them.
func (r *Receiver) effects(
	ctx context.Context, tx pgx.Tx, ps []*consume.Prepared,
) (outcomes []inbox.Outcome, at int, err error) {
	outcomes, err = r.consumer.Record(ctx, tx, ps)
	if err != nil {
		if one, is := as[*consume.RecordError](err); is {
			return nil, one.Index, one.Err
		}
		return nil, -1, lost(tx, err)
	}
	for i, p := range ps {
		if outcomes[i] != inbox.Applied {
			continue
		}
		if ctx.Err() != nil {
			return nil, -1, context.Cause(ctx)
		}
		own, cancel := context.WithTimeoutCause(ctx, r.cfg.EffectTimeout, errEffectTimeout)
		err := p.Apply(own, tx)
		late := own.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil && !tx.Conn().IsClosed():
		case late:
			return nil, i, &effectError{
				fmt.Errorf("it did not end within the EffectTimeout %s: %w", r.cfg.EffectTimeout, cmpErr(err)),
			}
		case tx.Conn().IsClosed():
			return nil, i, &lostError{cmpErr(err), true}
		default:
			return nil, i, &effectError{err}
		}
	}
	return outcomes, 0, nil
}

var errEffectTimeout = errors.New("the EffectTimeout is over")

// acquireTimeout bounds the wait for a connection of the pool.
const acquireTimeout = 30 * time.Second

var errNoConnection = fmt.Errorf("no connection within %s: the pool is exhausted, or the database does not answer",
	acquireTimeout)

// begin begins a transaction at READ COMMITTED, whatever the role's default is. Only commit can commit it.
func (r *Receiver) begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := r.beginTx(ctx)
	if err != nil {
		return nil, &lostError{fmt.Errorf("begin transaction: %w", err), false}
	}
	if r.cfg.Begin == nil {
		return tx, nil
	}
	own := methodtx.New(tx, consume.ErrTxOwned)
	if err := own.Check("Config.Begin", usercode.Call("Config.Begin", usercode.Never, func() error {
		return r.cfg.Begin(ctx, own)
	})); err != nil {
		rollback(tx)
		return nil, &lostError{fmt.Errorf("begin transaction: %w", err), false}
	}
	return tx, nil
}

// beginTx waits for a connection, but not for ever: others may keep them all.
func (r *Receiver) beginTx(ctx context.Context) (pgx.Tx, error) {
	limited, cancel := context.WithTimeoutCause(ctx, acquireTimeout, errNoConnection)
	defer cancel()
	tx, err := r.pool.BeginTx(limited, methodtx.Guarded)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return nil, errNoConnection
	}
	return tx, err
}

func (r *Receiver) commit(ctx context.Context, tx pgx.Tx) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // a commit with an ended context would close the connection
	}
	if err := tx.Commit(ctx); err != nil {
		_, answered := as[*pgconn.PgError](err)
		if methodtx.IsOther(err) {
			return &effectError{fmt.Errorf("consumer ended its transaction and began another one: %w", consume.ErrTxOwned)}
		}
		err = fmt.Errorf("commit transaction: %w", err)
		if answered || errors.Is(err, pgx.ErrTxCommitRollback) {
			return &effectError{err} // a deferred constraint, or a method has hidden an error of PostgreSQL
		}
		return &lostError{err, false}
	}
	return nil
}

// rollbackTimeout bounds the rollback of a transaction whose context has ended.
const rollbackTimeout = 5 * time.Second

func rollback(tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // does nothing after a commit
}
