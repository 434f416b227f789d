package events

// CompanionHandler handles the events of listener companion. It needs only the transaction that it is called with.
type CompanionHandler struct{}

var _ CompanionHandlers = (*CompanionHandler)(nil)
