package events

import (
	"context"

	"github.com/google/uuid"
)

// Companion answers messages. Reply is called again with the same id if a job is delivered again, and must then change
// nothing.
type Companion interface {
	Reply(ctx context.Context, job uuid.UUID, r ReplyRequested) error
}

// RepliesHandler handles the events of namespace replies. Its methods run concurrently.
type RepliesHandler struct {
	Companion Companion
}

var _ RepliesHandlers = (*RepliesHandler)(nil)
