package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/examples/minichat/ledger"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

const (
	workerVariable = "MINICHAT_WORKER_ID"
	concurrency    = 8
	// lease is short, so that the events of the killed dispatcher are claimed again soon.
	lease = 3 * time.Second
	// holdUp is how many handlers must be blocked before the dispatcher reports it.
	holdUp = 4
)

// The tags with which a producer tells the handlers how to behave.
const (
	tagFlaky     = "demo:flaky"     // the first attempt fails
	tagFails     = "demo:fails"     // every attempt fails
	tagPermanent = "demo:permanent" // the first attempt fails permanently
	tagSlow      = "demo:slow"      // takes some time
	tagVerySlow  = "demo:very-slow" // takes longer than the lease
)

// dispatchMain is the child process: a dispatcher of minichat that runs until its standard input ends. The input also
// ends when the parent dies.
func dispatchMain(journalPath string) int {
	// An interrupt from the terminal reaches the whole process group. The parent decides what to do.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := dispatch(ctx, stop, journalPath); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return exitBroken
	}
	return exitFine
}

func dispatch(ctx context.Context, stop context.CancelFunc, journalPath string) error {
	worker, err := uuid.Parse(os.Getenv(workerVariable))
	if err != nil {
		return fmt.Errorf("read %s: %w", workerVariable, err)
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()
	j, err := openJournal(journalPath)
	if err != nil {
		return err
	}
	h := &witness{next: &events.MiniChatHandler{Ledger: ledger.New(pool)}, journal: j}
	d, err := events.NewMiniChatDispatcher(pool, h, queue.Config{
		WorkerID:        worker,
		BatchSize:       50,
		Concurrency:     concurrency,
		LeaseDuration:   lease,
		MaxAttempts:     3,
		ShutdownTimeout: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	go func() {
		defer stop()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			h.holding.Store(lines.Text() == sayHold)
		}
	}()
	_, _ = fmt.Println(saysReady)
	return errors.Join(d.Run(ctx), j.close())
}

// witness passes events to the handlers of minichat, misbehaves according to their tags, and records what happened.
type witness struct {
	next    events.MiniChatHandlers
	journal *journal
	holding atomic.Bool
	held    atomic.Int32
}

var _ events.MiniChatHandlers = (*witness)(nil)

// HandleTurnFinalized handles one event and records that.
func (w *witness) HandleTurnFinalized(ctx context.Context, d outbox.Delivery[events.TurnFinalized]) error {
	record := delivery{Turn: d.Payload.TurnID, Event: d.ID, Attempt: d.Attempt, Step: started}
	if err := w.journal.add(record); err != nil {
		return err
	}
	err := misbehave(ctx, d)
	if err == nil {
		err = w.next.HandleTurnFinalized(ctx, d)
	}
	record.Step = handled
	if err != nil {
		record.Step = failed
	}
	if err := w.journal.add(record); err != nil {
		return err
	}
	if w.holding.Load() {
		if w.held.Add(1) == holdUp {
			_, _ = fmt.Println(saysHolding)
		}
		<-ctx.Done() // killed here
	}
	return err
}

func misbehave(ctx context.Context, d outbox.Delivery[events.TurnFinalized]) error {
	tagged := func(tag string) bool { return slices.Contains(d.Payload.Tags, tag) }
	switch {
	case tagged(tagPermanent):
		return outbox.Permanent(errors.New("the model is not billable"))
	case tagged(tagFails), tagged(tagFlaky) && d.Attempt == 1:
		return errors.New("billing is down")
	case tagged(tagSlow):
		return wait(ctx, 100*time.Millisecond)
	case tagged(tagVerySlow):
		return wait(ctx, lease+lease/3)
	}
	return nil
}

// wait simulates a call that takes d.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
