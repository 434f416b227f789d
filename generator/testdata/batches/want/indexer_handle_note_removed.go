package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleNoteRemovedBatch handles several mail/note_removed events.
// It may run more than once per event, so its effects must be idempotent. Return nil when all are done, an
// outbox.BatchError to name those that have failed, or any other error when all have. Until it is written, the
// events of the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *IndexerHandler) HandleNoteRemovedBatch(ctx context.Context, ds []outbox.Delivery[NoteRemoved]) error {
	return outbox.Unimplemented("mail/note_removed")
}
