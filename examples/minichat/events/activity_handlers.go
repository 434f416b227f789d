package events

// ActivityHandler handles the events of listener activity. It needs only the transaction that it is called with.
type ActivityHandler struct{}

var _ ActivityHandlers = (*ActivityHandler)(nil)
