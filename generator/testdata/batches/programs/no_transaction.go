package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/outbox"
)

// A transactional listener passes its transaction with the batch.
type keeper struct{}

func (keeper) HandleNoteAddedBatch(context.Context, []outbox.Delivery[events.NoteAdded]) error {
	return nil
}

var _ events.KeeperHandlers = keeper{} // error: wrong type for method HandleNoteAddedBatch
