package shop

// InvoicesHandler handles the events of namespace invoices.
// Give it the fields that its methods need, such as a pool; they run concurrently and share them.
type InvoicesHandler struct{}

var _ InvoicesHandlers = (*InvoicesHandler)(nil)
