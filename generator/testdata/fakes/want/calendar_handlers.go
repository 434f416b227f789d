package events

// CalendarHandler handles the events of namespace calendar.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type CalendarHandler struct{}

var _ CalendarHandlers = (*CalendarHandler)(nil)
