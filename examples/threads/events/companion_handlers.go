package events

import (
	"context"

	"github.com/google/uuid"
)

// Companion answers messages. Reply is called again when a job is delivered again, with the same id, and must
// then change nothing.
type Companion interface {
	Reply(ctx context.Context, job uuid.UUID, r ReplyRequested) error
}

// CompanionJobsHandler handles the events of namespace companion. Its methods run concurrently.
type CompanionJobsHandler struct {
	Companion Companion
}

var _ CompanionJobsHandlers = (*CompanionJobsHandler)(nil)
