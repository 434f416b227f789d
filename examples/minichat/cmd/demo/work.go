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
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/worker"
)

const (
	workerVariable = "MINICHAT_WORKER_ID"
	concurrency    = 8
	// lease is short, so that the events of the killed worker are claimed again soon.
	lease           = 3 * time.Second
	shutdownTimeout = 5 * time.Second
	// holdUp is how many handlers must be blocked before the worker reports it.
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

// workMain is the child process: a worker of minichat that runs until its standard input ends. The input also ends when
// the parent dies. It records what its handlers did in the journals deliveries and shown.
func workMain(deliveries, shown string) int {
	// An interrupt from the terminal reaches the whole process group. The parent decides what to do.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := work(ctx, stop, deliveries, shown); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return exitBroken
	}
	return exitFine
}

func work(ctx context.Context, stop context.CancelFunc, deliveries, shown string) error {
	id, err := uuid.Parse(os.Getenv(workerVariable))
	if err != nil {
		return fmt.Errorf("read %s: %w", workerVariable, err)
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()
	ofEvents, err := openJournal(deliveries)
	if err != nil {
		return err
	}
	ofScreen, err := openJournal(shown)
	if err != nil {
		return err
	}
	h := &witness{next: &events.MiniChatHandler{Ledger: ledger.New(pool)}, journal: ofEvents}
	dispatcher, err := events.NewMiniChatDispatcher(pool, h, queue.Config{
		WorkerID:        id,
		BatchSize:       50,
		Concurrency:     concurrency,
		LeaseDuration:   lease,
		MaxAttempts:     3,
		ShutdownTimeout: shutdownTimeout,
	})
	if err != nil {
		return err
	}
	toKafka, err := kafka.New(kafka.Config{Brokers: []string{os.Getenv("KAFKA_BROKERS")}})
	if err != nil {
		return err
	}
	defer toKafka.Close()
	listeners, err := listen(pool, screen{ofScreen}, toKafka)
	if err != nil {
		return err
	}
	w, err := worker.New(append(listeners, worker.Part{Name: "mini_chat", Runner: dispatcher})...)
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
	return errors.Join(w.Run(ctx), ofEvents.close(), ofScreen.close())
}

// listen returns the listeners of the turns that were started.
func listen(pool *pgxpool.Pool, members events.Members, toKafka publish.Publisher) ([]worker.Part, error) {
	// A short lease, so that another worker soon continues where the killed one was.
	cfg := listener.Config{LeaseDuration: lease, ShutdownTimeout: shutdownTimeout}
	activity, err := events.NewActivityListener(pool, &events.ActivityHandler{}, cfg)
	if err != nil {
		return nil, err
	}
	typing, err := events.NewTypingListener(pool, &events.TypingHandler{Members: members}, cfg)
	if err != nil {
		return nil, err
	}
	cfg.Publishers = map[string]publish.Publisher{"kafka": toKafka}
	relay, err := events.NewRelayListener(pool, cfg)
	if err != nil {
		return nil, err
	}
	return []worker.Part{{Name: "activity", Runner: activity}, {Name: "typing", Runner: typing}, {Name: "relay", Runner: relay}}, nil
}

// screen records what would be shown to the members of a chat.
type screen struct{ journal *journal }

// ShowTyping records the turn.
func (s screen) ShowTyping(_ context.Context, eventID uuid.UUID, turn events.TurnStarted) error {
	return s.journal.add(shown{Turn: turn.TurnID, Event: eventID})
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
