package listener_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

// writer is a producer that does something at random in each step, in one transaction over many of them. It meets the
// condition of the ordering promise: it locks an entity before it enqueues its events.
type writer struct {
	of       *chaos
	name     int
	rng      *rand.Rand
	conn     *pgx.Conn
	tx       pgx.Tx // nil between two transactions
	events   []int  // of tx, then of each of its savepoints
	silent   bool   // tx may be prepared, so that it must not ring
	xid      bool   // tx has one
	gids     int
	prepared []prepared // by this writer; not ended yet
}

// prepared is a transaction in no session.
type prepared struct {
	gid    string
	events int
}

// chance is true in percent of all calls.
func (w *writer) chance(percent int) bool { return w.rng.IntN(100) < percent }

// run takes steps until none are left, and ends the transactions that it has begun.
func (w *writer) run(ctx context.Context) error {
	// The lock timeout cuts off a wait for a prepared transaction that this writer may have to end itself.
	if _, err := w.conn.Exec(ctx, "SET enable_seqscan = off; SET lock_timeout = '20ms'"); err != nil {
		return err
	}
	for w.of.nextStep() {
		if err := w.step(ctx); err != nil {
			return fmt.Errorf("writer %d: %w", w.name, err)
		}
	}
	if w.tx != nil {
		if err := w.commit(ctx); err != nil {
			return err
		}
	}
	for len(w.prepared) > 0 {
		if err := w.decide(ctx); err != nil {
			return err
		}
	}
	return nil
}

// step does one thing. If the database refuses it because of other writers, the transaction is rolled back.
func (w *writer) step(ctx context.Context) error {
	var err error
	if w.tx == nil {
		err = w.start(ctx)
	} else {
		err = w.continueTx(ctx)
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case "55P03", "40P01", "40001": // lock timeout, deadlock, serialization
		if w.tx == nil {
			return nil // the end of the transaction was refused
		}
		return w.rollback(ctx)
	}
	return err
}

func (w *writer) start(ctx context.Context) error {
	for range 30 {
		if !w.of.behind() {
			break
		}
		w.wait(nil, nil)
	}
	if len(w.prepared) > 2 || len(w.prepared) > 0 && w.chance(30) {
		return w.decide(ctx)
	}
	options := pgx.TxOptions{}
	if w.chance(10) {
		options.IsoLevel = pgx.RepeatableRead
	}
	tx, err := w.conn.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	w.tx, w.events, w.silent, w.xid = tx, []int{0}, w.chance(20), false
	if w.chance(50) {
		return w.takeXID(ctx)
	}
	return nil
}

func (w *writer) continueTx(ctx context.Context) error {
	switch n := w.rng.IntN(100); {
	case n < 36:
		return w.enqueue(ctx)
	case n < 39:
		return w.takeXID(ctx)
	case n < 43 && len(w.events) == 1: // a savepoint has its own, younger xid
		return w.overtake(ctx)
	case n < 48:
		w.events = append(w.events, 0)
		return w.exec(ctx, "SAVEPOINT s")
	case n < 56:
		last := len(w.events) - 1
		if last == 0 {
			return w.enqueue(ctx)
		}
		kept := w.events[last]
		w.events = w.events[:last]
		if w.chance(50) {
			w.events[last-1] += kept
			return w.exec(ctx, "RELEASE SAVEPOINT s")
		}
		return w.exec(ctx, "ROLLBACK TO SAVEPOINT s; RELEASE SAVEPOINT s")
	case n < 66:
		w.wait(w.of.heard, w.of.stepped)
		return nil
	case n < 74:
		return w.rollback(ctx)
	case w.silent && w.chance(50):
		return w.prepare(ctx)
	default:
		return w.commit(ctx)
	}
}

func (w *writer) exec(ctx context.Context, sql string, args ...any) error {
	_, err := w.tx.Exec(ctx, sql, args...)
	return err
}

// takeXID assigns the xid by a statement that has nothing to do with events.
func (w *writer) takeXID(ctx context.Context) error {
	w.xid = true
	if w.chance(50) {
		return w.exec(ctx, "INSERT INTO noise DEFAULT VALUES")
	}
	return w.exec(ctx, "SELECT pg_current_xact_id()")
}

// overtake commits an event with a probably older xid and a higher seq than those of a writer that continues after a
// reader has passed the event.
func (w *writer) overtake(ctx context.Context) error {
	if err := w.takeXID(ctx); err != nil {
		return err
	}
	w.wait(w.of.enqueued, nil)
	if err := w.enqueue(ctx); err != nil {
		return err
	}
	if err := w.commit(ctx); err != nil {
		return err
	}
	select {
	case w.of.overtook <- struct{}{}:
	default:
	}
	return nil
}

// wait lets the readers or the other writers work, for a moment or until one of them signals.
func (w *writer) wait(heard, stepped <-chan struct{}) {
	moment := time.NewTimer(time.Duration(w.rng.IntN(3000)) * time.Microsecond)
	defer moment.Stop()
	select {
	case <-heard:
	case <-stepped:
	case <-moment.C:
	}
}

// enqueue writes some events of one entity, or of none. It first locks the entity, whose counter numbers the events.
func (w *writer) enqueue(ctx context.Context) error {
	var events []runtimetest.Said
	entity, before := w.rng.IntN(chaosEntities), 0
	count := 1
	switch n := w.rng.IntN(400); {
	case n < 100:
		count += w.rng.IntN(5)
	case n == 100:
		count = 150
	}
	topic := chaosTopics[w.silent]
	if w.chance(10) {
		topic = chaosLoose[w.silent]
		for range count {
			events = append(events, runtimetest.Said{})
		}
	} else {
		lock := "SELECT n FROM entity WHERE id = $1 FOR UPDATE"
		if w.chance(50) {
			lock += " SKIP LOCKED"
		}
		err := w.tx.QueryRow(ctx, lock, entity).Scan(&before)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // another writer has the lock
		}
		if err != nil {
			return err
		}
		for i := range count {
			events = append(events, runtimetest.Said{Key: chaosKey(entity), N: before + i + 1})
		}
	}
	ids, err := w.write(ctx, topic, events)
	if err != nil {
		return err
	}
	w.events[len(w.events)-1] += count
	err = w.exec(ctx, `
		WITH counted AS (UPDATE entity SET n = n + $2 WHERE id = $1 AND $3)
		INSERT INTO fact (id, seq, bucket, entity, n)
		SELECT g.id, g.seq, g.bucket, g.payload->>'key', (g.payload->>'n')::int
		FROM outbox.log AS g
		WHERE g.xid = pg_current_xact_id() AND g.id = ANY ($4)`, entity, count, events[0].Key != "", ids)
	if err != nil {
		return err
	}
	young := !w.xid
	w.xid = true
	if !young {
		return nil
	}
	select {
	case w.of.enqueued <- struct{}{}:
		select {
		case <-w.of.heard: // an old signal
		default:
		}
		w.wait(w.of.heard, nil)
	default:
	}
	return nil
}

// write enqueues events by one of the functions for it.
func (w *writer) write(ctx context.Context, topic outbox.Topic[runtimetest.Said], events []runtimetest.Said) ([]uuid.UUID, error) {
	var receipts []outbox.Receipt
	var err error
	switch way := w.rng.IntN(3); {
	case way == 0 && len(events) < 20:
		b := &pgx.Batch{}
		queued := make([]*outbox.PendingReceipt, len(events))
		for i, e := range events {
			if queued[i], err = topic.EnqueueInBatch(b, e); err != nil {
				return nil, err
			}
		}
		if err := w.tx.SendBatch(ctx, b).Close(); err != nil {
			return nil, err
		}
		for _, q := range queued {
			r, err := q.Receipt()
			if err != nil {
				return nil, err
			}
			receipts = append(receipts, r)
		}
	case way == 1 && len(events) < 20:
		for _, e := range events {
			r, err := topic.Enqueue(ctx, w.tx, e)
			if err != nil {
				return nil, err
			}
			receipts = append(receipts, r)
		}
	default:
		if receipts, err = topic.EnqueueMany(ctx, w.tx, events); err != nil {
			return nil, err
		}
	}
	ids := make([]uuid.UUID, len(receipts))
	for i, r := range receipts {
		ids[i] = r.ID
	}
	return ids, nil
}

// end detaches the transaction from the writer, and returns it with its number of events.
func (w *writer) end() (tx pgx.Tx, events int) {
	tx, w.tx = w.tx, nil
	for _, n := range w.events {
		events += n
	}
	return tx, events
}

func (w *writer) commit(ctx context.Context) error {
	tx, events := w.end()
	w.of.committed.add(events)
	return tx.Commit(ctx)
}

func (w *writer) rollback(ctx context.Context) error {
	tx, events := w.end()
	w.of.rolledBack.add(events)
	return tx.Rollback(ctx)
}

// prepare prepares the transaction: it stays open, without a session, until decide.
func (w *writer) prepare(ctx context.Context) error {
	tx, events := w.end()
	w.gids++
	gid := fmt.Sprintf("%s-%d-%d", w.of.name, w.name, w.gids)
	if _, err := tx.Exec(ctx, "PREPARE TRANSACTION '"+gid+"'"); err != nil {
		return err
	}
	w.prepared = append(w.prepared, prepared{gid, events})
	w.of.prepared.add(events)
	return nil
}

// decide ends one of the prepared transactions.
func (w *writer) decide(ctx context.Context) error {
	i := w.rng.IntN(len(w.prepared))
	p := w.prepared[i]
	w.prepared = append(w.prepared[:i], w.prepared[i+1:]...)
	end, tally := "COMMIT", &w.of.committed
	if w.chance(40) {
		end, tally = "ROLLBACK", &w.of.rolledBack
	}
	tally.add(p.events)
	_, err := w.conn.Exec(ctx, end+" PREPARED '"+p.gid+"'")
	return err
}
