package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/outbox"
)

// A listener without a batch gets one event of the same topic.
type counter struct{}

func (counter) HandleNoteRemovedBatch(context.Context, []outbox.Delivery[events.NoteRemoved]) error {
	return nil
}

var _ events.CounterHandlers = counter{} // error: missing method HandleNoteRemoved
