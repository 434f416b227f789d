package events

import (
	"context"

	"github.com/google/uuid"
)

// Members are the connected members of chats. ShowTyping is called again if an event is delivered again.
type Members interface {
	ShowTyping(ctx context.Context, eventID uuid.UUID, turn TurnStarted) error
}

// TypingHandler handles the events of listener typing. Its methods run concurrently.
type TypingHandler struct {
	Members Members
}

var _ TypingHandlers = (*TypingHandler)(nil)
