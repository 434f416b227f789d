package events

import "context"

// Clients are the connected clients. Push is called again if an event is delivered again, or if Push failed; a client
// that has the message ignores it by its number. The messages of one thread arrive one after another, those of several
// threads concurrently.
type Clients interface {
	Push(ctx context.Context, m MessageCreated) error
}

// BroadcastHandler handles the events of listener broadcast.
type BroadcastHandler struct {
	Clients Clients
}

var _ BroadcastHandlers = (*BroadcastHandler)(nil)
