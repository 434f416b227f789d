package events

import (
	"context"

	"github.com/google/uuid"
)

// UsageLedger records the usage of finalised turns. Record is called again if an event is delivered again, and
// must then change nothing: a turn's usage counts once per tenant, turn and request.
type UsageLedger interface {
	Record(ctx context.Context, eventID uuid.UUID, turn TurnFinalized) error
}

// MiniChatHandler handles the events of namespace mini_chat. Its methods run concurrently.
type MiniChatHandler struct {
	Ledger UsageLedger
}

var _ MiniChatHandlers = (*MiniChatHandler)(nil)
