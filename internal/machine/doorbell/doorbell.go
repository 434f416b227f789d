// Package doorbell wakes processes that sleep until there is an event. An enqueue sends NOTIFY only while a process
// sleeps, not in every transaction.
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

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// Ring says that an event may have been enqueued.
type Ring struct {
	loan     *Loan
	held     bool // this doorbell has the lock
	enqueued bool // an enqueue has rung, and not a sleeper that gives up the lock
}

// Answer is the state after the request with that number.
type Answer struct {
	request int
	state   sleep.Bell
	loan    *Loan
}

const (
	// Timeout bounds each statement on the listening connection, which may be dead without an error.
	Timeout = 3 * time.Second
	// probeTimeout is how long a notification may take to arrive. It is much longer than on a busy machine, because a
	// sleeper that finds no notifications polls for a while.
	probeTimeout = 10 * time.Second
	// noNotificationsPause is how long a doorbell without notifications waits before it tries again.
	noNotificationsPause = 10 * time.Minute
)

// ErrNoNotifications: LISTEN succeeds but no notification arrives. A transaction pooler gives the listening server
// connection to other clients. A sleeper's lock would also stay on that connection.
var ErrNoNotifications = errors.New("notifications do not arrive")

// doorbell keeps the connection that listens for enqueues while its owner sleeps.
//
// An enqueue takes a shared advisory lock until its transaction ends, and sends NOTIFY only if the lock is refused. A
// sleeper takes the lock exclusively, which is refused while such a transaction is open. So a sleeper with the lock
// knows that every event enqueued without a ring is visible to its next check.
//
// One of several sleepers has the lock, the others rely on it, and all receive the rings. A sleeper that gives up the
// lock therefore rings, however it was woken: another sleeper may rely on the lock, and has to check and request it
// again. A sleeper that connects rings too, because a lost connection loses its lock without a ring. If it does not
// receive this ring itself, it does not use the connection.
type doorbell struct {
	pool  *pgxpool.Pool // makes the connection that listens
	main  *pgxpool.Pool // of the owner; producers ring on its database
	lends bool          // both are one: the connection is lent to the owner
	db    *schemadb.Schema
	bell  bell.Bell
	log   *slog.Logger
	told  func(began time.Time, err error)

	probe time.Duration // how long a notification may take to arrive

	rang    chan Ring   // holds one, the latest
	answers chan Answer // holds one, the latest

	dbCtx     context.Context // for statements after the context of run has ended; set by run
	impatient time.Time       // until when it does not wait for open transactions; owned by run
	waiter    *waiter         // the latest; owned by run
	// awaitedUntil is how long the waiter of another process is relied on; owned by run.
	awaitedUntil time.Time

	mu        sync.Mutex
	request   bellRequest
	interrupt context.CancelFunc // makes serve read request again
}

// bellRequest is the state that the owner wants: asleep, so that enqueues ring, or awake.
type bellRequest struct {
	no      int
	asleep  bool
	pending bool // asleep was requested and not answered yet
}

const (
	asleep = true
	awake  = false
)

func newDoorbell(e *Config) *doorbell {
	listen := cmp.Or(e.Listen, e.Main)
	return &doorbell{
		pool: listen, main: e.Main, lends: listen == e.Main, db: e.DB, bell: e.Bell, log: e.Log, told: e.Listening,
		probe: probeTimeout, rang: make(chan Ring, 1), answers: make(chan Answer, 1), interrupt: func() {},
	}
}

// Probe connects as a Sleeper with this configuration would, and returns an error unless a notification arrives within
// wait. If LISTEN succeeds and nothing arrives, the error wraps ErrNoNotifications.
func Probe(ctx context.Context, e *Config, wait time.Duration) error {
	b := newDoorbell(e)
	b.probe = wait
	conn, err := b.listen(ctx)
	if err != nil {
		return err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
	defer cancel()
	return conn.Close(end)
}

// setRequest sets the state that the owner wants and returns the number of the request. A request to be asleep is
// answered in b.answers with that number.
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
func (b *doorbell) answer(a Answer) { replace(b.answers, a) }

// ring replaces a ring that nobody has read, whose loan has ended. Whatever that one was, a check follows soon unless both
// were by enqueues.
func (b *doorbell) ring(r Ring) {
	select {
	case unread := <-b.rang:
		r.held, r.enqueued = r.held && unread.held, r.enqueued && unread.enqueued
	default:
	}
	replace(b.rang, r)
}

// replace makes v what in, which holds one, holds.
func replace[T any](in chan T, v T) {
	for {
		select {
		case in <- v:
			return
		case <-in:
		}
	}
}

// run keeps a connection listening until ctx ends, and then gives up the lock, for which dbCtx bounds the time. Rings
// are lost while there is no connection. Therefore the owner checks when the connection is made, when it is lost, and
// again when its next request is answered.
func (b *doorbell) run(ctx, dbCtx context.Context) {
	b.dbCtx = dbCtx
	defer func() {
		if b.waiter.want(false); b.waiter.active() {
			<-b.waiter.over
		}
	}()
	var trouble backoff.Retrier
	noNotifications := false
	for ctx.Err() == nil {
		began := time.Now()
		conn, err := b.listen(ctx)
		if err == nil {
			b.told(began, nil)
			if noNotifications {
				b.log.Info("doorbell: notifications arrive again")
			}
			noNotifications = false
			trouble.Reset()
			b.ring(Ring{})
			err = b.serve(ctx, conn)
			end, cancel := context.WithTimeout(dbCtx, Timeout)
			_ = conn.Close(end)
			cancel()
			b.answer(Answer{state: sleep.Gone})
		}
		if ctx.Err() != nil {
			return
		}
		pause := trouble.Next()
		if errors.Is(err, ErrNoNotifications) {
			if !noNotifications {
				b.log.Warn("doorbell: notifications do not arrive, as through a transaction pooler: polling instead. "+
					"Set ListenPool to a pool that connects to this database directly, or Wake to WakePoll", "channel",
					b.bell.Channel)
			}
			noNotifications, pause = true, backoff.Around(noNotificationsPause)
		} else {
			b.log.Debug("doorbell: polling until it is back", "error", err)
			if trouble.Tries() > 1 {
				b.told(began, err)
			}
		}
		backoff.Sleep(ctx, pause)
	}
}

// listen returns a connection that has received a ring. That ring also wakes the other sleepers.
func (b *doorbell) listen(ctx context.Context) (*pgx.Conn, error) {
	within, cancel := context.WithTimeout(ctx, 2*Timeout)
	defer cancel()
	conn, err := b.connect(within)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := b.subscribe(within, ctx, conn); err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
		defer cancel()
		return nil, errtext.Join(fmt.Errorf("listen: %w", err), conn.Close(end))
	}
	return conn, nil
}

// connect returns a connection that does not count against the limit of its pool while it waits.
func (b *doorbell) connect(ctx context.Context) (*pgx.Conn, error) {
	within, cancel := context.WithTimeout(ctx, 2*Timeout)
	defer cancel()
	pooled, err := b.pool.Acquire(within)
	if err != nil {
		return nil, err
	}
	return pooled.Hijack(), nil
}

// subscribe makes conn listen, for which within bounds the time, and waits until conn has received a ring, or ctx ends.
// The ring is sent through the main pool, because conn would receive its own notification in the same answer, even
// through a pooler.
func (b *doorbell) subscribe(within, ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(within, "LISTEN "+pgx.Identifier{b.bell.Channel}.Sanitize()); err != nil {
		return err
	}
	token := uuid.NewString()
	if err := b.db.Each(b.main).BellProbe(within, queries.BellProbeParams{
		Channel: b.bell.Channel, Token: token,
	}); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, b.probe)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(wait)
		switch {
		case err == nil && n.Payload == token:
			return nil
		case err == nil: // another process's ring: the owner checks anyway when serve begins
			continue
		case wait.Err() == nil || ctx.Err() != nil || conn.IsClosed():
			return err
		}
		ping, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		if err := conn.Ping(ping); err != nil {
			return err // the connection is lost: this is another error
		}
		// The pooler's connection keeps listening until the pooler closes it. Nobody rings for it, because producers
		// ring only while the lock is held, and it was not taken.
		return ErrNoNotifications
	}
}

// serve answers requests and listens until conn fails, or until ctx ends and it has given up the lock.
func (b *doorbell) serve(ctx context.Context, conn *pgx.Conn) error {
	q := b.db.Each(conn)
	locked := false
	for {
		w, wait, cancel := b.next(ctx)
		var err error
		switch {
		case (locked || b.waiter.watches()) && (ctx.Err() != nil || !w.asleep):
			b.waiter.want(false)
			if locked {
				err = b.unlock(q)
			}
			locked = false
		case w.pending && ctx.Err() == nil:
			var state sleep.Bell
			if locked, state, err = b.lock(locked, conn); err == nil {
				err = b.lend(wait, conn, func(loan *Loan) { b.answer(Answer{request: w.no, state: state, loan: loan}) })
			}
		}
		if err == nil {
			err = b.waitForRing(wait, conn, locked || b.waiter.watches())
		}
		cancel()
		if err != nil || ctx.Err() != nil && !locked {
			return err
		}
	}
}

// waitForRing waits for a ring until ctx ends, and lends conn with it.
func (b *doorbell) waitForRing(ctx context.Context, conn *pgx.Conn, held bool) error {
	n, err := conn.WaitForNotification(ctx)
	switch {
	case err != nil && ctx.Err() != nil && !conn.IsClosed():
		return nil
	case err != nil:
		return fmt.Errorf("listen: %w", err)
	case n.PID != conn.PgConn().PID():
		return b.lend(ctx, conn, func(loan *Loan) { b.ring(Ring{loan: loan, held: held, enqueued: n.Payload == ""}) })
	}
	return nil
}
