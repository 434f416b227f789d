package shop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
	"github.com/outboxgen/outboxgen/outbox"
)

// written is an event that a writer writes.
type written struct {
	topic     string
	tenant    uuid.UUID
	item      string
	n         int64
	mood      string
	notBefore *time.Time
}

// mix is how many events of each topic a transaction has.
var mix = []struct {
	topic string
	n     int
}{{OrderPlaced, 16}, {ReminderDue, 4}, {StockMoved, 12}, {ParcelSent, 6}, {InvoiceSent, 2}}

const perTx = 40

// burst is how many more reminders a transaction has that is told so.
const burst = 200

// The ways in which a transaction goes. Most are plain.
const (
	plain        = iota
	rolledBack   // on purpose
	savepoint    // a part is rolled back
	serializable // may conflict with another writer
	unsynced     // does not wait for the disk, so that its outcome is unknown
	twice        // enqueues some events twice
	lazy         // waits before it commits
)

const (
	txTimeout = 10 * time.Second
	lateness  = 3 * time.Second
)

// writer writes events as fast as its rate.
type writer struct {
	*Orders
	journal *Journal
	pool    *pgxpool.Pool
	rand    *rand.Rand
	late    bool // the next transaction commits late
	poison  bool // the next transaction has an event that ends the process of its handler
	burst   bool // the next transaction has many events of a topic with limits
}

func (o *Orders) write(ctx context.Context, j *Journal, told <-chan string) error {
	pool, err := open(ctx, o.Database, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	w := &writer{Orders: o, journal: j, pool: pool, rand: rand.New(rand.NewPCG(o.Seed, 1))}
	ready()
	next := time.Now()
	for ctx.Err() == nil {
		select {
		case word := <-told:
			w.late = w.late || word == TellLate
			w.poison = w.poison || word == TellPoison
			w.burst = w.burst || word == TellBurst
		default:
		}
		err := w.transaction(ctx)
		pause := time.Duration(float64(perTx) / o.Rate * float64(time.Second))
		if next = next.Add(pause); time.Until(next) < -time.Second { // it does not catch up with all that it has missed
			next = time.Now().Add(-time.Second)
		}
		wait := time.Until(next)
		if err != nil {
			wait = max(wait, 20*time.Millisecond)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// transaction writes the events of one transaction and says in the journal how it ended.
func (w *writer) transaction(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), txTimeout)
	defer cancel()
	way := plain
	if n := w.rand.IntN(100); n < 14 && !w.Calm {
		way = []int{rolledBack, rolledBack, rolledBack, savepoint, savepoint, savepoint, serializable, serializable, serializable, serializable, unsynced, unsynced, twice, lazy}[n]
	}
	opts := pgx.TxOptions{}
	if way == serializable {
		opts.IsoLevel = pgx.Serializable
	}
	tx, err := w.pool.BeginTx(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit it does nothing
	id := uuid.New()
	ids, err := w.enqueue(ctx, tx, way)
	if err != nil || way == rolledBack {
		w.journal.transaction(id, check.Aborted, ids) // the commit is never sent
		return err
	}
	w.journal.transaction(id, check.Unknown, ids)
	switch {
	case w.late:
		w.late = false
		<-time.After(lateness)
	case way == lazy:
		<-time.After(300 * time.Millisecond)
	}
	err = tx.Commit(ctx)
	var refused *pgconn.PgError
	switch {
	case err == nil && way == unsynced: // stays unknown
	case err == nil:
		w.journal.transaction(id, check.Committed, ids)
	case errors.As(err, &refused) && refused.Code == "40001", errors.Is(err, pgx.ErrTxCommitRollback):
		w.journal.transaction(id, check.Aborted, ids)
	}
	return err
}

// enqueue writes the events of a transaction, and their rows. It returns the ids that it has got, with an error too.
func (w *writer) enqueue(ctx context.Context, tx pgx.Tx, way int) ([]check.ID, error) {
	if way == unsynced {
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = off"); err != nil {
			return nil, err
		}
	}
	item, tenant := itemOf(w.rand.IntN(w.Items))
	all := int64(perTx)
	if w.burst {
		all += burst
	}
	var last int64
	if err := tx.QueryRow(ctx, "UPDATE items SET n = n + $2 WHERE item = $1 RETURNING n", item, all).Scan(&last); err != nil {
		return nil, err
	}
	n := last - all
	var ids []check.ID
	for _, part := range mix {
		if part.topic == ReminderDue && w.burst {
			w.burst = false
			part.n += burst
		}
		es := make([]written, part.n)
		for i := range es {
			n++
			es[i] = written{part.topic, tenant, item, n, w.mood(part.topic), nil}
		}
		if part.topic == ReminderDue && w.rand.IntN(4) == 0 {
			at := time.Now().Add(time.Duration(w.rand.IntN(8000)) * time.Millisecond).Truncate(time.Microsecond)
			for i := range es {
				es[i].notBefore = &at
			}
		}
		if way == savepoint && part.topic == StockMoved {
			if err := w.lose(ctx, tx, es); err != nil {
				return ids, err
			}
			continue
		}
		more, err := w.some(ctx, tx, es)
		ids = append(ids, more...)
		if err != nil {
			return ids, err
		}
		if way == twice && part.topic == OrderPlaced {
			if err := w.again(ctx, tx, es, more); err != nil {
				return ids, err
			}
		}
	}
	return ids, nil
}

func (w *writer) mood(topic string) string {
	if w.poison && topic == OrderPlaced {
		w.poison = false
		return exits
	}
	switch {
	case !w.Calm:
		return drawMood(topic, w.rand)
	case topic == OrderPlaced && w.rand.IntN(100) < calmSlow:
		return slow
	}
	return fine
}

// some enqueues events of one topic and inserts their rows.
func (w *writer) some(ctx context.Context, tx pgx.Tx, es []written) ([]check.ID, error) {
	var opts []outbox.EnqueueOption
	if es[0].notBefore != nil {
		opts = append(opts, outbox.WithNotBefore(*es[0].notBefore))
	}
	receipts, err := w.edition().enqueue(ctx, tx, es[0].topic, es, opts...)
	if err != nil {
		return nil, err
	}
	ids := make([]check.ID, len(es))
	rows := make([]uuid.UUID, len(es))
	numbers, moods := make([]int64, len(es)), make([]string, len(es))
	for i, r := range receipts {
		ids[i], rows[i], numbers[i], moods[i] = check.ID(r.ID), r.ID, es[i].n, es[i].mood
		if r.Duplicate {
			w.journal.must(check.Line{Kind: check.Bad, Event: ids[i], Say: "a new event is called a duplicate"})
		}
	}
	_, err = tx.Exec(ctx, "INSERT INTO placed (event, topic, item, n, mood, not_before) SELECT e, $2, $3, n, m, $6 FROM unnest($1::uuid[], $4::bigint[], $5::text[]) AS u (e, n, m)",
		rows, es[0].topic, es[0].item, numbers, moods, es[0].notBefore)
	return ids, err
}

// lose enqueues events within a savepoint that it rolls back.
func (w *writer) lose(ctx context.Context, tx pgx.Tx, es []written) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	ids, err := w.some(ctx, inner, es)
	w.journal.transaction(uuid.New(), check.Aborted, ids)
	return errors.Join(err, inner.Rollback(ctx))
}

// again enqueues events that are there, which must change nothing.
func (w *writer) again(ctx context.Context, tx pgx.Tx, es []written, ids []check.ID) error {
	receipts, err := w.edition().enqueue(ctx, tx, es[0].topic, es)
	if err != nil {
		return err
	}
	for i, r := range receipts {
		if !r.Duplicate || check.ID(r.ID) != ids[i] {
			w.journal.must(check.Line{Kind: check.Bad, Event: ids[i], Say: fmt.Sprintf("enqueued again: duplicate %t, event %s", r.Duplicate, r.ID)})
		}
	}
	return nil
}
