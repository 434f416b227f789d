package events

import "context"

// Directory stores identities. Put is called again if an event is delivered again, and must then change
// nothing.
type Directory interface {
	Put(ctx context.Context, identity IdentityLinked) error
}

// ContactsHandler handles the events of namespace contacts. Its methods run concurrently.
type ContactsHandler struct {
	Directory Directory
}

var _ ContactsHandlers = (*ContactsHandler)(nil)
