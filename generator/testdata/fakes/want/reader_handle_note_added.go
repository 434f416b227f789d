package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleNoteAdded handles one shop/note_added event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *ReaderHandler) HandleNoteAdded(ctx context.Context, d outbox.Delivery[NoteAdded]) error {
	return outbox.Unimplemented("shop/note_added")
}
