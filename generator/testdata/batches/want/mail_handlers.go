package events

// MailHandler handles the events of namespace mail.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type MailHandler struct{}

var _ MailHandlers = (*MailHandler)(nil)
