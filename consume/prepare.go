package consume

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/inbox"
)

// Prepared is a message that a Consumer has read and decoded. Only its effect is missing.
type Prepared struct {
	r   *Received
	run effect
}

// Event returns the metadata of the event.
func (p *Prepared) Event() Event { return p.r.Event }

// Prepare reads a message and finds every fault of the message itself, as Consume does before its transaction begins.
// With Record and Apply, a program applies several messages in one transaction. Programs that handle one message at a
// time use Consume, and package receive does all of it.
func (c *Consumer) Prepare(m Message) (*Prepared, error) {
	r, run, err := c.read(m)
	if err != nil {
		return nil, err
	}
	return &Prepared{r, run}, nil
}

// RecordError says which message of a batch Record refused.
type RecordError struct {
	Index int   // of the message in the batch
	Err   error // an *Error
}

// Error returns the text of Err.
func (e *RecordError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RecordError) Unwrap() error { return e.Err }

// Record records the events of ps in the inbox, in tx, and returns the outcome of each. It does not write effects: call
// Apply for each one that is inbox.Applied, in the order of ps and with the same tx, and roll tx back if one of them
// fails. An error is a *RecordError if one of the messages is at fault; roll tx back after any error.
func (c *Consumer) Record(ctx context.Context, tx pgx.Tx, ps []*Prepared) ([]inbox.Outcome, error) {
	events := make([]inbox.Event, len(ps))
	for i, p := range ps {
		events[i] = inboxEvent(p.r)
	}
	outcomes, err := c.inbox.Record(ctx, tx, events)
	var one *inbox.RecordError
	if errors.As(err, &one) {
		return nil, &RecordError{one.Index, about(&ps[one.Index].r.Event, "", one.Err)}
	}
	return outcomes, err
}

// LastVersion is Inbox.LastVersion for the entity of p.
func (c *Consumer) LastVersion(ctx context.Context, tx pgx.Tx, p *Prepared) (int64, error) {
	return c.inbox.LastVersion(ctx, tx, inboxEvent(p.r))
}

// Apply writes the effect of p with tx: it calls the consumer's method, whose transaction refuses Commit and Rollback
// with ErrTxOwned. A panic of the method is an error, and so are runtime.Goexit and a transaction that the method has
// left failed or ended. The error is an *Error.
func (p *Prepared) Apply(ctx context.Context, tx pgx.Tx) error {
	if err := call(ctx, tx, &p.r.Event, p.run); err != nil {
		return about(&p.r.Event, "", err)
	}
	return nil
}

// Inbox returns the inbox that c records events in.
func (c *Consumer) Inbox() *inbox.Inbox { return c.inbox }
