package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleNoteRemoved handles one mail/note_removed event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CounterHandler) HandleNoteRemoved(ctx context.Context, d outbox.Delivery[NoteRemoved]) error {
	return outbox.Unimplemented("mail/note_removed")
}
