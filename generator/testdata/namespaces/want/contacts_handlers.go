package shop

// ContactsHandler handles the events of namespace contacts.
// Give it the fields that its methods need, such as a pool; they run concurrently and share them.
type ContactsHandler struct{}

var _ ContactsHandlers = (*ContactsHandler)(nil)
