// Package doorbell wakes those who sleep until there is an event, without a NOTIFY in the transaction of every enqueue: it is
// sent only while somebody sleeps.
package doorbell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/backoff"
	"github.com/outboxgen/outboxgen/internal/dbschema"
	"github.com/outboxgen/outboxgen/internal/dbsqlc"
)

// bellState is the answer to a request to sleep.
type bellState int

const (
	// bellWatches: from now on an enqueue rings, since this dispatcher or another has the lock.
	bellWatches bellState = iota
	// bellBusy: a transaction that has enqueued is open, and will commit without ringing.
	bellBusy
	// bellGone: the connection is lost; nobody watches until it is back.
	bellGone
)

// Answer is the state after the request of that number.
type Answer struct {
	request int
	state   bellState
}

const (
	// Timeout bounds each statement on the listening connection, which may lead into a black hole.
	Timeout = 3 * time.Second
	// probeTimeout is how long a notification may take to arrive: much longer than it does on a busy machine, because
	// a sleeper that believes it hears nothing polls for a while.
	probeTimeout = 10 * time.Second
	// noNotificationsPause is how long a doorbell that hears nothing waits until it tries again.
	noNotificationsPause = 10 * time.Minute
)

// errNoNotifications: LISTEN succeeds and nothing arrives. A transaction pooler gives the server connection that listens to other
// clients; the lock of a sleeper would stay on it, too.
var errNoNotifications = errors.New("notifications do not arrive")

// doorbell keeps the connection that listens for enqueues while its dispatcher sleeps.
//
// An enqueue takes a shared advisory lock until its transaction ends, and sends NOTIFY only if that is
// refused. A sleeper takes the lock exclusively: refused while such a transaction is open, so holding it
// proves that whatever was enqueued without ringing is visible to the next check.
//
// Of several sleepers one has the lock, the others rely on it, and all hear the bell. So a sleeper that gives up the lock
// rings, however it was woken: another may have gone to sleep since, relying on it, and has to check and ask again. A sleeper
// that connects rings too, because a lost connection loses its lock without a ring; it hears that ring itself, or does not
// use the connection.
type doorbell struct {
	pool *pgxpool.Pool // makes the connection that listens
	main *pgxpool.Pool // of the dispatcher, on whose database producers ring
	db   *dbschema.Schema
	bell Bell
	log  *slog.Logger

	rang    chan struct{} // somebody enqueued, or may have; holds one
	answers chan Answer   // holds one, the latest

	dbCtx context.Context // of statements after the context of run has ended; set by run

	mu        sync.Mutex
	request   bellRequest
	interrupt context.CancelFunc // makes serve read request again
}

// bellRequest is what the dispatcher wants to be: asleep, so that enqueues ring, or awake.
type bellRequest struct {
	no      int
	asleep  bool
	pending bool // asleep has not been answered
}

const (
	asleep = true
	awake  = false
)

func newDoorbell(e *Config) *doorbell {
	return &doorbell{
		pool: cmp.Or(e.Listen, e.Main), main: e.Main, db: e.DB, bell: e.Bell, log: e.Log,
		rang: make(chan struct{}, 1), answers: make(chan Answer, 1), interrupt: func() {},
	}
}

// setRequest says what the dispatcher wants to be and returns the number of the request. To asleep an answer with
// that number comes by b.answers.
func (b *doorbell) setRequest(asleep bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.request = bellRequest{no: b.request.no + 1, asleep: asleep, pending: asleep}
	b.interrupt()
	return b.request.no
}

// next returns the current request, and a context that ends when there is another.
func (b *doorbell) next(ctx context.Context) (bellRequest, context.Context, context.CancelFunc) {
	wait, cancel := context.WithCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.request
	b.request.pending, b.interrupt = false, cancel
	return w, wait, cancel
}

// answer replaces an answer that nobody has read.
func (b *doorbell) answer(a Answer) {
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

// run keeps a connection listening until ctx ends, and then gives up the lock while dbCtx lasts. What was sent while there was
// no connection is lost: its owner checks when the connection is there, when it is gone, and again when its next request is
// answered.
func (b *doorbell) run(ctx, dbCtx context.Context) {
	b.dbCtx = dbCtx
	var trouble backoff.Retrier
	noNotifications := false
	for ctx.Err() == nil {
		conn, err := b.listen(ctx)
		if err == nil {
			if noNotifications {
				b.log.Info("doorbell: notifications arrive again")
			}
			noNotifications = false
			trouble.Reset()
			b.ring()
			err = b.serve(ctx, conn)
			end, cancel := context.WithTimeout(dbCtx, Timeout)
			_ = conn.Close(end)
			cancel()
			b.answer(Answer{state: bellGone})
		}
		if ctx.Err() != nil {
			return
		}
		pause := trouble.Next()
		if errors.Is(err, errNoNotifications) {
			if !noNotifications {
				b.log.Warn("doorbell: notifications do not arrive, as through a transaction pooler: polling instead. "+
					"Set ListenPool to a pool that connects to this database directly, or Wake to WakePoll", "channel", b.bell.Channel)
			}
			noNotifications, pause = true, backoff.Around(noNotificationsPause)
		} else {
			b.log.Warn("doorbell: polling until it is back", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// listen returns a connection that has been seen to hear the bell, rung for the others at the same time.
func (b *doorbell) listen(ctx context.Context) (*pgx.Conn, error) {
	within, cancel := context.WithTimeout(ctx, 2*Timeout)
	defer cancel()
	pooled, err := b.pool.Acquire(within)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	conn := pooled.Hijack() // it must not count against the pool while it waits
	if err := b.subscribe(within, ctx, conn); err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("listen: %w", err), conn.Close(end))
	}
	return conn, nil
}

// subscribe makes conn listen, which ends with within, and waits until it has heard a ring, which ends with ctx. The ring
// is sent through the pool whose events are to be noticed, because what conn sends itself comes back to it in the same
// answer, also through a pooler.
func (b *doorbell) subscribe(within, ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(within, "LISTEN "+pgx.Identifier{b.bell.Channel}.Sanitize()); err != nil {
		return err
	}
	token := uuid.NewString()
	if err := b.db.Each(b.main).BellProbe(within, dbsqlc.BellProbeParams{Channel: b.bell.Channel, Token: token}); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(wait)
		switch {
		case err == nil && n.Payload == token:
			return nil
		case err == nil: // somebody else's: our owner looks in any case, once we serve
			continue
		case wait.Err() == nil || ctx.Err() != nil || conn.IsClosed():
			return err
		}
		ping, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		if err := conn.Ping(ping); err != nil {
			return err // the connection is lost, which is another thing
		}
		// The pooler's connection listens on, until the pooler retires it. Nobody rings for it: only the lock would have
		// producers ring, and it has not been taken.
		return errNoNotifications
	}
}

// serve answers and listens until ctx ends, which gives up the lock, or conn fails.
func (b *doorbell) serve(ctx context.Context, conn *pgx.Conn) error {
	q := b.db.Each(conn)
	locked := false
	for {
		w, wait, cancel := b.next(ctx)
		var err error
		switch {
		case locked && (ctx.Err() != nil || !w.asleep):
			locked = false
			err = b.unlock(q)
		case w.pending && ctx.Err() == nil:
			var state bellState
			if locked, state, err = b.lock(locked, conn); err == nil {
				b.answer(Answer{request: w.no, state: state})
			}
		}
		if err == nil {
			err = b.waitForRing(wait, conn)
		}
		cancel()
		if err != nil || ctx.Err() != nil && !locked {
			return err
		}
	}
}

// waitForRing waits for the bell until ctx ends.
func (b *doorbell) waitForRing(ctx context.Context, conn *pgx.Conn) error {
	n, err := conn.WaitForNotification(ctx)
	switch {
	case err != nil && ctx.Err() != nil && !conn.IsClosed():
		return nil
	case err != nil:
		return fmt.Errorf("listen: %w", err)
	case n.PID != conn.PgConn().PID():
		b.ring()
	}
	return nil
}

// unlock gives up the lock and then wakes the sleepers that relied on it.
func (b *doorbell) unlock(q *dbsqlc.Queries) error {
	ctx, cancel := context.WithTimeout(b.dbCtx, Timeout)
	defer cancel()
	if _, err := q.BellUnlock(ctx, b.bell.Key); err != nil {
		return fmt.Errorf("unlock doorbell: %w", err)
	}
	if err := q.BellRing(ctx, b.bell.Channel); err != nil {
		return fmt.Errorf("ring doorbell: %w", err)
	}
	return nil
}

// lock tries to take the lock, unless it is held: then it makes sure of the connection. It is not cut off when
// the context of run ends, because a lock that it took would be released without a ring.
func (b *doorbell) lock(locked bool, conn *pgx.Conn) (bool, bellState, error) {
	ctx, cancel := context.WithTimeout(b.dbCtx, Timeout)
	defer cancel()
	q := b.db.Each(conn)
	if locked {
		return true, bellWatches, conn.Ping(ctx)
	}
	locked, err := q.BellTryLock(ctx, b.bell.Key)
	if err != nil {
		return false, bellGone, fmt.Errorf("lock doorbell: %w", err)
	}
	if locked {
		return true, bellWatches, nil
	}
	other, err := q.BellLocked(ctx, b.bell.Key)
	switch {
	case err != nil:
		return false, bellGone, fmt.Errorf("lock doorbell: %w", err)
	case other:
		return false, bellWatches, nil
	}
	return false, bellBusy, nil
}
