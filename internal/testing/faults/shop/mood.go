package shop

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
	"github.com/outboxgen/outboxgen/outbox"
)

// The moods of events: how handlers treat them.
const (
	fine   = "fine"
	flaky  = "flaky" // the first attempt fails
	slow   = "slow"
	long   = "long"   // longer than a lease, so that it is renewed
	panics = "panics" // the first attempt panics
	Doomed = "doomed" // every attempt fails for good
	exits  = "exits"  // the first three attempts end the process
)

const deadlyAttempts = 3

const (
	// longTime is how long a handler of a long event takes.
	longTime = 2*Lease + 2*time.Second
	// reminderTime is how long one of a reminder takes, so that they reach their limits.
	reminderTime = 30 * time.Millisecond
)

// calmSlow says how many of 100 orders are slow when nothing goes wrong, so that another worker that takes one of them has it at
// the same time.
const calmSlow = 3

// longOf says how many of 10,000 events of a topic are long. Those of the transactional listener must not be so.
var longOf = map[string]int{OrderPlaced: 50, ReminderDue: 20, ParcelSent: 3, InvoiceSent: 3}

// drawMood returns the mood of an event.
func drawMood(topic string, r *rand.Rand) string {
	if r.IntN(10_000) < longOf[topic] {
		return long
	}
	switch n := r.IntN(1000); {
	case n < 20:
		return flaky
	case n < 23:
		return panics
	case n < 25:
		return Doomed
	case n < 29:
		return slow
	}
	return fine
}

var (
	errRefused = errors.New("this is refused for good")
	errFlaky   = errors.New("not this time")
)

// got is an event as a handler has it.
type got struct {
	id          uuid.UUID
	attempt     int
	topic, item string
	n           int64
	mood        string
}

func received(e *outbox.Event, item string, n int64, mood string) *got {
	return &got{e.ID, e.Attempt, e.Topic, item, n, mood}
}

func consumed(e *consume.Event, item string, n int64, mood string) *got {
	return &got{e.ID, 1, e.Topic, item, n, mood}
}

// handle does what the mood of the event says, and says so.
func (w *work) handle(ctx context.Context, handler string, g *got) error {
	end, say := w.journal.leased(ctx, handler, g), check.Fail // as of one that panics
	defer func() { end(say) }()
	err := misbehave(ctx, g)
	switch {
	case err == nil:
		say = check.Done
	case errors.Is(err, errRefused):
		say = check.Gone
		return outbox.Permanent(err)
	}
	return err
}

func misbehave(ctx context.Context, g *got) error {
	first := g.attempt == 1
	switch {
	case g.mood == Doomed:
		return errRefused
	case g.mood == flaky && first:
		return errFlaky
	case g.mood == panics && first:
		panic("the handler of " + g.item)
	case g.mood == exits && g.attempt <= deadlyAttempts && g.topic == OrderPlaced:
		os.Exit(exitPoison)
	case g.mood == slow:
		return last(ctx, 200*time.Millisecond)
	case g.mood == long:
		return last(ctx, longTime)
	case g.topic == ReminderDue:
		return last(ctx, reminderTime)
	}
	return nil
}

// last takes some time, unless ctx ends.
func last(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
