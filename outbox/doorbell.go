package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// bellAnswer is what became of the wish to sleep.
type bellAnswer int

const (
	// bellWatches: from now on an enqueue rings, since this dispatcher or another holds the lock.
	bellWatches bellAnswer = iota
	// bellBusy: a transaction that has enqueued is open, and will commit without ringing.
	bellBusy
	// bellGone: the connection is lost; nobody watches until it is back.
	bellGone
)

// doorbell keeps the connection that listens for enqueues while its dispatcher sleeps.
//
// An enqueue takes a shared advisory lock until its transaction ends, and sends NOTIFY only if that is
// refused. A sleeper takes the lock exclusively: refused while such a transaction is open, so holding it
// proves that whoever enqueued without ringing is visible to the next look. Of several sleepers one
// holds the lock and all hear the bell.
type doorbell struct {
	pool *pgxpool.Pool
	db   *database
	bell bell
	log  *slog.Logger

	rang    chan struct{}   // somebody enqueued, or may have; holds one
	answers chan bellAnswer // to sleep; holds one, the latest

	mu        sync.Mutex
	asked     bool // sleep has not been answered
	awake     bool // let go of the lock
	rouse     bool // and wake the other sleepers
	interrupt context.CancelFunc
	busy      int // refusals in a row
}

func newDoorbell(d *Dispatcher) *doorbell {
	b := &doorbell{
		pool: d.cfg.ListenPool, db: d.store.db, bell: d.store.db.bell(d.store.namespace), log: d.log,
		rang: make(chan struct{}, 1), answers: make(chan bellAnswer, 1), awake: true,
	}
	if b.pool == nil {
		b.pool = d.pool
	}
	return b
}

// sleep asks to be woken; the answer comes by b.answers.
func (b *doorbell) sleep() { b.ask(true, false) }

// wakeUp says that the dispatcher is busy again: enqueues need not ring for it. heard tells that the bell
// woke it, and so every other sleeper; else they still sleep, and would do so without a watch.
func (b *doorbell) wakeUp(heard bool) { b.ask(false, !heard) }

func (b *doorbell) ask(sleep, rouse bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked, b.awake, b.rouse = sleep, !sleep, rouse
	if b.interrupt != nil {
		b.interrupt()
	}
}

// answer replaces an answer that nobody has read.
func (b *doorbell) answer(a bellAnswer) {
	for {
		select {
		case b.answers <- a:
			return
		case <-b.answers:
		}
	}
}

func (b *doorbell) ring() {
	select {
	case b.rang <- struct{}{}:
	default:
	}
}

// busyPause is how long to wait before the next look while bellBusy: short, because it is the latency of
// the event that the open transaction may hold, and growing, because it may be open for hours.
func (b *doorbell) busyPause() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy++
	return backoff(2*time.Millisecond, 25*time.Millisecond, b.busy)
}

// run keeps a connection listening until ctx ends.
func (b *doorbell) run(ctx context.Context) {
	var trouble retrier
	for ctx.Err() == nil {
		conn, err := b.listen(ctx)
		if err == nil {
			trouble.reset()
			b.ring() // what was sent while nobody listened is lost
			err = b.serve(ctx, conn)
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			_ = conn.Close(end)
			cancel()
			b.answer(bellGone)
		}
		if ctx.Err() != nil {
			return
		}
		b.log.Warn("doorbell: polling until it is back", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(trouble.next()):
		}
	}
}

func (b *doorbell) listen(ctx context.Context) (*pgx.Conn, error) {
	pooled, err := b.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	conn := pooled.Hijack() // it must not count against the pool while it waits
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{b.bell.channel}.Sanitize()); err != nil {
		_ = conn.Close(ctx)
		return nil, fmt.Errorf("listen: %w", err)
	}
	return conn, nil
}

// serve answers and listens until ctx ends or conn fails.
func (b *doorbell) serve(ctx context.Context, conn *pgx.Conn) error {
	q := b.db.on(conn)
	held := false
	for {
		b.mu.Lock()
		asked, awake, rouse := b.asked, b.awake, b.rouse
		b.asked = false
		wait, cancel := context.WithCancel(ctx)
		b.interrupt = cancel
		b.mu.Unlock()

		var err error
		switch {
		case ctx.Err() != nil && held:
			// The next sleeper has to take over the watch.
			end, done := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			if _, err = q.BellLetGo(end, b.bell.key); err == nil {
				err = q.BellRing(end, b.bell.channel)
			}
			done()
			held = false
		case ctx.Err() != nil:
			cancel()
			return ctx.Err()
		case awake && held:
			_, err = q.BellLetGo(ctx, b.bell.key)
			if held = false; err == nil && rouse {
				err = q.BellRing(ctx, b.bell.channel)
			}
		case asked:
			held, err = b.hold(ctx, held, conn)
		}
		if err == nil {
			_, err = conn.WaitForNotification(wait)
			interrupted := wait.Err() != nil && !conn.IsClosed()
			switch {
			case err == nil:
				b.ring()
			case interrupted:
				err = nil
			}
		}
		cancel()
		if err != nil {
			return err
		}
	}
}

// hold tries to take the lock and answers the wish to sleep.
func (b *doorbell) hold(ctx context.Context, held bool, conn *pgx.Conn) (bool, error) {
	q := b.db.on(conn)
	if !held {
		var err error
		if held, err = q.BellTryHold(ctx, b.bell.key); err != nil {
			return false, err
		}
	}
	watched := held
	if !watched {
		var err error
		if watched, err = q.BellHeld(ctx, b.bell.key); err != nil {
			return held, err
		}
	}
	if watched {
		b.mu.Lock()
		b.busy = 0
		b.mu.Unlock()
		b.answer(bellWatches)
	} else {
		b.answer(bellBusy)
	}
	return held, nil
}
