package events

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/outboxgen/outboxgen/outbox"
)

// HandleNoteAddedBatch handles several mail/note_added events.
// What it writes with tx takes effect exactly once. It must not commit or roll back tx. What it does elsewhere
// may happen more than once. Return nil when all are done, an outbox.BatchError to name those that have failed, or
// any other error when all have. Until it is written, the events of the topic wait, no attempt is charged, and the
// log says so at level ERROR.
func (h *KeeperHandler) HandleNoteAddedBatch(ctx context.Context, tx pgx.Tx, ds []outbox.Delivery[NoteAdded]) error {
	return outbox.Unimplemented("mail/note_added")
}
