package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/outbox"
)

// The method of a topic with a batch has another name, and gets several events.
type keeper struct{}

func (keeper) HandleNoteRemoved(context.Context, outbox.Delivery[events.NoteRemoved]) error {
	return nil
}

var _ events.SweeperHandlers = keeper{} // error: missing method HandleNoteRemovedBatch
