package people

// PeopleHandler handles the events of namespace people.
// Give it the fields that its methods need, such as a pool; they run concurrently and share them.
type PeopleHandler struct{}

var _ PeopleHandlers = (*PeopleHandler)(nil)
