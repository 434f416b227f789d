package events

import "context"

// Clients are the clients that are connected. Push is called again when an event is delivered again, or when
// it failed; a client that has the message then ignores it by its number. The messages of a thread come one
// after the other, those of several threads at once.
type Clients interface {
	Push(ctx context.Context, m MessageCreated) error
}

// BroadcastHandler handles the events of listener broadcast.
type BroadcastHandler struct {
	Clients Clients
}

var _ BroadcastHandlers = (*BroadcastHandler)(nil)
