package events

// MiniChatHandler handles the events of namespace mini_chat.
// Give it the fields that its methods need, such as a pool; they may run concurrently and share them. Where
// a method calls a package that enqueues, and so imports this one, let the field be an interface.
type MiniChatHandler struct{}

var _ MiniChatHandlers = (*MiniChatHandler)(nil)
